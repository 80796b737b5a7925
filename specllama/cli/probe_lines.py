"""What probe shows: the table of arms, the curve, the verdict, the line to run."""

from __future__ import annotations

import shlex
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from specllama.cli.render import mib
from specllama.cli.tuning_lines import arm_data, tuned_data

if TYPE_CHECKING:
    from rich.table import Table

    from specllama.planning.plan import Plan
    from specllama.serving.probe import Probed
    from specllama.tuning.arms import Arm, Tuned
    from specllama.tuning.speedup import Interval

_BAR = 40  # characters for a speed-up of twice the largest shown


def title(p: Probed) -> str:
    early = "" if p.tuned.complete else " (stopped early: partial results)"
    return f"{p.plan.target.path.name}, {p.tuned.workload}{early}"


def table(p: Probed) -> Table:
    """One row per arm, the baseline first."""
    from rich.table import Table

    names = ("arm", "α", "α·K", "τ", "tok/s", "speed-up", "first token", "draft/verify", "memory")
    out = Table(box=None, pad_edge=False, header_style="bold")
    for name in names:
        out.add_column(name, justify="left" if name == "arm" else "right")
    for cells in rows(p):
        out.add_row(*cells)
    return out


def rows(p: Probed) -> Iterator[tuple[str, ...]]:
    """The cells of the table, as text."""
    for arm in (p.tuned.baseline, *p.tuned.arms):
        m = arm.measurement
        against = (arm.against or p.tuned.baseline.measurement).first_ms
        tau = m.log.tokens_per_step
        share = arm.split.draft_share if arm.split else None
        extra = extra_memory(p.plan, arm)
        yield (
            arm.label,
            f"{m.alpha:.2f}" if m.alpha is not None else "",
            _alpha_k(arm),
            f"{tau:.2f}" if tau else "",
            f"{m.tokens_per_second:.1f}",
            interval(arm.speedup) if arm.speculation else "1x",
            f"{m.first_ms - against:+.0f} ms" if arm.speculation else f"{m.first_ms:.0f} ms",
            f"{share:.0%}/{1 - share:.0%}" if share is not None else "",
            f"+{mib(extra)}" if extra else "",
        )


def _alpha_k(arm: Arm) -> str:
    """α·K: a popular sketch, shown beside what is measured."""
    from specllama.tuning.speedup import effective_acceptance

    spec, alpha = arm.speculation, arm.measurement.alpha
    if spec is None or alpha is None or not spec.uses_draft:
        return ""
    return f"{effective_acceptance(alpha, spec.n_max):.2f}"


def interval(i: Interval | None) -> str:
    return f"{i.value:.2f}x ({i.low:.2f} to {i.high:.2f})" if i else ""


def extra_memory(plan: Plan, arm: Arm) -> int | None:
    """Bytes beyond the plain server, by the plan's own sum."""
    from specllama.memory.estimate import total
    from specllama.planning import needs

    if plan.budget is None or arm.speculation is None:
        return None
    q, use = plan.budget.question, plan.budget.chosen.use
    there = plan.speculating(arm.speculation)
    drafting = needs.drafting_of(arm.speculation, there.choice.draft, plan.user)
    return total(q.lines(use, drafting)) - total(q.lines(use, None))


def plot(t: Tuned) -> Iterator[str]:
    """Speed-up against K: a bar for what is predicted, a mark for what was measured."""
    for name, curve in t.curves.items():
        yield f"speed-up by draft length K, {name} (│ = plain, ● = measured)"
        measured = {
            a.speculation.n_max: a.speedup.value
            for a in t.arms
            if a.speculation and a.speedup and name in a.label and not a.speculation.p_min
        }
        most = max([v.value for v in curve.values()] + list(measured.values()) + [1.2])
        for k in sorted(set(curve) | set(measured)):
            yield _bar(k, curve.get(k), measured.get(k), most)


def _bar(k: int, predicted: Interval | None, measured: float | None, most: float) -> str:
    def at(value: float) -> int:
        return min(_BAR - 1, max(0, round(value / most * (_BAR - 1))))

    cells = ["█" if predicted and i <= at(predicted.value) else " " for i in range(_BAR)]
    cells[at(1.0)] = "│"
    if measured is not None:
        cells[at(measured)] = "●"
    said = f"{predicted.value:.2f}x predicted" if predicted else ""
    if measured is not None:
        said += f"{', ' if said else ''}{measured:.2f}x measured"
    return f"  K={k:<2} {''.join(cells)} {said}"


