"""probe's output: the table of settings, the curves, the verdict, the command to run."""

from __future__ import annotations

import shlex
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from specllama.cli.compared import UNMEASURED, Unconfirmed, unconfirmed, unconfirmed_data
from specllama.cli.probe_plots import ngram_table, speed_plot, verify_line
from specllama.cli.tuning_lines import (
    confirmation_data,
    dropped_lines,
    effort,
    expected_lines,
    interval_text,
    tuned_data,
)
from specllama.cli.units import mib

if TYPE_CHECKING:
    from rich.table import Table

    from specllama.engine.settings import Speculation
    from specllama.planning.plan import Plan
    from specllama.serving.probe import PlannedProbe, ProbeResult
    from specllama.tuning.measure import Measurement
    from specllama.tuning.records import Baseline, Confirmation, TuningResult

_TEXT = ("setting", "α", "α·K", "τ", "tok/s", "speed-up", "chance slower")
_MORE = ("first token", "draft/verify", "memory")
SPARE = ("α·K", "draft/verify", "first token", "memory")  # left out first on a narrow terminal


def title(p: ProbeResult) -> str:
    from specllama.tuning.records import OPEN

    early = " (stopped early, no verdict yet)" if p.tuned.state == OPEN else ""
    return f"{p.plan.target.title}, {p.tuned.workload}{early}"


def columns(p: ProbeResult) -> tuple[str, ...]:
    """With several slots: tok/s of all together, and of each request."""
    if slots(p) == 1:
        return _TEXT + _MORE
    names = list(_TEXT)
    names[4:5] = ["tok/s, all", "per request"]
    return (*names, *_MORE)


def slots(p: ProbeResult) -> int:
    return p.planned.task.slots


def table(p: ProbeResult) -> Table:
    """One row per setting, the baseline first. Columns that are empty in all rows are omitted."""
    from rich.table import Table

    found = list(rows(p))
    out = Table(box=None, pad_edge=False, header_style="bold")
    shown = [i for i in range(len(columns(p))) if any(cells[i] for cells in found)]
    for i in shown:
        name = columns(p)[i]
        out.add_column(name, justify="left" if name == "setting" else "right")
    for cells in found:
        out.add_row(*(cells[i] for i in shown))
    return out


def rows(p: ProbeResult) -> Iterator[tuple[str, ...]]:
    """The cells of the table: measured settings first, then the others with what is known."""
    from specllama.tuning.records import decoding_speed

    baseline = p.tuned.baseline
    if baseline is not None:
        m = baseline.measurement
        speed = _speeds(p, m.tokens_per_second)
        yield ("no speculation", "", "", "", *speed, "1x", "", f"{m.first_ms:.0f} ms", "", "")
    for confirmation in p.tuned.confirmations:
        m = confirmation.measurement
        tau = m.log.tokens_per_step
        share = confirmation.split.draft_share if confirmation.split else None
        extra = extra_memory(p.plan, confirmation.speculation)
        yield (
            confirmation.label,
            f"{m.alpha:.2f}" if m.alpha is not None else "",
            _alpha_k(confirmation),
            f"{tau:.2f}" if tau else "",
            *_speeds(p, decoding_speed(baseline, m, confirmation.speedup)),
            interval_text(confirmation.speedup),
            chance(confirmation.slower),
            _first_token(confirmation, baseline),
            f"{share:.0%}/{1 - share:.0%}" if share is not None else "",
            f"+{mib(extra)}" if extra else "",
        )
    yield from (_unconfirmed_row(p, o) for o in unconfirmed(p.tuned, p.planned.task))


def _unconfirmed_row(p: ProbeResult, o: Unconfirmed) -> tuple[str, ...]:
    """A setting that was not confirmed: the result of its one launch, or its prediction."""
    from specllama.tuning.records import decoding_speed

    m, baseline = o.measurement, p.tuned.baseline
    speed = decoding_speed(baseline, m, o.speedup) if m else 0.0
    speeds = _speeds(p, speed) if m else ("",) * len(_speeds(p, 0.0))
    tau = m.log.tokens_per_step if m else None
    extra = extra_memory(p.plan, o.speculation)
    return (
        o.label,
        f"{m.alpha:.2f}" if m and m.alpha is not None else "",
        "",
        f"{tau:.2f}" if tau else "",
        *speeds,
        f"{o.speedup.value:.2f}x predicted" if o.speedup else UNMEASURED if not m else "",
        *("",) * 3,
        f"+{mib(extra)}" if extra else "",
    )


