"""serve --adaptive: the server is replaced under load, and no request is lost."""

from __future__ import annotations

import json
import random
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import httpx
import pytest

from specllama.engine.client import Client
from specllama.engine.errors import EngineError
from specllama.engine.metrics import parse_prompt_speed
from specllama.engine.settings import NgramSizes, Settings, Speculation
from specllama.planning.plan import Plan, free_port
from specllama.planning.prepare import prepare
from specllama.planning.spec_options import SpeculationOptions
from specllama.serving import serve as serving
from specllama.serving.adaptive import AdaptiveController, behind_relay, reread_seconds
from specllama.serving.launch import launch as real_launch
from specllama.serving.real_requests import TuningReference
from specllama.serving.result_keys import device_names, engine_label
from specllama.serving.scope import SearchScope
from specllama.serving.servable import servable_settings
from specllama.serving.serve import Ready, run_server
from specllama.stop import Stopped
from specllama.storage import cache_dir, write_stored
from specllama.tuning import results
from specllama.tuning.records import DECIDED, OPEN
from specllama.tuning.results import Result
from specllama.tuning.search import OpenResult
from specllama.watching import switches
from specllama.watching.policy import Policy, ServableSetting, Switch, SwitchTiming
from specllama.watching.summary import TrafficSummary
from tests.fake_server import Fake
from tests.support import MODELS, Serve, specllama

TARGET, DRAFT = MODELS / "target.gguf", MODELS / "draft.gguf"
SWITCHES = 3


class Alternating(Policy):
    """A policy that turns speculation off and on in turn as soon as the server is idle."""

    def decide(self, p: TrafficSummary, now: float, hardly_accepted: bool = False) -> Switch | None:
        if now - self.since < self.pace.between:
            return None
        return Switch(None if self.running else self.options[0].speculation, "in turn")


class Load:
    """Four clients, each with its own connection, that send requests with pauses between."""

    def __init__(self, url: str) -> None:
        self.failed: list[str] = []
        self.answered = [0] * 4
        self._url, self._ending = url, threading.Event()
        self._threads = [threading.Thread(target=self._client, args=(i,)) for i in range(4)]
        for t in self._threads:
            t.start()

    def _client(self, number: int) -> None:
        rng = random.Random(number)
        with httpx.Client(base_url=self._url, timeout=60) as client:
            remaining = 2  # requests still to send after end()
            while remaining:
                remaining -= self._ending.is_set()
                try:
                    self._ask(client, number)
                    self.answered[number] += 1
                except (httpx.HTTPError, AssertionError) as e:
                    self.failed.append(f"{type(e).__name__}: {e}")
                self._ending.wait(rng.uniform(0.05, 0.6))

    def _ask(self, client: httpx.Client, number: int) -> None:
        body = {"prompt": f"def f{number}(a, b):", "n_predict": 6, "stream": number % 2 == 0}
        answer = client.post("/completion", json=body)
        assert answer.status_code == 200, answer.text
        assert answer.text.count('"stop":true') == 1, answer.text

    def end(self) -> None:
        self._ending.set()
        for t in self._threads:
            t.join(60)


class LoadReport:
    """A report that starts clients when the server is ready, and stops it after the last switch."""

    def __init__(self) -> None:
        self.lines: list[str] = []
        self.load: Load | None = None
        self._starts = 0

    def say(self, text: str) -> None:
        self.lines.append(text)

    def busy(self, text: str) -> AbstractContextManager[None]:
        return nullcontext()

    def ready(self, ready: Ready) -> None:
        self.load = Load(ready.url)

    def event(self, kind: str, text: str, data: Mapping[str, Any]) -> None:
        self.lines.append(f"{kind}: {text}")
        self._starts += text.startswith("now serving")
        if self._starts == SWITCHES and self.load is not None:
            self.load.end()
            raise Stopped(15)


def make_plan(engine: str, *server_args: str) -> Plan:
    settings = Settings(TARGET, "127.0.0.1", free_port("127.0.0.1", 0), context=2048, parallel=2)
    all_server_args = ("-t", "1", *server_args)
    return prepare(
        settings, SpeculationOptions("code", DRAFT), all_server_args, engine, check_port=False
    )


