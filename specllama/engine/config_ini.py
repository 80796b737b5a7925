"""llama.cpp's own config.ini: options that apply to every server of this user (from b10405;
common/arg.cpp, common_params_apply_system_config; common/preset.cpp)."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path

FIRST_BUILD = 10405
# Sections that apply to every server; the others are a router's models.
_EVERYWHERE, _DEFAULT = ("*",), ("", "default")


def paths(environ: Mapping[str, str]) -> list[Path]:
    """Where llama.cpp looks; later files override earlier ones."""
    if sys.platform == "win32":
        roots = [environ.get("PROGRAMDATA"), environ.get("APPDATA")]
    else:
        home = environ.get("HOME")
        roots = ["/etc", environ.get("XDG_CONFIG_HOME") or (f"{home}/.config" if home else None)]
    return [Path(root) / "llama.cpp" / "config.ini" for root in roots if root]


def entries(environ: Mapping[str, str]) -> Iterator[tuple[str, str, Path]]:
    """(key, value, file) of every setting, in the order it is applied. An unreadable file is
    skipped: llama-server reports it in its log."""
    for path in paths(environ):
        try:
            text = path.read_text(encoding="utf-8")
        except (OSError, ValueError):
            continue
        found = list(parse(text))
        for names in (_EVERYWHERE, _DEFAULT):  # whatever their order in the file
            yield from ((key, value, path) for section, key, value in found if section in names)


def parse(text: str) -> Iterator[tuple[str, str, str]]:
    """(section, key, value) of each line; # and ; start a comment anywhere."""
    section = ""
    for line in text.splitlines():
        stripped = re.split("[;#]", line, maxsplit=1)[0].rstrip()
        if header := re.fullmatch(r"\[([^\]]+)\]", stripped):
            section = header[1].lstrip()
        elif entry := re.fullmatch(r"([A-Za-z_][\w.-]*)[ \t]*=[ \t]*(.*)", stripped):
            yield section, entry[1], entry[2]
