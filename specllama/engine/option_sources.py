"""A parsed option, and the sources of options other than the command line: LLAMA_ARG_* variables
and config.ini, read as llama.cpp reads them (common/arg.cpp, b11434)."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from specllama.engine import config_ini
from specllama.engine.capabilities import Capabilities
from specllama.engine.helptext import HelpOption
from specllama.errors import UsageError

MODEL_OPTIONS = frozenset(
    ("--model", "--model-url", "--hf-repo", "--hf-file", "--docker-repo", "--models-dir")
)
# Variables that would change speculation or the number of slots without our knowledge; some are
# fatal (arg.cpp: a removed option keeps its variable and throws).
_OURS_PREFIXES = ("LLAMA_ARG_SPEC_", "LLAMA_ARG_DRAFT_")
_OURS = {"LLAMA_ARG_N_PARALLEL", "LLAMA_ARG_MODEL_DRAFT", "LLAMA_ARG_HFD_REPO"}
_INSTEAD = {
    "LLAMA_ARG_N_PARALLEL": "use --parallel N",
    "LLAMA_ARG_SPEC_TYPE": "use --method TYPE",
    "LLAMA_ARG_MODEL_DRAFT": "use --draft FILE",
    "LLAMA_ARG_SPEC_DRAFT_MODEL": "use --draft FILE",
    "LLAMA_ARG_SPEC_DRAFT_N_MAX": "use --n-max N",
}
# Variables that specllama's own --host, --port and -c read (cli/options.py).
_READ_BY_SPECLLAMA = {"LLAMA_ARG_HOST", "LLAMA_ARG_PORT", "LLAMA_ARG_CTX_SIZE"}
# In config.ini: options that our own arguments override, and those that nothing overrides.
_OVERRIDDEN = {"--model", "--host", "--port", "--parallel"}
_NOT_OVERRIDABLE = (MODEL_OPTIONS - _OVERRIDDEN) | {
    "--spec-type",
    "--spec-default",
    "--model-draft",
    "--hf-repo-draft",
}
_TRUE = {"on", "enabled", "true", "1"}  # arg.cpp, is_truthy
_FALSE = {"off", "disabled", "false", "0"}
_SHORT_VARIABLES = {"--batch-size": "LLAMA_ARG_BATCH", "--ubatch-size": "LLAMA_ARG_UBATCH"}


@dataclass(frozen=True)
class ParsedOption:
    """One option with its arguments (`words`). `source`: the variable or file it comes from, "" =
    an argument after `--`."""

    option: HelpOption
    words: tuple[str, ...]
    source: str = ""


def from_environment(
    environ: Mapping[str, str], caps: Capabilities
) -> tuple[list[ParsedOption], dict[str, str]]:
    """(options from the variables that llama-server would read; the variables to hide from it,
    each with its reason)."""
    found: list[ParsedOption] = []
    ignored: dict[str, str] = {}
    by_variable = _by_variable(caps)
    for name in sorted(n for n in environ if n.startswith("LLAMA_ARG_")):
        value = environ[name].strip()
        option = by_variable.get(name)
        names = set(option.names) if option is not None else set()
        if name in _OURS or name.startswith(_OURS_PREFIXES):
            ignored[name] = _INSTEAD.get(name, "specllama sets the speculation options")
        elif name in _READ_BY_SPECLLAMA:
            continue
        elif names & MODEL_OPTIONS:
            ignored[name] = "the model is specllama's first argument"
        elif not value:
            ignored[name] = "empty"  # an error in llama-server for most options
        elif option is not None and not option.removed:
            words = _words(option, name, value)
            if words:
                found.append(ParsedOption(option, words, name))
        else:
            ignored[name] = "not supported by this build"
    return found, ignored


def from_config_ini(environ: Mapping[str, str], caps: Capabilities) -> Iterator[ParsedOption]:
    """Options from config.ini, if this build reads it (the embedded engine does not). Raises
    UsageError for those that no argument overrides: speculation, which would leave no baseline
    to measure, and another model."""
    if caps.at_least < config_ini.FIRST_BUILD or not _lists_variables(caps):
        return
    by_variable = _by_variable(caps)
    for key, value, file in config_ini.entries(environ):
        option = by_variable.get(key) or caps.find(f"--{key}") or caps.find(f"-{key}")
        if option is None or not value or _OVERRIDDEN & set(option.names):
            continue
        words = _words(option, str(file), value, off=f"--{key}" in option.opposites)
        if words and not (_NOT_OVERRIDABLE & set(option.names) and words[-1] != "none"):
            yield ParsedOption(option, words, str(file))
        elif words:
            raise UsageError(
                f"{file} sets {key}, which applies to every server and cannot be overridden",
                "Remove it from that file.",
            )


def _lists_variables(caps: Capabilities) -> bool:
    """Whether the help lists variables: the embedded engine's does not."""
    return any(o.env.startswith("LLAMA_ARG_") for o in caps.options)


def _by_variable(caps: Capabilities) -> dict[str, HelpOption]:
    """Variable → its option, with the LLAMA_ARG_NO_ form of switches. For the embedded engine,
    which lists none, by llama.cpp's naming convention."""
    listed = _lists_variables(caps)
    out: dict[str, HelpOption] = {}
    for option in caps.options:
        longest = max(
            (n for n in option.names if n.startswith("--") and not n.startswith("--no-")),
            key=len,
            default="",
        )
        conventional = "LLAMA_ARG_" + longest[2:].replace("-", "_").upper()
        name = option.env if listed else _SHORT_VARIABLES.get(longest, conventional)
        if name:
            out[name] = option
            if not option.hint:
                out[name.replace("LLAMA_ARG_", "LLAMA_ARG_NO_")] = option
    return out


def _words(option: HelpOption, source: str, value: str, off: bool = False) -> tuple[str, ...]:
    """The arguments equivalent to a variable (or a line of config.ini), () if it has no effect.
    `off`: it names the option's opposite."""
    if option.arity:
        long = next((n for n in reversed(option.names) if n.startswith("--")), option.names[0])
        return (long, value) if option.arity == 1 else ()
    opposite = option.opposites
    negated = source.startswith("LLAMA_ARG_NO_") and source != option.env  # by any value
    if not negated and value not in _TRUE | _FALSE:
        raise UsageError(f"{source}: {value!r} is neither on nor off", "Correct or unset it.")
    positive = [n for n in option.names if n not in opposite]
    if not positive:  # only --no-mmap, in old builds
        return option.names[-1:] if value in _TRUE else ()
    if negated or off == (value in _TRUE):
        return tuple(sorted(opposite, key=len)[-1:])
    return tuple(positive[-1:])
