"""What every format is given, and what it gives back."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from specllama.errors import UsageError

if TYPE_CHECKING:  # the names of the formats are in `specllama --help`
    from specllama.planning.plan import Plan
    from specllama.tuning.results import Result


MADE = "made by `specllama plan`"  # in every file, so that it is known as one and replaced


class FormatError(UsageError):
    """A format that cannot say a decision; the message is one sentence with the reason."""


@dataclass(frozen=True)
class Deployment:
    """What engines that read no GGUF files need to know besides. Repositories on Hugging Face as
    OWNER/NAME, None = by the file's own word; `gpus` of each of `nodes` machines."""

    target_repo: str | None = None
    draft_repo: str | None = None
    nodes: int = 1
    gpus: int = 1


@dataclass(frozen=True)
class Decision:
    """A plan and what belongs into its comments. `reasons`: what was decided and why, one line
    each; `data`: the same for programs. `measured`: the earlier result that the plan follows,
    None = nothing was measured."""

    plan: Plan
    reasons: tuple[str, ...] = ()
    data: Mapping[str, Any] = field(default_factory=dict)
    measured: Result | None = None
    deployment: Deployment = field(default_factory=Deployment)

    @property
    def comments(self) -> tuple[str, ...]:
        """What stands at the head of a file."""
        return (MADE, *self.reasons)

    @property
    def name(self) -> str:
        """The target's name as every format takes it: letters, digits and hyphens, lower case,
        a letter first, at most 50 (a Kubernetes name has 63 with what is put behind it)."""
        target = self.plan.target
        words = re.findall(r"[a-z0-9]+", (target.called or target.path.stem).lower())
        name = "-".join(words)[:48].strip("-") or "model"
        return f"m-{name}" if name[0].isdigit() else name


@dataclass(frozen=True)
class WrittenFiles:
    """The text of a file, its last line ended. `notes`: what a user has to know or do besides,
    one line each; they are shown, and are not part of the text."""

    text: str
    notes: tuple[str, ...] = ()


def commented(lines: Sequence[str], mark: str = "#") -> str:
    """Lines as comments."""
    return "".join(f"{mark} {one_line(line)}\n" for line in lines)


def one_line(text: str) -> str:
    """A text as a comment can hold it: what would end one (a line break in a file's name) and what
    some readers refuse anywhere (control characters) is a blank."""
    return " ".join("".join(c if c.isprintable() else " " for c in text).split())


def yaml_text(data: Any) -> str:
    """`data` as YAML in its own order, lines as long as they are."""
    import yaml

    class UnaliasedDumper(yaml.SafeDumper):
        def ignore_aliases(self, data: Any) -> bool:
            return True

    options: dict[str, Any] = {"sort_keys": False, "allow_unicode": True, "width": 2**30}
    return str(yaml.dump(data, Dumper=UnaliasedDumper, **options))
