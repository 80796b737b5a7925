"""Speed with a draft against plain decoding, for several draft lengths, in one run.

    python -m benchmarks.draft_length [--llama-server PATH] [--threads 1] [--k 1 2 3 4]

Builds a widened target (`large_target.py`), then serves it plain and with the tiny draft at
each K, on the code profile's prompts at temperature 0. Prints tok/s, α, τ and the ratio to
plain. One server at a time: llama-server's threads spin.
"""

from __future__ import annotations

import argparse
import tempfile
from collections.abc import Sequence
from pathlib import Path

from benchmarks import large_target
from specllama import workloads
from specllama.cli.render import Printer
from specllama.cli.serve_lines import ServeReport
from specllama.engine.settings import Settings
from specllama.planning.prepare import prepare
from specllama.planning.spec_options import SpeculationOptions
from specllama.prompts import as_text
from specllama.serving.launch import launch

_DRAFT = Path(__file__).parent.parent / "tests" / "models" / "draft.gguf"
_TOKENS = 48


def speed(target: Path, k: int | None, engine: str | None, threads: int) -> tuple[float, ...]:
    """(tok/s, α, τ) of one server; `k` None = plain decoding."""
    settings = Settings(target, host="127.0.0.1", port=0, context=2048)
    spec_options = (
        SpeculationOptions("code", _DRAFT, n_max=k)
        if k
        else SpeculationOptions("code", method="none")
    )
    plan = prepare(settings, spec_options, ("-t", str(threads)), engine)
    tokens, ms, drafted, accepted = 0, 0.0, 0, 0
    running = launch(plan, Path(tempfile.mkdtemp()) / "log", ServeReport(Printer()))
    try:
        running.client.complete("warm-up", 8, {})
        for prompt in map(as_text, workloads.load_workload("code").prompts):
            sampling = {"temperature": 0.0, "ignore_eos": True}
            t = running.client.complete(prompt, _TOKENS, sampling).timings
            assert t is not None
            tokens, ms = tokens + t.tokens, ms + t.ms
            drafted, accepted = drafted + t.drafted, accepted + t.accepted
    finally:
        running.stop()
    steps = max(1, tokens - accepted)
    return tokens / ms * 1000, accepted / drafted if drafted else 0.0, tokens / steps


def main(argv: Sequence[str] | None = None) -> None:
    ap = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    ap.add_argument("--llama-server")
    ap.add_argument("--threads", type=int, default=1)
    ap.add_argument("--k", type=int, nargs="+", default=[1, 2, 3, 4])
    ap.add_argument("--layers", type=int, default=30)
    ap.add_argument("--ff", type=int, default=8192)
    args = ap.parse_args(argv)
    with tempfile.TemporaryDirectory() as folder:
        target = Path(folder) / "large.gguf"
        total = large_target.build(target, args.layers, args.ff)
        print(f"target of {total / 1e6:.0f} M parameters, draft of 0.5 M")
        plain, _, _ = speed(target, None, args.llama_server, args.threads)
        print(f"plain  {plain:6.1f} tok/s")
        for k in args.k:
            tps, alpha, tau = speed(target, k, args.llama_server, args.threads)
            print(f"K={k}    {tps:6.1f} tok/s  α {alpha:.2f}  τ {tau:.2f}  {tps / plain:.2f}x")


if __name__ == "__main__":
    main()