def verdict(p: Probed) -> Iterator[str]:
    """The answer, what was dropped and why, and the line to run."""
    t = p.tuned
    yield f"verdict  {'on' if t.best else 'off'}: {t.reason}"
    for d in t.dropped:
        if f"{d.what}: {d.why}" not in t.reason:
            yield f"not used {d.what}: {d.why}"
    for doubt in p.planned.doubts:
        yield f"note     {doubt} (--all measures it)"
    yield from costs(t)
    for finding in _findings(t):
        yield f"note     {finding}"
    if len(t.arms) > 1:
        yield f"bound    {t.upper:.2f}x if the best arm were used for each prompt"
    yield f"cost     {t.launches} launches, {t.seconds:.0f} s"
    yield f"run      {run_line(p)}"


def costs(t: Tuned) -> Iterator[str]:
    """What a step costs, the acceptance that would break even, and what combining promises."""
    from specllama.tuning.speedup import break_even, combined, constant_acceptance, fit_cost

    probed = max((a for a in t.arms if a.measurement.lengths.steps), key=_k, default=None)
    if probed is not None and (base := (probed.against or t.baseline.measurement).cost):
        steps = probed.measurement.all_steps
        fixed, per_token, _ = fit_cost(steps)
        yield f"step     {fixed:.1f} ms and {per_token:.1f} ms per drafted token; plain {base.ms:.1f} ms"
        even = break_even(probed.measurement.curve(), base.ms)
        tau = probed.measurement.log.tokens_per_step
        if even is not None and tau is not None:
            have = constant_acceptance(tau, _k(probed))
            yield f"even     at an acceptance of {even:.2f} per position; measured {have:.2f}"
        elif even is None:
            yield "even     never: no length pays even if every drafted token is accepted"
    copies = next((a for a in t.arms if a.speculation and not a.speculation.uses_draft), None)
    drafts = max(
        (a for a in t.arms if a.speculation and a.speculation.uses_draft and a.speedup),
        key=lambda a: a.speedup.value if a.speedup else 0,
        default=None,
    )
    if copies is not None and drafts is not None and copies.measurement.log.drafting:
        log, own = copies.measurement.log, drafts.measurement.log
        found = log.drafting
        share = len(found) / len(log.steps)
        copied = (
            1 + sum(s.accepted for s in found) / len(found),
            sum(s.ms for s in found) / len(found),
        )
        drafted = (own.tokens / max(1, len(own.steps)), own.ms / max(1, len(own.steps)))
        plain = t.baseline.measurement.cost
        if plain is not None:
            gain = combined(share, copied, drafted) * plain.ms
            yield f"together {copies.label} and {drafts.label}: about {gain:.2f}x expected"


def _k(arm: Arm) -> int:
    return arm.speculation.n_max if arm.speculation else 0


def _findings(t: Tuned) -> Iterator[str]:
    for arm in t.arms:
        for text in (*arm.measurement.findings, *arm.measurement.missing):
            yield f"{arm.label}: {text}"
        if arm.same_text is not None and arm.same_text < 1:
            yield (
                f"{arm.label}: {arm.same_text:.0%} of greedy answers are the baseline's, letter by "
                "letter (other batch shapes round differently)"
            )


def run_line(p: Probed) -> str:
    """`specllama serve …` with what was found, and what was asked of the server here too."""
    from specllama.engine.command import ngram_flags

    asked, plan = p.planned.asked, p.plan
    words = ["specllama", "serve", str(plan.target.path), "--workload", p.tuned.workload]
    if asked.settings.context:
        words += ["-c", str(asked.settings.context)]
    if asked.settings.parallel > 1:
        words += ["--parallel", str(asked.settings.parallel)]
    if p.planned.wish.vram is not None:
        words += ["--vram", p.planned.wish.vram]
    if asked.llama_server is not None:
        words += ["--llama-server", asked.llama_server]
    theirs = plan.user.argv
    best = p.tuned.best.speculation if p.tuned.best else None
    if best is None:
        words += ["--method", "none"]
    else:
        words += ["--method", ",".join(best.methods)]
        words += ["--draft", str(best.draft)] if best.draft is not None else []
        if best.uses_draft:
            words += ["--n-max", str(best.n_max), "--p-min", f"{best.p_min:g}"]
        words += ["--tune", "off"]
        for method in best.methods:
            for flag in ngram_flags(plan.capabilities, best, method):
                theirs += flag if plan.user.replacing(plan.capabilities, flag[0]) is None else []
    return shlex.join(words + (["--", *theirs] if theirs else []))


def data(p: Probed) -> dict[str, Any]:
    """The JSON of one workload."""
    out = tuned_data(p.tuned)
    arms = []
    for arm in p.tuned.arms:
        share = arm.split.draft_share if arm.split else None
        extra = extra_memory(p.plan, arm)
        arms.append(arm_data(arm) | {"draft_share": share, "extra_memory_bytes": extra})
    return out | {
        "target": str(p.plan.target.path),
        "engine": p.plan.engine.label,
        "build": p.plan.capabilities.label,
        "arms": arms,
        "doubts": list(p.planned.doubts),
        "run": run_line(p),
    }
