"""The server that a launchd property list starts: ProgramArguments and EnvironmentVariables
(launchd.plist(5)). There is no shell and no quoting; each argument is a string."""

from __future__ import annotations

import plistlib
import re
from collections.abc import Iterator, Mapping
from dataclasses import replace
from xml.parsers.expat import ExpatError
from xml.sax.saxutils import unescape

from specllama.errors import UsageError
from specllama.formats.found_command import XML, EnvVariable, FoundCommand
from specllama.formats.shell_commands import server, shell
from specllama.formats.shell_words import Word

_ARRAY = re.compile(r"<key>ProgramArguments</key>\s*<array>(.*?)</array>", re.S)
_SET = re.compile(r"<key>EnvironmentVariables</key>\s*<dict>(.*?)</dict>", re.S)
_STRING = re.compile(r"<string>(.*?)</string>|<string\s*/>", re.S)
_PAIR = re.compile(r"<key>(.*?)</key>\s*<string>(.*?)</string>", re.S)
_ENTITIES = {"&quot;": '"', "&apos;": "'"}


def read(text: str) -> Iterator[FoundCommand]:
    """Raises UsageError for an invalid property list."""
    try:
        job = plistlib.loads(text.encode())
    except (
        plistlib.InvalidFileException,
        ExpatError,
        ValueError,
        TypeError,
        KeyError,
        IndexError,
        AttributeError,
    ) as e:
        raise UsageError(f"not a valid property list ({e})") from None
    given = job.get("ProgramArguments") if isinstance(job, Mapping) else None
    # comments are blanked
    source = re.sub(r"<!--.*?-->", lambda m: " " * len(m[0]), text, flags=re.S)
    array = _ARRAY.search(source)
    if not isinstance(given, list) or array is None:
        return
    words = [_word(m) for m in _STRING.finditer(source, array.start(1), array.end(1))]
    if [w.text for w in words] != given:
        raise UsageError("unsupported notation in ProgramArguments")
    variables = tuple(_variables(source))
    found = server(words)
    if found is not None:
        yield replace(found, styles=(XML,) * len(found.words), variables=variables)
        return
    for word in words:  # sh -c
        start, end = word.start + len("<string>"), word.end - len("</string>")
        if text[start:end] == word.text and " " in word.text:
            for c in shell(text, start, end):
                yield replace(c, variables=(*variables, *c.variables))


def _word(m: re.Match[str]) -> Word:
    return Word(unescape(m[1] or "", _ENTITIES), m.start(), m.end())


def _variables(source: str) -> Iterator[EnvVariable]:
    found = _SET.search(source)
    for m in _PAIR.finditer(source, found.start(1), found.end(1)) if found else ():
        yield EnvVariable(m[1], unescape(m[2], _ENTITIES), m.start(1), m.end(1))
