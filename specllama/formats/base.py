"""Input and output of every format."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from specllama.errors import UsageError

if TYPE_CHECKING:  # the names of the formats are in `specllama --help`
    from specllama.planning.plan import Plan
    from specllama.tuning.results import Result


MADE = "made by `specllama plan`"  # marks files that may be overwritten


class FormatError(UsageError):
    """A format cannot express a decision; the message is the reason."""


@dataclass(frozen=True)
class Deployment:
    """Input for engines that do not read GGUF files. Hugging Face repositories as OWNER/NAME, None =
    taken from the file's metadata; `gpus` on each of `nodes` machines."""

    target_repo: str | None = None
    draft_repo: str | None = None
    nodes: int = 1
    gpus: int = 1


@dataclass(frozen=True)
class Decision:
    """A plan with its comments. `reasons`: one line for each decision; `data`: the same for
    programs. `measured`: the saved result that the plan follows, None = nothing was measured."""

    plan: Plan
    reasons: tuple[str, ...] = ()
    data: Mapping[str, Any] = field(default_factory=dict)
    measured: Result | None = None
    deployment: Deployment = field(default_factory=Deployment)

    @property
    def comments(self) -> tuple[str, ...]:
        """The first lines of a file."""
        return (MADE, *self.reasons)

    @property
    def name(self) -> str:
        """The target's name in a form valid in every format: lower-case letters, digits and hyphens,
        a letter first, at most 50 characters (Kubernetes allows 63 including suffixes)."""
        target = self.plan.target
        words = re.findall(r"[a-z0-9]+", (target.called or target.path.stem).lower())
        name = "-".join(words)[:48].strip("-") or "model"
        return f"m-{name}" if name[0].isdigit() else name


@dataclass(frozen=True)
class WrittenFiles:
    """The text of a file, with a final line end. `notes`: what a user has to know or do, one line
    each; printed as well."""

    text: str
    notes: tuple[str, ...] = ()


def commented(lines: Sequence[str], mark: str = "#") -> str:
    """Lines as comments."""
    return "".join(f"{mark} {one_line(line)}\n" for line in lines)


def one_line(text: str) -> str:
    """A text fit for a comment: line breaks (in a file's name) and control characters, which some
    parsers reject anywhere, become spaces."""
    return " ".join("".join(c if c.isprintable() else " " for c in text).split())


def yaml_text(data: Any) -> str:
    """`data` as YAML in its own order, without line wrapping."""
    import yaml

    class UnaliasedDumper(yaml.SafeDumper):
        def ignore_aliases(self, data: Any) -> bool:
            return True

    options: dict[str, Any] = {"sort_keys": False, "allow_unicode": True, "width": 2**30}
    return str(yaml.dump(data, Dumper=UnaliasedDumper, **options))
