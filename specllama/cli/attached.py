"""`specllama probe --url URL`."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from specllama.cli.render import Printer
    from specllama.engine.client import Prompt


def show_attached(
    printer: Printer,
    url: str,
    baseline_url: str | None,
    model: str | None,
    api_key: str | None,
    own: tuple[Prompt, ...],
    workload: str,
    budget: float,
) -> None:
    """Measures servers that are already running."""
    import time
    from contextlib import ExitStack, closing

    from specllama.cli.attached_lines import attached_data, attached_lines
    from specllama.watching import attach, own_requests
    from specllama.watching.chat_server import Server
    from specllama.workloads import load_workload

    profile = load_workload(workload)
    prompts = own or profile.prompts
    addresses = [url] if baseline_url is None else [url, baseline_url]
    deadline = time.monotonic() + budget
    with ExitStack() as stack, printer.busy(f"measuring {' and '.join(addresses)} …"):
        for a in addresses:
            stack.enter_context(own_requests.measuring(a))
        servers = [stack.enter_context(closing(Server(a, api_key))) for a in addresses]
        found = attach.measure_running(servers, prompts, profile.sampling, 96, deadline, model)
    gain = attach.speedup(found[1], found[0]) if len(found) > 1 else None
    if printer.as_json:
        printer.json(attached_data(url, found[0], gain))
        return
    for line in attached_lines(url, found[0], gain):
        printer.say(line)