def _speeds(p: ProbeResult, all_together: float) -> tuple[str, ...]:
    n = slots(p)
    each = (f"{all_together / n:.1f}",) if n > 1 else ()
    return (f"{all_together:.1f}", *each)


def _first_token(confirmation: Confirmation, baseline: Baseline | None) -> str:
    """Compared with plain decoding, scaled to the same number of prompt tokens."""
    m = confirmation.measurement
    if baseline is None or not (prompt_tokens := _prompt_tokens(baseline.measurement)):
        return f"{m.first_ms:.0f} ms"
    return (
        f"{m.first_ms - baseline.measurement.first_ms * _prompt_tokens(m) / prompt_tokens:+.0f} ms"
    )


def _prompt_tokens(m: Measurement) -> float:
    return sum(a.prompt_tokens for a in m.responses) / max(1, len(m.responses))


def chance(p: float) -> str:
    """A probability as a percentage."""
    return "<1%" if p < 0.01 else ">99%" if p > 0.99 else f"{p:.0%}"


def _alpha_k(confirmation: Confirmation) -> str:
    """α·K: a popular estimate, next to the measured values."""
    from specllama.tuning.speedup import effective_acceptance

    spec, alpha = confirmation.speculation, confirmation.measurement.alpha
    if alpha is None or not spec.uses_draft or spec.uses_ngram:
        return ""
    return f"{effective_acceptance(alpha, spec.n_max):.2f}"


def extra_memory(plan: Plan, speculation: Speculation) -> int | None:
    """Bytes more than the baseline, by the plan's own estimate."""
    from specllama.memory.estimate import total
    from specllama.planning import memory_inputs

    if plan.budget is None:
        return None
    q, use = plan.budget.request, plan.budget.chosen.use
    changed = plan.with_speculation(speculation)
    drafting = memory_inputs.drafting_of(speculation, changed.choice.draft, plan.user, q.machine)
    return total(q.lines(use, drafting)) - total(q.lines(use, None))


def below_table(p: ProbeResult, verbose: bool = False) -> Iterator[str]:
    """The curves, the verdict, rejected settings with reasons, the command to run."""
    for trial in p.tuned.trials:
        yield from speed_plot(trial, p.tuned.confirmations)
    yield from ngram_table(p.tuned.ngrams)
    yield from verdict_lines(p, verbose)


def verdict_lines(p: ProbeResult, verbose: bool = False) -> Iterator[str]:
    """The verdict and what it rests on."""
    from specllama.tuning.records import OPEN

    t = p.tuned
    about = f" for {length}" if (length := about_length(p)) else ""
    word = "on" if t.best else "open" if p.stopped or t.state == OPEN else "off"
    yield f"verdict  {word}{about}: {t.reason}"
    yield from expected_lines(t, verbose)
    yield from deep_lines(t)
    yield from dropped_lines(t)
    for doubt in p.planned.doubts:
        yield f"note     {doubt} (--all measures it)"
    if t.baseline is not None and (line := verify_line(t.baseline.costs)):
        yield f"verify   {line}"
    yield from draft_costs(t)
    for finding in _findings(t):
        yield f"note     {finding}"
    yield f"cost     {effort(t)}"
    if t.best or not p.stopped:
        yield f"run      {run_line(p)}"


