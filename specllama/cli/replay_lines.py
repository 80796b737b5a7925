"""The output of probe --replay: a row per setting, the map of the best n-gram type, the verdict."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from specllama.cli.planned_lines import planned_data
from specllama.cli.probe_lines import serve_command
from specllama.cli.probe_plots import ngram_table, verify_line
from specllama.cli.tuning_lines import interval_data, interval_text, map_data, sizes_data
from specllama.cli.units import plural
from specllama.drafts.ollama import shown_name

if TYPE_CHECKING:
    from rich.table import Table

    from specllama.serving.probe import PlannedProbe
    from specllama.serving.replay import ConversationReplay
    from specllama.tuning.conversations import Conversations
    from specllama.tuning.records import NgramSpeedups
    from specllama.tuning.replayed import ReplayedSetting

_COLUMNS = (
    "setting", "drafted", "accepted", "α", "tokens per step", "predicted speed-up", "source"
)  # fmt: skip
_LEFT = ("setting", "source")
SPARE = ("drafted", "accepted", "source")  # left out first on a narrow terminal


def planned_replay_lines(p: PlannedProbe, source: Conversations) -> Iterator[str]:
    """The output of --dry-run."""
    yield f"{p.plan.target.title}, {_contents(source)}"
    yield f"baseline {p.plan.with_speculation(None).command.display()}"
    if p.task.ngrams:
        names = ", ".join("+".join(s.methods) for s in p.task.ngrams)
        yield f"replay   {names}: all sizes, on these responses; nothing is generated again"
    for c in p.task.candidates:
        name = f" with {shown_name(c.speculation.draft)}" if c.speculation.draft is not None else ""
        yield f"read     {'+'.join(c.speculation.methods)}{name}, K up to {c.longest}"
    for doubt in p.doubts:
        yield f"note     {doubt} (--all replays it)"


def planned_replay_data(p: PlannedProbe, source: Conversations) -> dict[str, Any]:
    return {"replay": planned_data(p) | _source_data(source)}


def title(r: ConversationReplay) -> str:
    texts = r.texts
    return (
        f"{r.planned.plan.target.title}, {_responses(len(texts.texts))} of {texts.tokens:,} "
        f"tokens replayed, from {r.source.path.name}"
    )


def table(r: ConversationReplay) -> Table:
    """One row per setting, fastest first, plain decoding among them."""
    from rich.table import Table

    out = Table(box=None, pad_edge=False, header_style="bold")
    for name in _COLUMNS:
        out.add_column(name, justify="left" if name in _LEFT else "right")
    plain = ("no speculation", "", "", "", "1.00", "1x", "")
    faster = sum(s.ratios.value >= 1 for s in r.settings)
    cells = [replay_row(s) for s in r.settings]
    for row in (*cells[:faster], plain, *cells[faster:]):
        out.add_row(*row)
    return out


def replay_row(s: ReplayedSetting) -> tuple[str, ...]:
    """The cells of one setting; an interval only if it rests on enough conversations."""
    return (
        s.name,
        f"{s.drafted:,}",
        f"{s.accepted:,}",
        f"{s.alpha:.2f}" if s.alpha is not None else "",
        f"{s.tau:.2f}",
        f"{s.ratios.value:.2f}x" if s.few_texts else interval_text(s.speedup),
        s.source,
    )


def below_table(r: ConversationReplay) -> Iterator[str]:
    """The best type's map, the verdict and what it rests on, the command to run."""
    yield from ngram_table(_of_best(r) or r.ngrams)
    yield f"verdict  {'on' if r.best else 'off'} for these conversations: {r.reason}"
    for d in r.dropped:
        yield f"not used {d.setting}: {d.reason}"
    for reason, count in r.left_out.items():
        yield f"skipped  {_responses(count)}: {reason}"
    if r.source.calls:
        yield f"skipped  {_responses(r.source.calls)}: tool calls, whose tokens are not in the file"
    from specllama.tuning.judge import MIN_PROMPTS

    few = {len(s.ratios) for s in r.settings if s.few_texts}
    if few:
        most = plural(max(few), "response")
        yield (
            f"note     speed-ups without an interval rest on {most}: too few to predict others "
            f"({MIN_PROMPTS} needed)"
        )
    for note in (*r.planned.doubts, *r.notes):
        yield f"note     {note}"
    yield (
        "note     the counts are exact for these texts; the speed-ups also use the cost of "
        "verification on this machine"
    )
    if line := verify_line(r.costs):
        yield f"verify   {line}"
    yield f"cost     1 model load, {r.seconds:.0f} s"
    yield f"run      {run_line(r)}"


def _of_best(r: ConversationReplay) -> list[NgramSpeedups]:
    """The map of the chosen type; the others are rows of the table."""
    if r.best is None:
        return []
    spec = r.best.speculation
    same = [m for m in r.ngrams if m.method in spec.methods and bool(m.draft) == spec.uses_draft]
    draft = shown_name(spec.draft) if spec.draft is not None else ""
    return [m for m in same if draft in m.draft][:1]


def run_line(r: ConversationReplay) -> str:
    return serve_command(r.planned, r.best.speculation if r.best is not None else None)


def data(r: ConversationReplay) -> dict[str, Any]:
    """The JSON object. A speed-up is [value, low, high]; times in ms."""
    return {
        "replay": {
            "target": str(r.planned.plan.target.path),
            "engine": r.planned.plan.engine.label,
            "build": r.planned.plan.capabilities.label,
            "workload": r.planned.task.workload,
            **_source_data(r.source),
            "responses_replayed": len(r.texts.texts),
            "tokens": r.texts.tokens,
            "left_out": dict(r.left_out),
            "step_ms": r.costs.plain_step.ms,
            "verify_ms": {str(b): ms for b, ms in sorted(r.costs.verify.items())},
            "settings": [_setting_data(s) for s in r.settings],
            "ngram_maps": [map_data(m) for m in r.ngrams],
            "speculation": "on" if r.best else "off",
            "best": r.best.name if r.best else None,
            "reason": r.reason,
            "dropped": [{"setting": d.setting, "reason": d.reason} for d in r.dropped],
            "doubts": list(r.planned.doubts),
            "notes": list(r.notes),
            "seconds": r.seconds,
            "run": run_line(r),
        }
    }


def _setting_data(s: ReplayedSetting) -> dict[str, Any]:
    spec = s.speculation
    return {
        "name": s.name,
        "methods": list(spec.methods),
        "draft": str(spec.draft) if spec.draft is not None else None,
        "n_max": spec.n_max if spec.uses_draft else None,
        "ngram": sizes_data(spec.ngram),
        "drafted": s.drafted,
        "accepted": s.accepted,
        "steps": s.steps,
        "tokens": s.tokens,
        "alpha": s.alpha,
        "tau": s.tau,
        "speedup": interval_data(s.speedup),
        "texts": len(s.ratios),
        "source": s.source,
        "only_compared": not s.may_win,
        "by_length": {str(k): interval_data(i) for k, i in s.curve.items()},
    }


def _source_data(source: Conversations) -> dict[str, Any]:
    return {
        "file": str(source.path),
        "conversations": len(Counter(r.line for r in source.requests)),
        "responses": len(source.requests),
        "tool_calls": source.calls,
    }


def _contents(source: Conversations) -> str:
    conversations = len(Counter(r.line for r in source.requests))
    many = plural(conversations, "conversation")
    return f"{_responses(len(source.requests))} in {many} of {source.path.name}"


def _responses(count: int) -> str:
    return plural(count, "response")