def test_no_request_of_four_clients_fails_during_three_switches(
    native: Path, tmp_path: Path
) -> None:
    plan = make_plan(str(native))
    base = behind_relay(plan)
    speculation = base.settings.speculation
    assert speculation is not None
    policy = Alternating(
        speculation,
        [ServableSetting(speculation)],
        time.monotonic(),
        SwitchTiming(0.5, 0.5, 0.5, 0.1, 0.1),
    )
    adaptive = AdaptiveController(base, plan.settings.host, plan.settings.port, policy)
    script = LoadReport()
    run_server(base, tmp_path / "log", script, idle_probes=False, adaptive=adaptive)
    assert script.load is not None
    assert script.load.failed == []
    assert min(script.load.answered) > SWITCHES
    messages = [x for x in script.lines if x.startswith("adaptive: ")]
    assert len(messages) == 2 * SWITCHES
    assert messages[0] == "adaptive: draft-simple draft.gguf K=4 → no speculation: in turn"
    assert messages[1].startswith("adaptive: now serving with ")
    saved = switches.all_switches()
    assert [s.reason for s in saved] == ["in turn"] * SWITCHES
    assert saved[0].target == str(TARGET)
    assert switches.clear(TARGET) == SWITCHES
    assert switches.all_switches() == ()


