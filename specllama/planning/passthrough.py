"""Arguments after -- that concern speculation, as specllama's own options: `-- -md FILE` means
`--draft FILE`, `-- --spec-type T` means `--method T`."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from specllama.engine.launch_options import LaunchOptions, is_number
from specllama.engine.settings import MAX_DRAFT_TOKENS, NgramSizes, Speculation
from specllama.errors import UsageError
from specllama.planning.choose import parse_methods
from specllama.planning.spec_options import SpeculationOptions


def with_passthrough_options(
    spec_options: SpeculationOptions, user: LaunchOptions
) -> SpeculationOptions:
    """The options, overridden by the arguments after --."""
    types = user.value("--spec-type")
    if types is not None:
        spec_options = replace(spec_options, method=_method(types) or spec_options.method)
        if "draft-" not in (spec_options.method or "draft-"):
            spec_options = replace(
                spec_options, draft=None
            )  # the arguments win, and these methods need no draft
    draft = user.value("--model-draft") or user.value("-md")
    if draft is not None:
        spec_options = replace(spec_options, draft=Path(draft))
    length = user.value("--spec-draft-n-max") or user.value("--draft-max") or ""
    if length.isdecimal() and (not is_number(length) or int(length) > MAX_DRAFT_TOKENS):
        raise UsageError(
            f"{length[:20]} tokens per draft after --: the maximum is {MAX_DRAFT_TOKENS}"
        )
    if is_number(length) and int(length) > 0:
        spec_options = replace(spec_options, n_max=int(length))
    return spec_options


def _method(types: str) -> str | None:
    """The user's --spec-type as --method; None for values that only llama-server can judge."""
    if "none" in types.split(","):  # anywhere, it switches all off (common/speculative.cpp)
        return "none"
    try:
        parse_methods(types)
    except UsageError:
        return None
    return types


def ngram_sizes(usual: NgramSizes, method: str, user: LaunchOptions) -> NgramSizes:
    """The n-gram sizes without tuning: the user's own, or else the profile's."""
    n, m = f"--spec-{method}-size-n", f"--spec-{method}-size-m"
    if method == "ngram-mod":
        n, m = "--spec-ngram-mod-n-match", "--spec-ngram-mod-n-max"
    return replace(
        usual,
        n=_number(user, usual.n, n, "--spec-ngram-size-n"),
        m=_number(user, usual.m, m, "--spec-ngram-size-m"),
    )


def with_ngram_sizes(spec: Speculation | None, user: LaunchOptions) -> Speculation | None:
    """The speculation with the user's own n-gram sizes."""
    method = next((m for m in spec.methods if m.startswith("ngram-")), "") if spec else ""
    if spec is None or spec.ngram is None or not method:
        return spec
    return replace(spec, ngram=ngram_sizes(spec.ngram, method, user))


def _number(user: LaunchOptions, usual: int, *names: str) -> int:
    given = next((v for name in names if (v := user.value(name)) is not None), "")
    return int(given) if is_number(given) and int(given) > 0 else usual
