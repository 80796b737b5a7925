"""Reads the files that `plan` writes back into an argv. Each reader follows its program's own
rules, not our writer."""

from __future__ import annotations

import plistlib
import re
import shlex
from pathlib import Path
from typing import Any

import yaml

from specllama.engine.capabilities import Capabilities


def shell(text: str) -> list[str]:
    """The last command of a script for sh."""
    lines = [x for x in text.splitlines() if not x.startswith(("#", "unset"))]
    return shlex.split("\n".join(lines).replace("\\\n", " "))[1:]


def powershell(text: str) -> list[str]:
    """about_Quoting_Rules: in single quotes a quote is doubled (any of five characters is one), and
    no other character is special; a backtick at the end of a line continues it."""
    quotes = "'\u2018\u2019\u201a\u201b"
    code = "\n".join(x for x in text.removeprefix("\ufeff").split("\n") if not x.startswith("#"))
    code = code[code.index("& ") + 2 :].replace("`\n", " ")
    words, at = [], 0
    while at < len(code):
        if code[at].isspace():
            at += 1
        elif code[at] in quotes:
            word, at = "", at + 1
            while True:
                if code[at] in quotes:
                    if at + 1 < len(code) and code[at + 1] in quotes:
                        at += 1
                    else:
                        break
                word, at = word + code[at], at + 1
            words.append(word)
            at += 1
        else:
            end = re.compile(r"\s|$").search(code, at)
            assert end is not None
            assert not set(code[at : end.start()]) & set("$`\"'(){};,|&<>@#" + quotes)
            words.append(code[at : end.start()])
            at = end.start()
    return words


def systemd(text: str) -> list[str]:
    """ExecStart= by systemd.service(5) and systemd.syntax(7): C escapes in double quotes, specifiers,
    variables. `%d` and an unquoted word fail."""
    found = re.search(r"^ExecStart=((?:.*\\\n)*.*)$", text, re.M)
    assert found is not None
    return systemd_words(found[1])


def systemd_words(line: str) -> list[str]:
    line = line.replace("\\\n", " ")
    words = re.findall(r'"((?:[^"\\]|\\.)*)"', line)
    assert re.fullmatch(r'("((?:[^"\\]|\\.)*)"\s*)+', line)
    return [_unescaped(w, program=i == 0) for i, w in enumerate(words)]


def _unescaped(word: str, program: bool) -> str:
    def escape(m: re.Match[str]) -> str:
        return chr(int(m[1][1:], 16)) if m[1][0] == "x" else m[1]

    word = re.sub(r"\\(x[0-9a-f]{2}|[\\\"])", escape, word)
    assert not re.search(r"(?<!%)%(%%)*(?!%)", word), "a specifier"
    if not program:
        assert not re.search(r"(?<!\$)\$(\$\$)*(?!\$)", word), "a variable"
        word = word.replace("$$", "$")
    return word.replace("%%", "%")


def launchd(text: str) -> list[str]:
    return list(plistlib.loads(text.encode())["ProgramArguments"])


def llama_swap(text: str, port: int) -> list[str]:
    """internal/config/commands.go (v250): lines of comments go, then POSIX splitting."""
    models = yaml.safe_load(text)["models"]
    assert len(models) == 1
    cmd = next(iter(models.values()))["cmd"]
    lines = [x for x in cmd.splitlines() if not x.lstrip().startswith("#")]
    return [w.replace("${PORT}", str(port)) for w in shlex.split("\n".join(lines))]


def preset(text: str, caps: Capabilities) -> tuple[str, dict[str, str]]:
    """(section, option → value) by common/preset.cpp (b11434). Options by their first spelling."""
    section, found = "", {}
    for line in re.split(r"\r\n|\r|\n", text):
        if not line.strip() or line.lstrip()[0] in "#;":
            continue
        if line.startswith("["):
            section = line[1 : line.index("]")].lstrip()
            continue
        m = re.fullmatch(r"([A-Za-z_][A-Za-z0-9_.-]*)[ \t]*=[ \t]*([^#;]*).*", line)
        assert m is not None, line
        option = caps.find(f"--{m[1]}")
        assert option is not None, m[1]
        assert option.names[0] not in found
        found[option.names[0]] = m[2].rstrip()
    return section, found


def compose(text: str) -> dict[str, Any]:
    """The one service, `$$` read as `$`; a variable elsewhere than in the key fails."""
    services = yaml.safe_load(text)["services"]
    assert len(services) == 1
    service: dict[str, Any] = next(iter(services.values()))
    service["command"] = [_dollars(w) for w in service["command"]]
    for volume in service["volumes"]:
        volume["source"] = _dollars(volume["source"])
    return service


def kubernetes(text: str) -> dict[str, Any]:
    """The container of the Deployment, `$$` read as `$`."""
    deployment, _ = yaml.safe_load_all(text)
    (found,) = deployment["spec"]["template"]["spec"]["containers"]
    container: dict[str, Any] = found
    container["args"] = [_dollars(w) for w in container["args"]]
    return container


def _dollars(text: str) -> str:
    assert not re.search(r"(?<!\$)\$(\$\$)*(?!\$)", text), "a variable"
    return text.replace("$$", "$")


def host_paths(words: list[str], folders: dict[str, str]) -> list[str]:
    """Paths in a container as paths on the host. `folders`: container → host."""
    out = []
    for word in words:
        mount = next((i for i in sorted(folders, reverse=True) if word.startswith(i + "/")), None)
        out.append(str(Path(folders[mount]) / word[len(mount) + 1 :]) if mount else word)
    return out