def test_previous_settings_are_restored_if_new_ones_do_not_start(
    native: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    plan = behind_relay(make_plan(str(native)))
    report, started = LoadReport(), []

    def launch(tried: Plan, log: Path, report: object) -> Plan:
        started.append(tried.settings.speculation)
        if tried.settings.speculation is None:
            raise EngineError("llama-server did not start: no")
        return tried

    monkeypatch.setattr(serving, "launch", launch)
    off = plan.without_speculation("")
    assert serving._launch_or_restore(off, plan, tmp_path, report) is plan  # type: ignore[comparison-overlap]
    assert started == [None, plan.settings.speculation]
    assert report.lines == ["llama-server did not start: no; going back to the previous settings"]
    with pytest.raises(EngineError, match="no"):
        serving._launch_or_restore(off, None, tmp_path, report)


def test_requests_wait_while_a_crashed_server_restarts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fake = Fake(tmp_path, draft_n=8, crash_after=0.7)
    plan = make_plan(str(fake.path))
    base = behind_relay(plan)
    adaptive = AdaptiveController(
        base, plan.settings.host, plan.settings.port, Policy(base.settings.speculation, [], 0.0)
    )
    targets: list[Any] = []
    start = real_launch

    def launch(*args: Any) -> Any:
        targets.append(adaptive._relay and adaptive._relay.gate.target)
        if len(targets) > 1:
            raise Stopped(15)
        return start(*args)

    monkeypatch.setattr(serving, "launch", launch)
    report = LoadReport()
    monkeypatch.setattr(report, "ready", lambda _: None)
    run_server(base, tmp_path / "log", report, known=True, idle_probes=False, adaptive=adaptive)
    assert targets == [None, None]


def test_clients_use_the_relay_and_stopping_ends_all(tmp_path: Path, engine: str) -> None:
    args = (TARGET, "--draft", DRAFT, "--adaptive", "--llama-server", engine)
    with Serve(tmp_path, *args) as s:
        assert s.info["speculation"] == "on"
        command = s.info["command"]
        inner = command[command.index("--port") + 1]
        assert inner != s.url.rpartition(":")[2]
        body = {"prompt": "import", "n_predict": 4}
        assert httpx.post(f"{s.url}/completion", json=body).status_code == 200
        assert httpx.get(f"{s.url}/health").json() == {"status": "ok"}
        assert s.stop() == 0
    with pytest.raises(httpx.ConnectError):
        httpx.get(s.url)


def test_without_counters_a_note_is_printed_and_serving_continues(tmp_path: Path) -> None:
    """Builds before b10289, and ik_llama.cpp."""
    fake = Fake(tmp_path, build=9611, draft_n=8)
    with Serve(tmp_path, TARGET, "--draft", DRAFT, "--adaptive", "--llama-server", fake.path) as s:
        s.wait_for(lambda: "--adaptive has no data to decide on: " in s.err, "the line")
        assert httpx.get(f"{s.url}/health").status_code == 200


class FakeSlots:
    """A client with these slots and metrics."""

    def __init__(self, slots: list[dict[str, Any]] | None, metrics: str) -> None:
        self.slots = lambda: slots
        self.prompt_speed = lambda: parse_prompt_speed(metrics)


METRICS = "llamacpp:prompt_tokens_total 500\nllamacpp:prompt_seconds_total 10\n"


@pytest.mark.parametrize(
    ("slots", "metrics", "seconds"),
    [
        ([{"n_prompt_tokens": 100}, {"n_prompt_tokens": 50}, {"id": 2}], METRICS, 3.0),
        ([{"n_prompt_tokens": 100}], METRICS.replace("500", "0"), 0.0),  # nothing was read yet
        ([{"n_prompt_tokens": 100}], "other 1\n", 0.0),
        (None, METRICS, 0.0),
    ],
)
def test_seconds_to_reread_the_prompts_in_the_slots(
    slots: list[dict[str, Any]] | None, metrics: str, seconds: float
) -> None:
    client = cast(Client, FakeSlots(slots, metrics))
    assert reread_seconds(client, sleeps=False) == pytest.approx(seconds)
    assert reread_seconds(client, sleeps=True) == 0


def result(spec: Speculation | None, speedup: float, **more: Any) -> Result:
    found = Result(
        *(str(TARGET), "edit", spec, "", (speedup, 1.0, 2.0), 0.0, 9.0, "e", ("d",), 0.0, 0.0),
        *(DECIDED, "profile", 9, OpenResult(), Path()),
    )
    return replace(found, **more)


def test_servable_settings_are_confirmed_results_of_this_model_and_machine(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    base = make_plan(str(Fake(tmp_path).path))
    own = base.settings.speculation
    assert own is not None
    ngram = Speculation(("ngram-simple",), ngram=NgramSizes(4, 8))
    here = {"engine": engine_label(base), "devices": tuple(device_names(base))}
    found = (
        result(ngram, 1.3, **here),
        result(ngram, 1.2, **here),  # the same setting again
        result(own, 9.0, **here),  # the setting that serves now
        result(None, 1.0, **here),
        result(replace(ngram, n_max=1), 1.3, engine="another"),
        result(replace(ngram, n_max=2), 1.3, **here, state=OPEN),
        result(replace(ngram, n_max=3), 1.3, **here, target="another"),
        result(replace(own, draft=Path("gone.gguf")), 1.3, **here),
    )
    monkeypatch.setattr(results, "all_results", lambda: found)
    expected = [
        ServableSetting(own, 1.1, "when it was tuned"),
        ServableSetting(ngram, 1.3, "when it was tuned for edit"),
    ]
    assert [*servable_settings(base, own, TuningReference(speedup=1.1), SearchScope())] == expected
    assert [
        *servable_settings(base, own, TuningReference(speedup=1.1), SearchScope(user_choice=True))
    ] == expected[:1]
    assert [*servable_settings(base, None, TuningReference(), SearchScope())] == [
        expected[1],
        ServableSetting(own, 9.0, "when it was tuned for edit"),
    ]


def test_results_shows_the_last_switches() -> None:
    for n in range(25):
        switches.add(TARGET, "code", f"K={n}", "no speculation", "it lost")
    assert len(switches.all_switches()) == 20
    lines = specllama("results", TARGET).stdout.splitlines()
    shown = [x for x in lines if x.startswith("switch ")]
    assert len(shown) == 5
    assert shown[0].endswith("target.gguf, code: K=24 → no speculation: it lost")
    assert len(json.loads(specllama("results", "--json").stdout)["switches"]) == 20
    assert specllama("results", "--clear").returncode == 0
    assert switches.all_switches() == ()


@pytest.mark.parametrize(
    "data",
    [
        *(b"", b"{", b"[]", b'{"version": 1}', b'{"version": 1, "switches": [1]}'),
        b'{"version": 1, "switches": [{"when": "x"}]}',
    ],
)
def test_a_damaged_history_of_switches_reads_as_empty(data: bytes) -> None:
    switches.add(TARGET, "chat", "a", "b", "c")
    folder = cache_dir() / "switches"
    for path in folder.glob("*.json"):
        path.write_bytes(data)
    assert switches.all_switches() == ()
    for path in folder.glob("*.json"):
        write_stored(path, json.loads(data) if data not in (b"", b"{") else None)
    assert switches.all_switches() == ()
    for path in folder.glob("*.json"):
        path.unlink()


@pytest.mark.parametrize(
    ("args", "message"),
    [
        (("--strict",), "--adaptive cannot be combined with --strict: it may turn speculation off"),
        (("--", "--spec-type", "ngram-simple"), "--adaptive cannot be combined with --spec-type"),
        (("--", "--ssl-cert-file", "c", "--ssl-key-file", "k"), "does not work with --ssl-*"),
    ],
)
def test_options_that_conflict_with_adaptive_are_errors(
    args: tuple[str, ...], message: str, native: Path, tmp_path: Path
) -> None:
    for name in "ck":
        (tmp_path / name).write_text("")
    server_args = [str(tmp_path / a) if a in ("c", "k") else a for a in args]
    options = ("--tune", "off", "--llama-server", native, "--port", "0", "--adaptive")
    done = specllama("serve", TARGET, "--draft", DRAFT, *options, *server_args)
    assert done.returncode == 2, done.stderr
    assert message in done.stderr


@pytest.fixture(autouse=True)
def _no_threads_are_left() -> Iterator[None]:
    before = threading.active_count()
    yield
    assert threading.active_count() <= before + 1
