"""User errors, each with its exit code and message.

The commands run in this process and start nothing, because errors are found earlier. `{…}` in a
row names a file that the fixture creates.
"""

from __future__ import annotations

import json
import os
import shlex
from collections.abc import Iterator
from pathlib import Path, PurePath, PurePosixPath, PureWindowsPath

import pytest

from specllama.cli.app import run
from tests.edited import edited
from tests.support import MODELS, script

TARGET, DRAFT = MODELS / "target.gguf", MODELS / "draft.gguf"
LONG = "9" * 5000

FILES: dict[str, bytes] = {
    "empty.gguf": b"",
    "page.gguf": b"<!doctype html><title>x",
    "error.gguf": b'{"error":"Entry not found"}',
    "pointer.gguf": b"version https://git-lfs.github.com/spec/v1\noid sha256:0\n",
    "zip.gguf": b"PK\x03\x04" + bytes(60),
    "magic.gguf": b"GGUF",
    "old.gguf": b"GGUF\x01\0\0\0" + bytes(60),
    "huge.gguf": b"GGUF\x03\0\0\0" + b"\xff" * 16 + bytes(60),
    "cut.gguf": TARGET.read_bytes()[:5000],
    "half.gguf": TARGET.read_bytes()[:2_000_000],
    "none.txt": b"",
    "bom.txt": b"\xef\xbb\xbf\n",
    "parts.txt": b"---\n\n---\n",
    "utf16.txt": "a question".encode("utf-16"),
    "long.txt": b"word\n" * (1 << 20),
    "word.jsonl": b'{"prompt": "x"}\noops\n',
    "deep.jsonl": b'{"prompt": "x", "y": ' + b"[" * 100_000,
    "nested.jsonl": b'{"prompt": "x", "y": ' + b"[" * 400 + b"]" * 400 + b"}",
    "nan.jsonl": b'{"prompt": "x", "y": NaN}',
    "digits.jsonl": b'{"prompt": "x", "y": ' + b"9" * 5000 + b"}",
    "surrogate.jsonl": b'{"prompt": "\\ud800"}',
    "array.json": b'[\n{"prompt": "x"}\n]',
    "role.jsonl": b'{"messages": [{"role": 1, "content": "x"}]}',
    "roles.jsonl": b'{"messages": [{"role": ["user"], "content": "x"}]}',
    "content.jsonl": b'{"messages": [{"role": "user", "content": {"a": 1}}]}',
    "null.jsonl": b'{"messages": [null]}',
    "object.jsonl": b'{"messages": {"role": "user"}}',
    "number.jsonl": b'{"prompt": 7}',
    "answers.jsonl": b'{"messages": [{"role": "assistant", "content": "x"}]}',
    "question.jsonl": b'{"messages": [{"role": "user", "content": "x"}]}',
    "calls.jsonl": b'{"messages": [{"role": "user", "content": "x"}, '
    b'{"role": "assistant", "tool_calls": [1]}]}',
    "wide.jsonl": b'{"prompt": "' + b"x" * (5 << 20) + b'"}',
    "key.txt": "schlüssel\n".encode(),
    "binary.txt": b"\xff\xfe\x00",
}  # fmt: skip