def about_length(p: ProbeResult) -> str:
    """The lengths a verdict applies to: a long context may change it."""
    t = p.tuned
    measured = [a.measurement for a in t.confirmations] or (
        [t.baseline.measurement] if t.baseline else []
    )
    responses = [a for m in measured for a in m.responses]
    if not responses:
        return ""
    n = slots(p)
    prompts = [(len(a.prompt_ids) or a.prompt_tokens) // n for a in responses]
    low, high = min(prompts), max(prompts)
    lengths = f"{low:,}" if low == high else f"{low:,} to {high:,}"
    most = max((a.tokens - 1) // n + 1 for a in responses)
    many = f", {n} requests at a time" if n > 1 else ""
    return f"prompts of {lengths} tokens and responses of up to {most:,}{many}"


def deep_lines(t: TuningResult) -> Iterator[str]:
    """The speed-up of each setting after a long prompt."""
    for confirmation in t.confirmations:
        if (d := confirmation.deep) is not None:
            alpha = f", α={d.alpha:.2f}" if d.alpha is not None else ""
            few = " (1 response)" if d.responses == 1 else f" ({d.responses} responses)"
            yield f"deep     after {d.tokens:,} tokens: {confirmation.label} is {d.speedup:.2f}x plain decoding{alpha}{few}"


def draft_costs(t: TuningResult) -> Iterator[str]:
    """The cost of each draft's steps, and the acceptance rate at break-even."""
    from specllama.drafts.acceptance import constant_acceptance
    from specllama.tuning.records import method_label
    from specllama.tuning.speedup import break_even, fit_cost

    for trial in t.trials:
        if not trial.measurement.drafted or len(trial.steps.curve()) < 2:
            continue
        setting = method_label(trial.speculation)
        name = f" ({setting})" if len(t.trials) > 1 else ""
        fixed, per_token = fit_cost(trial.steps)
        yield (
            f"step     {fixed:.1f} ms plus {per_token:.1f} ms per drafted token; "
            f"a plain step takes {trial.plain_step.ms:.1f} ms{name}"
        )
        even = break_even(trial.steps.curve(), trial.plain_step.ms)
        tau = trial.measurement.log.tokens_per_step
        if even is None:
            yield f"needed   {setting}: no draft length breaks even, even with every drafted token accepted"
        elif tau is not None:
            have = constant_acceptance(tau, trial.speculation.n_max)
            yield f"needed   {setting}: break-even at {even:.0%} acceptance per token (measured {have:.0%})"


def _findings(t: TuningResult) -> Iterator[str]:
    from specllama.tuning.records import setting_label

    if t.baseline is not None:
        yield from t.baseline.limitations
    for trial in t.trials:
        yield from (f"{setting_label(trial.speculation)}: {x}" for x in trial.measurement.missing)
    for confirmation in t.confirmations:
        for text in (*confirmation.measurement.findings, *confirmation.measurement.missing):
            yield f"{confirmation.label}: {text}"
        if confirmation.same_text is not None and confirmation.same_text < 1:
            yield (
                f"{confirmation.label}: {confirmation.same_text:.0%} of greedy responses equal the baseline's, "
                "character by character (other batch sizes round differently)"
            )


def run_line(p: ProbeResult) -> str:
    return serve_command(p.planned, p.tuned.best.speculation if p.tuned.best else None)


def serve_command(p: PlannedProbe, best: Speculation | None) -> str:
    """`specllama serve …` with the settings that were found, and the server options used here."""
    from specllama.engine.command import size_options

    options, plan = p.options, p.plan
    words = ["specllama", "serve", str(plan.target.path), "--workload", p.task.workload]
    if options.settings.context:
        words += ["-c", str(options.settings.context)]
    if options.settings.parallel > 1:
        words += ["--parallel", str(options.settings.parallel)]
    if p.spec_options.vram is not None:
        words += ["--vram", p.spec_options.vram]
    if options.llama_server is not None:
        words += ["--llama-server", options.llama_server]
    server_arguments = plan.user.argv
    if best is None:
        words += ["--method", "none"]
    else:
        words += ["--method", ",".join(best.methods)]
        words += ["--draft", str(best.draft)] if best.draft is not None else []
        if best.uses_draft:
            words += ["--n-max", str(best.n_max), "--p-min", f"{best.p_min:g}"]
        words += ["--tune", "off"]
        for flag in size_options(plan.capabilities, best):
            server_arguments += (
                flag if plan.user.replacing(plan.capabilities, flag[0]) is None else []
            )
    return shlex.join(words + (["--", *server_arguments] if server_arguments else []))


def data(p: ProbeResult) -> dict[str, Any]:
    """The JSON of one workload."""
    confirmations = [
        confirmation_data(confirmation)
        | {"extra_memory_bytes": extra_memory(p.plan, confirmation.speculation)}
        for confirmation in p.tuned.confirmations
    ]
    return tuned_data(p.tuned) | {
        "target": str(p.plan.target.path),
        "engine": p.plan.engine.label,
        "build": p.plan.capabilities.label,
        "slots": slots(p),
        "measured_lengths": about_length(p),
        "confirmations": confirmations,
        "others": [unconfirmed_data(o) for o in unconfirmed(p.tuned, p.planned.task)],
        "doubts": list(p.planned.doubts),
        "run": run_line(p),
    }
