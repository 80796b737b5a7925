"""Output of `pick-draft`: the table, notes and last lines; the JSON object."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from specllama.cli.measured_lines import cost_lines, measured_data

if TYPE_CHECKING:
    from collections.abc import Sequence

    from specllama.cli.render import Printer
    from specllama.drafts.pick import Candidate, PickResult
    from specllama.gguf import ModelInfo
    from specllama.planning.candidate_memory import CandidateMemory

_SHOWN_REJECTED = 12


def print_candidates(
    printer: Printer,
    target: ModelInfo,
    picked: PickResult,
    space: Sequence[CandidateMemory | None],
) -> None:
    """The table of candidates with their memory, notes, and the files that are not used."""
    if picked.candidates:
        from rich.table import Table

        table = Table(box=None, pad_edge=False, header_style="bold")
        alpha = "α (* measured)" if any(c.measured for c in picked.candidates) else "α prior"
        for name in ("method", "file", "size", "memory", "fits", alpha, "τ at K", "predicted"):
            left = name in ("method", "file", "fits")
            table.add_column(name, justify="left" if left else "right")
        for c, room in zip(picked.candidates, space, strict=True):
            table.add_row(*_row(target, c, room))
        printer.table(table)
        if (room := next((r for r in space if r is not None), None)) is not None:
            plain = (
                f"{room.longest_without:,} tokens fit"
                if room.longest_without
                else "no context length fits"
            )
            printer.detail(
                f"memory   in addition to the target, at a context of {room.context:,} tokens; "
                f"without a draft {plain}"
            )
    for source in dict.fromkeys(c.measured.source for c in picked.candidates if c.measured):
        printer.detail(f"note     α and τ marked * are measured on {source}, at temperature 0")
    for line in cost_lines(picked):
        printer.detail(line)
    for c in picked.candidates:
        for warning in c.warnings:
            printer.detail(f"note     {_file(target, c)}: {warning}")
    listed = picked.rejected if printer.verbose else picked.rejected[:_SHOWN_REJECTED]
    for r in listed:
        printer.detail(f"not used {r.what}: {r.detail} ({r.rule})")
    if len(listed) < len(picked.rejected):
        printer.detail(f"         and {len(picked.rejected) - len(listed)} more; see --verbose")


def _row(target: ModelInfo, c: Candidate, room: CandidateMemory | None) -> tuple[str, ...]:
    from specllama.cli.units import mib

    p = c.prediction
    size = mib(c.draft.file_bytes) if c.draft else "in the model"
    extra = f"+{mib(room.extra)}" if room else "unknown"
    cells = (c.method, _file(target, c), size, extra, _fits(room))
    if m := c.measured:
        tau = f"{m.tau:.2f} ({m.tau_low:.2f} to {m.tau_high:.2f}) at {m.k}"
        return (*cells, f"{m.alpha:.2f}*", f"{tau}*", f"about {m.speedup:.2f}x")
    tau = f"{p.tau:.2f} at {p.k}"
    return (*cells, f"{p.prior.alpha:.2f}", tau, f"{p.low:.2f}x to {p.high:.2f}x")


def _fits(room: CandidateMemory | None) -> str:
    """Whether it fits, and up to which context length."""
    if room is None:
        return "unknown"
    if not room.longest:
        return "partly" if room.verdict.gpu_layers else "no"
    if room.fits and room.longest >= room.longest_without:
        return "yes"
    return f"up to {room.longest:,} tokens"


def _file(target: ModelInfo, c: Candidate) -> str:
    return c.draft.title if c.draft else f"{target.title} (its MTP head)"


def saved_line(target: ModelInfo, workload: str) -> str | None:
    """The newest saved result of this target and workload: measured, unlike the table."""
    from specllama.tuning.results import all_results, format_time

    path = str(target.path.absolute())
    same = (r for r in all_results() if (r.target, r.workload) == (path, workload))
    if (r := next(same, None)) is None:
        return None
    on = "on" if r.speculation is not None else "off"
    return f"saved    {workload} was measured ({format_time(r.when)}): {on}, {r.reason}"


def last_lines(
    target: ModelInfo,
    picked: PickResult,
    workload: str,
    draft: str | None,
    on_hub: str | None,
    context: int,
) -> list[str]:
    """The command to run, or what to download. `on_hub`: the draft's name on the Hub, if it is
    not on this machine."""
    import shlex

    if picked.candidates:
        words = ["specllama", "serve", str(target.path), "--workload", workload]
        if on_hub is not None:
            return [f"get      {on_hub} (--hub --download fetches it)"]
        if draft is not None:
            words += ["--draft", draft]
        words += ["-c", str(context)] if context else []
        return [f"run      {shlex.join(words)}"]
    return _advice(target)


def _advice(target: ModelInfo) -> list[str]:
    import shlex

    from specllama.drafts.families import family_of

    family = family_of(target)
    out = [f"no draft found for {target.title}"]
    if family is None:
        out.append("get      a much smaller model of the same family, from the same uploader")
    else:
        for s in family.suggestions:
            out.append(f"get      {s.name}{s.where}: {s.method}, for {family.name}")
        if not family.suggestions:
            out.append(f"note     no draft for this model is known in the {family.name} family")
        if family.note:
            out.append(f"note     {family.note}")
    out.append(f"run      specllama serve {shlex.quote(str(target.path))} --method ngram-simple")
    return out


def pick_data(
    target: ModelInfo,
    picked: PickResult,
    space: Sequence[CandidateMemory | None],
    workload: str,
    draft: str | None,
) -> dict[str, Any]:
    """The JSON object, without the warnings of the launch."""
    from specllama.drafts.hub import hub_label

    return {
        "draft": draft,
        "target": str(target.path),
        "workload": workload,
        "candidates": [
            {
                "method": c.method,
                "draft": (hub_label(c.draft.path) or str(c.draft.path)) if c.draft else None,
                "called": c.draft.title if c.draft else None,
                "file_bytes": c.draft.file_bytes if c.draft else None,
                "memory_bytes": room.extra if room else None,
                "fits": room.verdict.kind if room else "unknown",
                "longest_context": room.longest if room else None,
                "alpha_prior": c.prediction.prior.alpha,
                "alpha_source": c.prediction.prior.source,
                "k": c.prediction.k,
                "tau": c.prediction.tau,
                "speedup_low": c.prediction.low,
                "speedup": c.prediction.speedup,
                "speedup_high": c.prediction.high,
                "measured": measured_data(c),
                "warnings": list(c.warnings),
            }
            for c, room in zip(picked.candidates, space, strict=True)
        ],
        "rejected": [{"what": r.what, "rule": r.rule, "detail": r.detail} for r in picked.rejected],
        "advice": [] if picked.candidates else _advice(target),
    }