# arguments | exit code | message. T: the target; D: its draft; V: a GPU and an engine, so that
# neither is looked up.
ROWS = r"""
# ---- words
                                         | 0 | Usage
help                                     | 0 | Usage
help serve                               | 0 | Usage: specllama serve
bogus                                    | 2 | No such command
T                                        | 2 | To serve it: `specllama serve
owner/repo:Q4_K_M                        | 2 | To serve it: `specllama serve owner/repo:Q4_K_M`
serve                                    | 2 | Missing argument 'MODEL'
serve -- -t 1 T                          | 2 | It goes before --: `specllama serve MODEL -- …`.
lint llama-server -m T -md D             | 2 | Put the command in quotes, or after --
lint llama-server T                      | 2 | Put the command in quotes, or after --
serve T extra V                          | 2 | unexpected argument: extra  
serve T V --bogus                        | 2 | No such option
serve T V --port                         | 2 | requires an argument
serve ''                                 | 2 | empty argument after serve
serve T V --draft ''                     | 2 | empty value for --draft
serve T V --host ''                      | 2 | empty value for --host
serve T V --host=                        | 2 | empty value for --host
serve T V --workload ''                  | 2 | empty value for --workload
memory T V --method ''                   | 2 | empty value for --method
inspect ''                               | 2 | empty argument after inspect
results ''                               | 2 | empty argument after results
inspect {nul}                            | 2 | contains a NUL
serve T V -- --alias {nul}               | 2 | contains a NUL
demo extra                               | 2 | unexpected argument
demo -- -c 1                             | 2 | no arguments after --
inspect T -- -c 1                        | 2 | no arguments after --
results nope.gguf                        | 2 | nope.gguf: no such file
results nope.gguf --clear                | 2 | nope.gguf: no such file
results nope.gguf --json                 | 2 | nope.gguf: no such file
results -- x                             | 2 | no arguments after --
pick-draft T V -- x                      | 2 | no arguments after --
# ---- model files
inspect {here}                           | 2 | is a folder
inspect .                                | 2 | is a folder
serve . V                                | 2 | is a folder
serve / V                                | 2 | is a folder
memory / V                               | 2 | is a folder
pick-draft . V                           | 2 | is a folder
probe . V                                | 2 | is a folder
serve T V --draft .                      | 2 | is a folder
inspect ~nouser                          | 2 | no such file
serve ~nouser/x.gguf V                   | 2 | no such file
inspect {long}                           | 2 | cannot be read (File name too long)
serve {long} V                           | 2 | cannot be read (File name too long)
serve {target}/x V                       | 2 | cannot be read (Not a directory)
inspect {loop}                           | 2 | symbolic links
serve T V --draft {loop}                 | 2 | symbolic links
inspect {fifo}                           | 2 | is not a regular file
serve {fifo} V                           | 2 | is not a regular file
memory T V --draft {fifo}                | 2 | is not a regular file
inspect /dev/null                        | 2 | is not a regular file
serve {nope} V                           | 2 | no such file
serve {empty.gguf} V                     | 2 | the file is empty (0 bytes)
pick-draft {empty.gguf} V                | 2 | the file is empty (0 bytes)
probe {page.gguf} V                      | 2 | web page saved as .gguf
serve T V --draft {page.gguf}            | 2 | web page saved as .gguf
inspect {error.gguf}                     | 2 | not a GGUF file
inspect {pointer.gguf}                   | 2 | Git LFS pointer
inspect {zip.gguf}                       | 2 | not a GGUF file
inspect {magic.gguf}                     | 2 | ends within its header
inspect {old.gguf}                       | 2 | version 1
inspect {huge.gguf}                      | 2 | {huge.gguf}
memory {cut.gguf} V                      | 2 | ends within its header
serve {half.gguf} V                      | 2 | truncated
serve {part-00001-of-00002.gguf} V       | 2 | parts of this model are missing
serve T V --draft T                      | 2 | target itself
# ---- numbers
serve T V --n-max nan                    | 2 | --n-max nan
serve T V --n-max 0                      | 2 | --n-max 0: must be an integer from 1 to 512
serve T V --n-max 20000000               | 2 | --n-max 20000000
serve T V --n-max 100000000000           | 2 | --n-max 100000000000
serve T V --p-min nan                    | 2 | --p-min nan: must be a number from 0 to 1
serve T V --p-min inf                    | 2 | --p-min inf
serve T V --p-min -0.1                   | 2 | --p-min -0.1
serve T V --budget nan                   | 2 | --budget nan
serve T V --budget inf                   | 2 | --budget inf
serve T V --budget 100000000000          | 2 | --budget 100000000000
serve T V --context nan                  | 2 | --context nan
serve T V --context -1                   | 2 | --context -1
serve T V --context 100000000000         | 2 | --context 100000000000
serve T V --parallel 0                   | 2 | --parallel 0: must be an integer, 1 or more
serve T V --parallel 100000000000        | 2 | at most 256 slots
serve T V --port -1                      | 2 | --port -1
serve T V --port 70000                   | 2 | --port 70000
serve T V --port http                    | 2 | --port http
serve T V --port {digits}                | 2 | --port 9999
serve T V --draft-layers nan             | 2 | a number of layers, auto or all
serve T V --draft-layers 100000000000    | 2 | a number of layers, auto or all
serve T V --draft-layers ²               | 2 | a number of layers, auto or all
memory T V --draft-layers x              | 2 | a number of layers, auto or all
memory T V --n-max 100000000000          | 2 | --n-max 100000000000
memory T V --context -1                  | 2 | --context -1
memory T V --context 100000000000        | 2 | --context 100000000000
memory T V --parallel 100000000000       | 2 | at most 256 slots
pick-draft T V --threads 100000000000    | 2 | --threads 100000000000
pick-draft T V --threads 0               | 2 | --threads 0
pick-draft T V --context inf             | 2 | --context inf
probe T V --draft-lengths 100000000000           | 2 | must be numbers from 1 to 64
probe T V --draft-lengths ²                      | 2 | must be numbers from 1 to 64
probe T V --draft-lengths 1,nan                  | 2 | must be numbers from 1 to 64
probe T V --draft-lengths {digits}               | 2 | must be numbers from 1 to 64
probe T V --budget nan                   | 2 | --budget nan
probe T V --budget inf                   | 2 | --budget inf
probe T V --budget 0                     | 2 | no time to measure anything
probe T V --parallel 100000000000        | 2 | at most 256 slots
probe T V --context -5                   | 2 | --context -5
serve T V --vram nan                     | 2 | --vram nan: not a size
serve T V --vram inf                     | 2 | --vram inf: not a size
serve T V --vram 100000000000            | 2 | out of range (1 MiB to 1 PiB)
serve T V --vram {digits}                | 2 | not a size
serve T V --vram 8,,8                    | 2 | --vram 8,,8: not a size
serve T V --vram 0x8                     | 2 | --vram 0x8: not a size
memory T V --vram 1KiB                   | 2 | out of range (1 MiB to 1 PiB)
memory T V --vram 8;8                    | 2 | not a size
memory T V --vram 1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1 | 2 | 17 GPUs
pick-draft T V --vram -8                 | 2 | not a size
serve T V -- -c nan                      | 2 | is not a number
serve T V -- -c 100000000000             | 2 | is not a number
serve T V -- -ngl inf                    | 2 | is not a number
serve T V -- -b {digits}                 | 2 | is not a number
memory T V -- -ub -100000000000          | 2 | is not a number
probe T V -- -t nan                      | 2 | is not a number
serve T V -- --port ²                    | 2 | is not a port
serve T V -- --port 0                    | 2 | is not a port
serve T V -- --spec-draft-n-max 20000000 | 2 | the maximum is 512
# ---- names of things
serve T V --workload nope                | 2 | Workloads: agent, chat, code
probe T V -w code,magic                  | 2 | magic
memory T V -w ../code                    | 2 | Workloads: agent, chat, code
pick-draft T V -w CODE                   | 2 | Workloads: agent, chat, code
serve T V --method nope                  | 2 | Methods: draft-mtp
serve T V --method mtp,                  | 2 | no method called ''
serve T V --method none,mtp              | 2 | cannot be combined with another method
serve T V --method draft-self            | 2 | ngram-simple
probe T V --method MTP                   | 2 | Methods: draft-mtp
memory T V --method draft,x              | 2 | no method called 'x'
serve T V --draft D --method ngram-mod   | 2 | cannot be combined with
serve T V --spec-type ngram-mod -md D    | 2 | --draft (-md) cannot be combined with --method (--spec-type) ngram-mod
serve T V --draft D --method ngram-mod   | 2 | or use both: --method draft-simple,ngram-mod.
serve T V --draft-cache q9               | 2 | --draft-cache q9: unknown cache type
serve T V --draft-cache q9 --method none | 2 | --draft-cache q9: unknown cache type
serve T V --draft-cache q9 --method ngram-mod | 2 | --draft-cache q9: unknown cache type
memory T V --draft-cache Q8_0            | 2 | --draft-cache Q8_0: unknown cache type
memory T V -ctk nope                     | 2 | -ctk nope: unknown cache type
memory T V -ctv 1                        | 2 | -ctv 1: unknown cache type
memory T V --prefer size                 | 2 | --prefer size: must be one of speed, context
serve T V --prefer size                  | 2 | --prefer size: must be one of speed, context
serve T V --workload code,               | 2 | the name after the comma is empty
plan T V --format yaml                  | 2 | --format yaml: must be one of shell
serve T V --tune AUTO                    | 2 | --tune AUTO: must be one of auto, full, off
# ---- engines
serve T --llama-server {nope}            | 2 | does not exist
serve T --llama-server ~nouser           | 2 | does not exist
serve T --llama-server {long}            | 2 | does not exist
serve T --llama-server {loop}            | 2 | does not exist
serve T --llama-server {here}            | 2 | does not exist
serve T --llama-server {fifo}            | 2 | is not a file
serve T --llama-server {page.gguf}       | 2 | is not executable
memory T --llama-server {nope}           | 2 | does not exist
pick-draft T --llama-server {nope}       | 2 | does not exist
probe T --llama-server {nope}            | 2 | does not exist
demo --llama-server {nope}               | 2 | does not exist
serve T V -- --parallel 2                | 2 | --parallel N
serve T V -- --bogus                     | 2 | has no option --bogus
serve T V -- --nonsense 3                | 2 | See `llama-server --help`.
serve T V -- -c=4096                     | 2 | Write it as two arguments
serve T V -- -c                          | 2 | requires a value
serve T V -- extra                       | 2 | is not a llama-server option
serve T V -- -m x                        | 2 | the model is specllama's first argument
probe T V -- --spec-type ngram-mod       | 2 | is not allowed
# ---- prompts and conversations
serve T V --prompts {nope}               | 2 | cannot be read (No such file
serve T V --prompts {here}               | 2 | cannot be read (Is a directory)
serve T V --prompts {none.txt}           | 2 | no prompts found
serve T V --prompts {bom.txt}            | 2 | no prompts found
serve T V --prompts {parts.txt}          | 2 | no prompts found
serve T V --prompts {utf16.txt}          | 2 | not UTF-8 text
serve T V --prompts {long.txt}           | 2 | longer than 4 Mi characters
serve T V --prompts /dev/zero            | 2 | longer than 4 Mi characters
serve T V --prompts {word.jsonl}         | 2 | line 2 is not JSON
serve T V --prompts {deep.jsonl}         | 2 | line 1 is not JSON
serve T V --prompts {nested.jsonl}       | 2 | nested too deeply
serve T V --prompts {nan.jsonl}          | 2 | line 1 is not JSON
serve T V --prompts {digits.jsonl}       | 2 | line 1 is not JSON
serve T V --prompts {surrogate.jsonl}    | 2 | line 1 is not JSON
serve T V --prompts {array.json}         | 2 | line 1 is not JSON
serve T V --prompts {role.jsonl}         | 2 | neither a prompt nor messages
serve T V --prompts {roles.jsonl}        | 2 | neither a prompt nor messages
probe T V --prompts {content.jsonl}      | 2 | neither a prompt nor messages
probe T V --prompts {null.jsonl}         | 2 | neither a prompt nor messages
probe T V --prompts {object.jsonl}       | 2 | neither a prompt nor messages
probe T V --prompts {number.jsonl}       | 2 | neither a prompt nor messages
probe T V --prompts {answers.jsonl}      | 2 | only assistant messages
probe T V --prompts {wide.jsonl}         | 2 | longer than 4 Mi characters
probe T V --replay {nope}                | 2 | cannot be read (No such file
probe T V --replay {none.txt}            | 2 | no conversation
probe T V --replay {binary.txt}          | 2 | not UTF-8 text
probe T V --replay {deep.jsonl}          | 2 | line 1 is not JSON
probe T V --replay {nested.jsonl}        | 2 | nested too deeply
probe T V --replay {role.jsonl}          | 2 | neither messages nor a prompt
probe T V --replay {question.jsonl}      | 2 | contains no response
probe T V --replay {calls.jsonl}         | 2 | its only responses are tool calls
probe T V --replay {wide.jsonl}          | 2 | longer than 4 Mi characters
probe T V --replay {word.jsonl} --draft-lengths 3 | 2 | cannot be combined with --draft-lengths
# ---- options that conflict, and output files
probe                                    | 2 | either a MODEL or --url URL
probe T --url http://127.0.0.1:1         | 2 | either a MODEL or --url URL
probe T V --baseline-url http://x        | 2 | --baseline-url needs --url
pick-draft T V --download                | 2 | --download needs --hub
pick-draft T V --text {none.txt}         | 2 | --text needs --measure
pick-draft T V --threads 1               | 2 | --threads needs --measure
pick-draft T V --dir {nope}              | 2 | no such folder
pick-draft T V --dir ~nouser             | 2 | no such folder
plan T V --format json -o ~nouser/x      | 2 | cannot be written
pick-draft T V --dir {long}              | 2 | no such folder
profiles new a --from {long}             | 2 | cannot be read (File name too long)
probe T V --report {here}                | 2 | is a folder
probe T V --report {nope}/x              | 2 | no such folder
probe T V --csv {long}                   | 2 | cannot be written (File name too long)
probe T V --csv {target}/x               | 2 | no such folder
serve T V --log {here}                   | 2 | is a folder
serve T V --log {nope}/x                 | 2 | no such folder
# ---- addresses and keys
probe --url x                            | 2 | --url x
probe --url http://                      | 2 | --url http://
probe --url http://127.0.0.1:99999       | 2 | --url http://127.0.0.1:99999
probe --url ftp://127.0.0.1              | 2 | --url ftp://127.0.0.1
probe --url unix:///x                    | 2 | --url unix:///x
probe --url {url}                        | 1 | no response from
probe --url http://127.0.0.1:1           | 1 | Is the server running
serve T V --api-key ä                    | 2 | not allowed in an HTTP header
serve T V --api-key ' '                  | 2 | the API key is empty
serve T V --api-key {lines}              | 2 | not allowed in an HTTP header
serve T V -- --api-key ä                 | 2 | not allowed in an HTTP header
serve T V -- --api-key-file {key.txt}    | 2 | not allowed in an HTTP header
serve T V -- --api-key-file {binary.txt} | 2 | not a text file
serve T V -- --api-key-file {nope}       | 2 | there is no such file
serve T V -- --lora {nope}               | 2 | there is no such file
serve T V -- --lora {page.gguf}          | 2 | web page saved as .gguf
serve T V -- --host ' '                  | 2 | --host after -- is empty
serve T V -- -b 0                        | 2 | a number of tokens
probe --url http://127.0.0.1:1 --api-key ä | 2 | not allowed in an HTTP header
"""


