"""`specllama serve` as a user runs it, on real models, with both engines."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import time
from pathlib import Path

import httpx
import psutil
import pytest

from specllama.watching import running
from tests.support import MODELS, ONE_THREAD, Serve, process_ended, specllama

TARGET, DRAFT = MODELS / "target.gguf", MODELS / "draft.gguf"


def test_a_draft_model_is_verified_to_speculate(engine: str, tmp_path: Path) -> None:
    from openai import OpenAI

    args = (TARGET, "--workload", "code", "--draft", DRAFT, "--llama-server", engine)
    with Serve(tmp_path, *args) as s:
        assert s.info["speculation"] == "on"
        assert s.info["methods"] == ["draft-simple"]
        assert 0 < s.info["alpha"] < 1
        assert s.info["alpha"] == s.info["accepted"] / s.info["drafted"]
        assert s.info["tokens_per_step"] > 1
        assert "speculation ON: α=" in s.err
        slots = httpx.get(f"{s.url}/slots").json()
        assert len(slots) == 1
        assert slots[0]["speculative"] is True
        client = OpenAI(base_url=s.info["openai_base_url"], api_key="none")
        completion = client.chat.completions.create(
            model="any",
            messages=[{"role": "user", "content": "def add(a, b):"}],
            max_tokens=24,
            extra_body={"ignore_eos": True},
        )
        assert completion.choices[0].message.content
        child = s.info["server_pid"]
        assert s.stop() == 0
        assert process_ended(child)
        assert Path(s.info["log"]).read_text().startswith("$ ")


# Our own text, similar to the training text.
CODE = [
    'class Shelf:\n    """A shelf of books."""\n\n    def __init__(self, path, mode="r"):\n',
    "import os\nimport sys\n\ndef main(argv=None):\n    if argv is None:\n",
    "    def close(self):\n        if self._file is not None:\n",
    "def parse(text, sep=None):\n    result = []\n    for line in text.splitlines():\n",
    "        try:\n            value = self._cache[key]\n        except KeyError:\n",
    "    @property\n    def name(self):\n        return self._name\n\n    def read(self, size=-1):\n",
]
PROSE = [
    "The museum stands on a hill above the river. In the summer it is",
    "Whoever wants to keep bees must first learn to be patient, because",
    "After the rain had stopped, the children went back to the garden and",
    "The price of bread rose again in the autumn, and many people thought",
    "A good kitchen knife lasts for many years when it is washed by hand and",
    "On the second day we walked along the coast until we reached a village",
]


def acceptance_by_position(url: str, prompts: list[str]) -> list[float]:
    """Share of verify steps in which the first i drafted tokens were accepted."""
    from specllama.engine.client import Client

    with Client(url) as client:
        before = client.metrics()
        for prompt in prompts:
            client.complete(prompt, 64, {"temperature": 0.0, "ignore_eos": True})
        after = client.metrics()
    assert before is not None
    assert after is not None
    steps = (after.verify_steps or 0) - (before.verify_steps or 0)
    pairs = zip(after.accepted_by_position, before.accepted_by_position, strict=True)
    return [(a - b) / steps for a, b in pairs]


def test_the_pair_drafts_better_on_code_than_on_prose(tmp_path: Path) -> None:
    args = (TARGET, "--draft", DRAFT, "--n-max", "3", "--llama-server", "embedded")
    with Serve(tmp_path, *args) as s:
        code = acceptance_by_position(s.url, CODE)
        prose = acceptance_by_position(s.url, PROSE)
    assert 0.4 < code[0] < 0.9
    assert code == sorted(code, reverse=True)
    assert code[0] - prose[0] > 0.05


def test_text_is_the_same_with_and_without_speculation(engine: str, tmp_path: Path) -> None:
    """Batches of other sizes round differently, so greedy text may differ after a near tie
    (llama.cpp issue 25618), but not from the start."""
    texts = []
    for name, method in (("on", "draft-simple"), ("off", "none")):
        (tmp_path / name).mkdir()
        with Serve(tmp_path / name, TARGET, "--method", method, "--llama-server", engine) as s:
            assert s.info["speculation"] == name
            body = {"prompt": "import os\n\ndef main(", "n_predict": 40, "temperature": 0}
            texts.append(httpx.post(f"{s.url}/completion", json=body).json()["content"])
    assert texts[0][:40] == texts[1][:40]


def test_an_mtp_head_in_the_target_is_used(engine: str, tmp_path: Path) -> None:
    with Serve(tmp_path, MODELS / "mtp.gguf", "--llama-server", engine) as s:
        assert (s.info["methods"], s.info["draft"]) == (["draft-mtp"], None)
        assert s.info["speculation"] == "on"
        assert s.info["accepted"] > 0


def test_an_mtp_head_in_a_separate_file_is_used(engine: str, tmp_path: Path) -> None:
    with Serve(tmp_path, MODELS / "mtp-trunk.gguf", "--llama-server", engine) as s:
        assert s.info["methods"] == ["draft-mtp"]
        assert s.info["draft"].endswith("mtp-head.gguf")
        assert s.info["speculation"] == "on"


def test_n_grams_draft_repetitive_text(engine: str, tmp_path: Path) -> None:
    """A tiny greedy model soon repeats itself, so short n-grams match."""
    args = (TARGET, "--method", "ngram-simple", "--llama-server", engine)
    sizes = ("--spec-ngram-simple-size-n", "4", "--spec-ngram-simple-size-m", "8")
    with Serve(tmp_path, *args, "--", *sizes) as s:
        command = " ".join(s.info["command"])
        assert command.count("--spec-ngram-simple-size-n") == 1
        assert "--spec-ngram-simple-size-n 4 --spec-ngram-simple-size-m 8" in command
        body = {"prompt": CODE[0], "n_predict": 300, "temperature": 0, "ignore_eos": True}
        timings = httpx.post(f"{s.url}/completion", json=body).json()["timings"]
        assert timings["draft_n"] >= timings["draft_n_accepted"] > 0


def test_speculation_off_reports_that_no_n_gram_repeated(tmp_path: Path) -> None:
    args = (TARGET, "--method", "ngram-mod", "--workload", "chat", "--llama-server", "embedded")
    with Serve(tmp_path, *args) as s:
        assert s.info["speculation"] == "off"
        assert s.info["reason"].endswith("2 probe requests: no 8-token sequence repeated")
        first, second = s.err.split("speculation OFF because ")[1].splitlines()[:2]
        assert "/slots" not in first
        assert second.startswith("note     ngram-mod stays loaded and drafts once text repeats;")


def test_a_draft_with_another_vocabulary_is_off_with_a_reason(engine: str, tmp_path: Path) -> None:
    args = (TARGET, "--draft", MODELS / "other-vocab.gguf", "--llama-server", engine)
    with Serve(tmp_path, *args) as s:
        assert s.info["speculation"] == "off"
        assert "token 258" in s.info["reason"]
        assert s.info["rejected"][0]["rule"] == "token text"
        assert "speculation OFF because" in s.err
        assert httpx.get(f"{s.url}/health").status_code == 200
        assert s.stop() == 0


def test_llama_server_rejects_the_other_vocabulary_too(engine: str, tmp_path: Path) -> None:
    """Forced past our check, the real server loads, logs one line and does not speculate."""
    other = str(MODELS / "other-vocab.gguf")
    forced = ("--", "--spec-type", "draft-simple", "-md", other)
    with Serve(tmp_path, TARGET, "--method", "none", "--llama-server", engine, *forced) as s:
        assert s.info["speculation"] == "off"
        assert "vocabulary does not match" in s.info["reason"]


def test_strict_exits_with_3_and_leaves_no_process(engine: str) -> None:
    args = ("serve", TARGET, "--draft", MODELS / "other-vocab.gguf", "--llama-server", engine)
    done = specllama(*args, "--strict", "--port", "0", *ONE_THREAD)
    assert done.returncode == 3
    assert "speculation OFF because" in done.stderr
    assert not psutil.Process().children(recursive=True)


def test_strict_exits_with_3_after_the_verification(tmp_path: Path) -> None:
    forced = ("--spec-type", "draft-simple", "-md", MODELS / "other-vocab.gguf")
    args = ("serve", TARGET, "--method", "ngram-mod", "--llama-server", "embedded", "--strict")
    done = specllama(*args, "--port", "0", *ONE_THREAD, *forced)
    assert done.returncode == 3
    assert "vocabulary does not match" in done.stderr


def test_ctrl_c_exits_with_0(engine: str, tmp_path: Path) -> None:
    with Serve(tmp_path, TARGET, "--llama-server", engine) as s:
        child = s.info["server_pid"]
        assert s.stop(signal.SIGINT) == 0
        assert process_ended(child)
        assert "Traceback" not in s.err


def test_a_killed_server_is_restarted(engine: str, tmp_path: Path) -> None:
    with Serve(tmp_path, TARGET, "--draft", DRAFT, "--llama-server", engine) as s:
        os.kill(s.info["server_pid"], signal.SIGKILL)
        s.wait_for(lambda: "serving again" in s.err, "restart")
        assert "llama-server exited: it was killed (SIGKILL); restarting" in s.err
        assert s.err.count("speculation ON") == 2
        assert httpx.get(f"{s.url}/health").status_code == 200
        assert s.stop() == 0
    assert not psutil.Process().children(recursive=True)


@pytest.mark.skipif(not Path("/proc").is_dir(), reason="PR_SET_PDEATHSIG is Linux only")
def test_no_server_is_left_when_specllama_is_killed(engine: str, tmp_path: Path) -> None:
    with Serve(tmp_path, TARGET, "--llama-server", engine) as s:
        child = s.info["server_pid"]
        os.kill(s.popen.pid, signal.SIGKILL)
        s.popen.wait()
        assert process_ended(child)


def _argv(p: psutil.Process) -> list[str]:
    try:
        return p.cmdline()
    except psutil.Error:
        return []  # it has just exited


def test_a_stop_while_loading_leaves_no_process(tmp_path: Path) -> None:
    s = Serve(tmp_path, TARGET, "--llama-server", "embedded")
    until = time.monotonic() + 30
    while not any("-m" in _argv(c)[3:] for c in psutil.Process(s.popen.pid).children()):
        assert time.monotonic() < until
        assert s.popen.poll() is None
        time.sleep(0.01)
    children = [c.pid for c in psutil.Process(s.popen.pid).children()]
    assert s.stop() == 0
    assert children
    assert all(process_ended(c) for c in children)


def test_a_port_in_use_is_an_error(tmp_path: Path) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        done = specllama("serve", TARGET, "--port", str(port), "--llama-server", "embedded")
    assert done.returncode == 1
    assert f"port {port} on 127.0.0.1 cannot be used" in done.stderr
    assert "--port 0" in done.stderr
    assert "your" not in done.stderr


def test_a_port_in_use_by_the_users_serve_names_it(tmp_path: Path) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        running.announce(running.RunningServe(f"http://127.0.0.1:{port}", "/m/t.gguf", "code"))
        try:
            done = specllama("serve", TARGET, "--port", str(port), "--llama-server", "embedded")
        finally:
            running.withdraw()
    assert done.returncode == 1
    assert f"your `specllama serve` of t.gguf (process {os.getpid()}) has it" in done.stderr


def test_paths_may_have_spaces_and_non_ascii_letters(
    engine: str, tmp_path: Path, model_copy: Path
) -> None:
    draft = model_copy.with_name("Entwurf ü.gguf")
    draft.write_bytes(DRAFT.read_bytes())
    with Serve(tmp_path, model_copy, "--llama-server", engine) as s:
        assert s.info["draft"] == str(draft)
        assert s.info["speculation"] == "on"


def test_an_api_key_is_required_and_never_printed(engine: str, tmp_path: Path) -> None:
    key = "k-3f9a-secret"
    args = (TARGET, "--draft", DRAFT, "--llama-server", engine)
    with Serve(tmp_path, *args, SPECLLAMA_API_KEY=key) as s:
        assert s.info["speculation"] == "on"
        assert httpx.get(f"{s.url}/slots").status_code == 401
        good = httpx.get(f"{s.url}/slots", headers={"Authorization": f"Bearer {key}"})
        assert good.status_code == 200
        shown = json.dumps(s.info) + s.err + Path(s.info["log"]).read_text()
        for p in [psutil.Process(s.popen.pid), *psutil.Process(s.popen.pid).children()]:
            shown += " ".join(p.cmdline())
        assert key not in shown


def test_dry_run_prints_a_command_that_runs(engine: str, tmp_path: Path) -> None:
    args = ("serve", TARGET, "--draft", DRAFT, "--llama-server", engine, "--dry-run")
    text = specllama(*args, *ONE_THREAD)
    assert text.returncode == 0
    data = json.loads(specllama(*args, "--json", *ONE_THREAD).stdout)
    import shlex

    assert shlex.split(text.stdout.splitlines()[-1]) == data["command"]
    assert data["command"].count("--spec-type") == 1
    assert "-np" in data["command"]
    with (tmp_path / "log").open("wb") as log:
        server = subprocess.Popen([*data["command"], "--port", "0"], stdout=log, stderr=log)
        time.sleep(1)
        assert server.poll() is None, (tmp_path / "log").read_text()
        server.terminate()
        server.wait(20)


def test_parallel_sets_the_number_of_slots(tmp_path: Path) -> None:
    with Serve(tmp_path, TARGET, "--parallel", "2", "--llama-server", "embedded") as s:
        assert len(httpx.get(f"{s.url}/slots").json()) == 2
        assert "2 slots share the context" in s.err


def test_a_dry_run_of_demo_prints_the_command() -> None:
    done = specllama("demo", "--dry-run")
    assert done.returncode == 0
    assert "command  " in done.stdout
    assert "set with --draft" not in done.stdout
    assert "--llama-server" not in done.stdout
    assert "speculation" not in done.stdout
    data = json.loads(specllama("demo", "--dry-run", "--json").stdout)
    assert data["methods"] == ["draft-simple"]
    assert "server_pid" not in data


def test_demo_drafts_with_a_real_server() -> None:
    done = specllama("demo", "--json")
    assert done.returncode == 0, done.stderr
    data = json.loads(done.stdout)
    assert data["alpha"] > 0
    assert data["drafted"] > data["accepted"] > 0
    assert data["completion"]
    assert process_ended(data["server_pid"])
    human = specllama("demo")
    assert human.returncode == 0
    assert "speculation ON: α=" in human.stdout
    assert "\x1b[" not in human.stdout


def test_a_streamed_completion_equals_the_whole_one(tmp_path: Path) -> None:
    from specllama.engine.client import Client

    with Serve(tmp_path, TARGET, "--llama-server", "embedded") as s, Client(s.url) as client:
        sampling = {"temperature": 0.0, "ignore_eos": True}
        whole = client.complete(CODE[1], 40, sampling)
        pieces = list(client.stream(CODE[1], 40, sampling))
        assert len(pieces) > 5
        assert "".join(p.text for p in pieces) == whole.text
        assert pieces[-1].timings is not None
        assert pieces[-1].timings.tokens == 40


def test_values_after_the_dashes_are_reported(tmp_path: Path) -> None:
    arguments = ("--", "--spec-draft-n-max", "2")
    with Serve(tmp_path, TARGET, "--llama-server", "embedded", *arguments) as s:
        assert s.info["n_max"] == 2
        command = " ".join(s.info["command"])
        assert (command.count("--spec-draft-n-max"), command.count("n-max 2")) == (1, 1)
    with Serve(tmp_path, TARGET, "--llama-server", "embedded", "--", "--spec-type", "none") as s:
        assert (s.info["speculation"], s.info["reason"]) == ("off", "--spec-type none is set")


def test_strict_accepts_speculation_set_after_the_dashes(tmp_path: Path) -> None:
    arguments = ("--", "--spec-type", "draft-simple", "-md", DRAFT)
    args = (TARGET, "--method", "none", "--strict", "--llama-server", "embedded")
    with Serve(tmp_path, *args, *arguments) as s:
        assert s.info["speculation"] == "on"
