"""probe's output below its table: the curves, the verdict, the command to run."""

from __future__ import annotations

import shlex
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from specllama.cli.compared import unconfirmed, unconfirmed_data
from specllama.cli.probe_plots import ngram_table, speed_plot, verify_line
from specllama.cli.probe_table import extra_memory, slots
from specllama.cli.tuning_lines import (
    confirmation_data,
    dropped_lines,
    effort,
    expected_lines,
    tuned_data,
)

if TYPE_CHECKING:
    from specllama.engine.settings import Speculation
    from specllama.serving.probe import PlannedProbe, ProbeResult
    from specllama.tuning.records import TuningResult


def title(p: ProbeResult) -> str:
    from specllama.tuning.records import OPEN

    undecided = "stopped early, no verdict yet" if p.stopped else "undecided when the budget ended"
    early = f" ({undecided})" if p.tuned.state == OPEN else ""
    file = p.planned.options.prompts_file
    prompts = f", prompts of {file.name}" if file is not None else ""
    return f"{p.plan.target.title}, {p.tuned.workload}{prompts}{early}"


def below_table(p: ProbeResult, verbose: bool = False) -> Iterator[str]:
    """The curves, the verdict, rejected settings with reasons, the command to run."""
    for trial in p.tuned.trials:
        yield from speed_plot(trial, p.tuned.confirmations)
    yield from ngram_table(p.tuned.ngrams)
    yield from verdict_lines(p, verbose)


def verdict_lines(p: ProbeResult, verbose: bool = False) -> Iterator[str]:
    """The verdict and what it rests on."""
    from specllama.tuning.records import OPEN
    from specllama.tuning.results import UNSAVED

    t = p.tuned
    about = f" for {length}" if (length := about_length(p)) else ""
    word = "on" if t.best else "open" if p.stopped or t.state == OPEN else "off"
    yield f"verdict  {word}{about}: {t.reason}"
    yield from expected_lines(t, verbose)
    yield from deep_lines(t)
    yield from dropped_lines(t)
    if p.plan.choice.speculation is None:
        yield f"note     {p.plan.choice.reason}"
    for doubt in p.planned.doubts:
        yield f"note     {doubt} (--all measures it)"
    if t.baseline is not None and (line := verify_line(t.baseline.costs)):
        yield f"verify   {line}"
    yield from draft_costs(t)
    for finding in _findings(t):
        yield f"note     {finding}"
    if p.unsaved:
        yield f"note     {UNSAVED}"
    yield f"cost     {effort(t)}"
    if t.best or not p.stopped:
        yield f"run      {run_line(p)}"


def about_length(p: ProbeResult) -> str:
    """The lengths a verdict applies to: a long context may change it."""
    t = p.tuned
    n = slots(p)
    measured = [a.measurement for a in t.confirmations]
    if not measured:  # then the prediction decided (trials send one request at a time)
        measured = [x.measurement for x in t.trials if n == 1]
        measured += [t.baseline.measurement] if t.baseline else []
    responses = [a for m in measured for a in m.responses]
    if not responses:
        return ""
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
            yield f"long     after a prompt of {d.tokens:,} tokens: {confirmation.label} is {d.speedup:.2f}x plain decoding{alpha}{few}"


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
            f"a plain step took {trial.plain_step.ms:.1f} ms in the same launch{name}"
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
    """The command that serves the result; one that goes on measuring if it is open."""
    from specllama.tuning.records import OPEN

    t = p.tuned
    undecided = t.best is None and t.state == OPEN
    return serve_command(p.planned, t.best.speculation if t.best else None, undecided)


def serve_command(p: PlannedProbe, best: Speculation | None, undecided: bool = False) -> str:
    """`specllama serve …` with the settings that were found, and the server options used here.
    `undecided`: with the user's own choice, so that serve goes on with the open result."""
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
    if undecided:
        given = {
            "--draft": p.spec_options.draft,
            "--method": p.spec_options.method,
            "--prompts": options.prompts_file,
        }
        words += [word for name, x in given.items() if x is not None for word in (name, str(x))]
    elif best is None:
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