def rows() -> Iterator[object]:
    for line in ROWS.splitlines():
        if line.strip() and not line.startswith("#"):
            args, code, message = line.rsplit("|", 2)
            yield pytest.param(
                args.strip(), int(code), message.strip(), id=args.strip() or "nothing"
            )


@pytest.fixture(scope="module")
def names(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """The values of `{…}` in a row."""
    folder = tmp_path_factory.mktemp("bad")
    for name, content in FILES.items():
        (folder / name).write_bytes(content)
    part = edited(TARGET, folder / "part-00001-of-00002.gguf", {"split.count": 2})
    os.mkfifo(folder / "fifo")
    (folder / "loop").symlink_to("loop")
    special = {
        "here": str(folder),
        "long": "x" * 5000,
        "nul": "a\0b",
        "digits": LONG,
        "lines": "a\nb",
        "target": str(TARGET),
        "url": f"http://x.{'y' * 300}",
    }
    return {n: str(folder / n) for n in (*FILES, part.name, "fifo", "loop", "nope")} | special


def row_argv(text: str, names: dict[str, str]) -> list[str]:
    """A row's arguments. V expands to options that replace the lookup of a GPU and an engine."""
    out: list[str] = []
    for word in shlex.split(text):
        if word == "V":
            out += ["--vram", "8GiB"] if out[0] != "inspect" else []
            out += ["--llama-server", "embedded"]
            out += ["--dry-run"] if out[0] in ("serve", "probe") else []
        else:
            out.append({"T": str(TARGET), "D": str(DRAFT)}.get(word, expanded(word, names)))
    return out


def expanded(text: str, names: dict[str, str]) -> str:
    for name, value in names.items():
        text = text.replace(f"{{{name}}}", value)
    return text


@pytest.mark.parametrize(("args", "code", "message"), list(rows()))
def test_a_user_error_gives_its_exit_code_and_message(
    args: str,
    code: int,
    message: str,
    names: dict[str, str],
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
) -> None:
    monkeypatch.chdir(tmp_path)
    argv = row_argv(args, names)
    exit_code = run(argv)
    out, err = capsys.readouterr()
    assert (exit_code, expanded(message, names) in out + err) == (code, True), out + err
    for internal in ("This is a bug", "Traceback", "Errno 2]"):
        assert internal not in out + err
    if code:
        assert out == ""
        assert err.startswith("error: ")
        assert len(err.splitlines()) <= 2
        assert len(err) < 9000


def test_the_table_covers_every_command() -> None:
    commands = [
        line.split()[0] for line in ROWS.splitlines() if "|" in line and line[0] not in " #"
    ]
    assert {"serve", "probe", "pick-draft", "memory", "inspect", "results", "demo"} <= set(commands)
    assert len(commands) >= 120


# ---- files on the disk ------------------------------------------------------------

DAMAGE = [
    b"",
    b"{",
    b"[]",
    b"null",
    b"7",
    b"\xff\xfe\x00",
    b"[" * 100_000,
    b'{"digest": "x", "data": {}}',
    b'{"version": 1}',
    b'{"digest": "' + b"0" * 32 + b'", "data": {"models": 7}}',
]
PLAIN = ("memory", str(TARGET), "--draft", str(DRAFT), "--vram", "8GiB", "--llama-server")


@pytest.mark.parametrize("damage", DAMAGE, ids=range(len(DAMAGE)))
def test_damaged_caches_are_rebuilt(
    damage: bytes,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    commands = (
        ["pick-draft", str(TARGET), "--vram", "8GiB", "--llama-server", "embedded"],
        [*PLAIN, "embedded"],
        ["results"],
    )
    for command in commands:
        run(command)
    before_damage = capsys.readouterr().out.splitlines()
    contents = {p: p.read_bytes() for p in tmp_path.rglob("*.json")}
    assert any(p.name == "models.json" for p in contents)
    assert any(p.parent.name == "capabilities" for p in contents)
    for path in (*contents, tmp_path / "specllama" / "tuning" / "x.json"):
        path.parent.mkdir(exist_ok=True)
        path.write_bytes(damage)
    for command in commands:
        assert run(command) == 0
    out, err = capsys.readouterr()
    assert err == ""
    assert [x for x in out.splitlines() if "free" not in x and "usable" not in x] == [
        x for x in before_damage if "free" not in x and "usable" not in x
    ]
    for path, content in contents.items():
        json.loads(path.read_text())
        assert len(path.read_bytes()) == len(content)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"x", "not valid TOML"),
        (b"\xff\xfe", "not valid TOML"),
        (b"x = " + b"[" * 100_000, "not valid TOML"),
        (b"llama_server = 7", "must be a string"),
        (b"model_dirs = 7", "must be a list"),
        (b"model_dirs = [7]", "must be a list"),
        (b'model_dirs = [""]', "must be a list"),
        (b'model_dirs = ["a\\u0000b"]', "must be a list"),
        (b"color = true", "unknown setting 'color'"),
        (b'llama_server = "~nouser"', "does not exist"),
        (b'llama_server = "a\\u0000b"', "does not exist"),
        (b'llama_server = "/"', "does not exist"),
    ],
)
def test_an_invalid_config_is_an_error(
    content: bytes,
    message: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    (tmp_path / "specllama").mkdir()
    (tmp_path / "specllama" / "config.toml").write_bytes(content)
    assert run(["serve", str(TARGET), "--vram", "8GiB", "--dry-run"]) == 2
    err = capsys.readouterr().err
    assert message in err
    assert "config.toml" in err
    assert len(err.splitlines()) <= 2
    assert len(err) < 3000


@pytest.mark.parametrize("folder", ["~nouser", "/nope", "x" * 5000])
def test_an_unusable_model_folder_is_ignored(
    folder: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    monkeypatch.chdir(tmp_path)
    (tmp_path / "specllama").mkdir()
    (tmp_path / "specllama" / "config.toml").write_text(f'model_dirs = ["{folder}"]')
    assert run(["pick-draft", str(TARGET), "--vram", "8GiB", "--llama-server", "embedded"]) == 0
    assert capsys.readouterr().err == ""


@pytest.mark.parametrize(
    "env",
    [
        {"XDG_CACHE_HOME": "/dev/null/x"},
        {"XDG_STATE_HOME": "/dev/null"},
        {"XDG_CONFIG_HOME": "/dev/null"},
        {"XDG_CACHE_HOME": "x" * 5000},
        {"HOME": "/nonexistent"},
        {"HOME": "/dev/null", "XDG_CACHE_HOME": ""},
        {"HF_HOME": "/dev/null", "LLAMA_CACHE": "/dev/null"},
        {"LLAMA_CACHE": "~nouser"},
        {"PATH": ""},
        {"TERM": "junk", "LC_ALL": "junk"},
    ],
    ids=str,
)
def test_commands_work_in_unusual_environments(
    env: dict[str, str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for name, value in env.items():
        monkeypatch.setenv(name, value)
    for command in (
        [*PLAIN, "embedded"],
        ["pick-draft", str(TARGET), "--vram", "8GiB", "--llama-server", "embedded"],
        ["results"],
        ["results", "--clear"],
        ["serve", str(TARGET), "--vram", "8GiB", "--dry-run"],
    ):
        assert run(command) == 0
        assert capsys.readouterr().err == ""


@pytest.mark.parametrize(
    ("name", "value", "code", "message"),
    [
        ("SPECLLAMA_LLAMA_SERVER", "/nope", 2, "SPECLLAMA_LLAMA_SERVER: /nope does not exist"),
        ("SPECLLAMA_LLAMA_SERVER", "~nouser", 2, "does not exist"),
        ("SPECLLAMA_API_KEY", "ä", 2, "not allowed in an HTTP header"),
        ("SPECLLAMA_API_KEY", "a\nb", 2, "not allowed in an HTTP header"),
        ("LLAMA_API_KEY", "ä", 2, "LLAMA_API_KEY contains a character"),
        ("SPECLLAMA_API_KEY", "key\n", 0, "--metrics"),
        ("LLAMA_API_KEY", "key\r\n", 0, "--metrics"),
        ("LLAMA_API_KEY", "", 0, "--metrics"),
    ],
)
def test_environment_variables_are_checked(
    name: str,
    value: str,
    code: int,
    message: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setenv(name, value)
    assert run(["serve", str(TARGET), "--vram", "8GiB", "--dry-run"]) == code
    out, err = capsys.readouterr()
    assert message in out + err
    assert len(err.splitlines()) <= 2


@pytest.mark.parametrize(("key", "sent"), [("a\n", "a"), (" b,c ", "b"), (",d", "d")])
def test_the_first_of_several_api_keys_is_sent(key: str, sent: str) -> None:
    from specllama.engine.client import Client
    from specllama.engine.keys import usable

    with Client("http://127.0.0.1:1", usable(key, "x")) as client:
        assert client._http.headers["authorization"] == f"Bearer {sent}"


@pytest.mark.parametrize("log", ["x" * 300, "/proc/nope"])
def test_an_unwritable_log_is_an_error(
    log: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    args = ["serve", str(TARGET), "--vram", "8GiB", "--tune", "off", "--port", "0", "--log", log]
    assert run([*args, "--llama-server", "embedded", "--method", "none"]) == 1
    err = capsys.readouterr().err
    assert f"{log}: the server's log cannot be written" in err
    assert "--log" in err.splitlines()[1]


def test_a_state_folder_that_is_a_file_is_an_error(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", "/dev/null")
    monkeypatch.setenv("XDG_CACHE_HOME", "/dev/null")
    assert run(["demo", "--llama-server", "embedded"]) == 1
    err = capsys.readouterr().err
    assert "cannot be written (Not a directory)" in err
    assert "--log" not in err  # demo has no such option, nor has probe
    assert "specllama doctor" in err
    assert len(err.splitlines()) <= 2


@pytest.mark.parametrize(
    ("args", "message"),
    [
        (
            ["--n-max", "3", "--method", "ngram-mod"],
            "--n-max: no effect, ngram-mod uses its own sizes",
        ),
        (["--n-max", "3", "--p-min", "0.5", "--method", "none"], "--n-max, --p-min: no effect"),
        (["--draft-cache", "f16", "--method", "ngram-simple"], "--draft-cache: no effect"),
        (
            ["--draft-layers", "3", "--method", "none"],
            "--draft-layers: no effect, nothing is drafted",
        ),
    ],
)
def test_options_without_effect_are_reported(
    args: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    base = ["serve", str(TARGET), "--vram", "8GiB", "--llama-server", "embedded", "--dry-run"]
    assert run([*base, *args]) == 0
    assert message in capsys.readouterr().out
    assert run([*base, "--n-max", "3", "--p-min", "0.1", "--draft-layers", "1"]) == 0
    assert "no effect" not in capsys.readouterr().out


def test_a_draft_that_disappears_while_it_is_read_is_rejected(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """It is rejected with a reason; the others are still checked."""
    from specllama.drafts import compat
    from specllama.gguf import GgufError

    folder = tmp_path / "models"
    folder.mkdir()
    for path in (TARGET, DRAFT):
        (folder / path.name).write_bytes(path.read_bytes())
    (folder / "gone.gguf").write_bytes((MODELS / "mtp.gguf").read_bytes())
    verdict = compat.check_compatibility

    def reads(target: object, model: object, caps: object) -> object:
        if model.path.name == "gone.gguf":  # type: ignore[attr-defined]
            raise GgufError(f"{model.path}: cannot be read (No such file)")  # type: ignore[attr-defined]
        return verdict(target, model, caps)  # type: ignore[arg-type]

    monkeypatch.setattr(compat, "check_compatibility", reads)
    args = ["pick-draft", str(folder / "target.gguf"), "--vram", "8GiB"]
    assert run([*args, "--llama-server", "embedded"]) == 0
    out = capsys.readouterr().out
    assert "not used gone.gguf" in out
    assert "draft-simple draft.gguf" in " ".join(out.split())


def test_an_engine_with_arbitrary_output_is_an_error(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for body in (
        "print('\\x1b[31m[red]x[/]\\0' * 1000)",
        "import os; os.write(1, b'\\xff' * 9999)",
    ):
        path = script(tmp_path / "llama-server", body)
        assert run(["serve", str(TARGET), "--llama-server", str(path), "--dry-run"]) == 2
        err = capsys.readouterr().err
        assert "is not a llama-server" in err
        assert "\x1b" not in err
        assert len(err.splitlines()) <= 2


@pytest.mark.parametrize(
    ("path", "label"),
    [
        (PureWindowsPath("own/re-po.x:sub/m.gguf"), "own/re-po.x:sub/m.gguf"),
        (PurePosixPath("own/re-po.x:m.gguf"), "own/re-po.x:m.gguf"),
        (PureWindowsPath("C:/models/m.gguf"), None),
        (PureWindowsPath("C:\\models\\own\\m.gguf"), None),
        (PureWindowsPath("//server/share/m.gguf"), None),
        (PurePosixPath("/models/m.gguf"), None),
        (PurePosixPath("m.gguf"), None),
    ],
)
def test_hub_names_are_told_apart_from_paths(path: PurePath, label: str | None) -> None:
    from specllama.drafts.hub import hub_label

    assert hub_label(path) == label


def test_unicode_separators_do_not_split_prompts(tmp_path: Path) -> None:
    from specllama.prompts import read_prompts

    file = tmp_path / "p.txt"
    file.write_bytes("\ufeffa\u2028b\x0bc\r\n---\r\nd\x85e\n".encode())
    assert read_prompts(file) == ("a\u2028b\x0bc", "d\x85e")


def test_a_large_prompt_file_is_read_only_as_far_as_needed(tmp_path: Path) -> None:
    """Lines after the last prompt that is used are not parsed, valid or not."""
    from specllama.prompts import read_prompts

    file = tmp_path / "p.jsonl"
    file.write_text('{"prompt": "x"}\n' * 200 + "not JSON\n")
    assert len(read_prompts(file)) == 200
