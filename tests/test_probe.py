"""probe, results and serve --tune as a user runs them, on real servers and tiny models."""

from __future__ import annotations

import csv
import json
import re
import shlex
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import psutil
import pytest
from hypothesis import given
from hypothesis import strategies as st

from specllama.cli.planned_lines import planned_lines
from specllama.cli.probe_lines import run_line
from specllama.engine.client import Conversation
from specllama.engine.settings import NgramSizes, Settings
from specllama.errors import UsageError
from specllama.planning.prepare import prepare
from specllama.planning.spec_options import SpeculationOptions
from specllama.prompts import as_record, read_prompts
from specllama.serving.probe import ProbeOptions, ProbeResult, plan_probes
from specllama.serving.scope import SearchScope
from specllama.serving.tune import TuningOptions, serve_task
from specllama.tuning.results import store
from specllama.tuning.statistics import time_split
from tests import made
from tests.fake_server import Fake
from tests.support import MODELS, ONE_THREAD, Serve, process_ended, specllama

TARGET, DRAFT, MTP = (MODELS / f"{n}.gguf" for n in ("target", "draft", "mtp"))
QUICK = ("--budget", "4", "-c", "1024")
ONE = ("--", "-t", "1")


def probed_workload(*args: str | Path) -> dict[str, Any]:
    """probe's JSON of its only workload. A few seconds may leave the result open."""
    done = specllama("probe", *args, *QUICK, "--json", *ONE)
    assert done.returncode == 0, done.stderr
    (data,) = json.loads(done.stdout)["workloads"]
    found: dict[str, Any] = data
    return found


def test_probe_prints_table_plot_and_verdict_and_writes_files(tmp_path: Path, engine: str) -> None:
    html, table = tmp_path / "r.html", tmp_path / "r.csv"
    done = specllama(
        *("probe", TARGET, "--draft", DRAFT, "--workload", "code", "--workload", "chat"),
        *("--report", html, "--csv", table, "--llama-server", engine, "--budget", "12"),
        *("-c", "1024", *ONE),
    )
    assert done.returncode == 0, done.stderr
    out = done.stdout
    for workload in ("code", "chat"):
        assert f"target.gguf, {workload}" in out
    assert out.count("verdict  ") == 2
    assert "probing  measuring the baseline, " in out  # progress, although in a pipe
    lines = [line for line in out.splitlines() if line.startswith("run      specllama serve ")]
    assert len(lines) == 2
    for line in lines:  # it runs the measured setting with the given options
        assert " -c 1024 " in line
        assert f" --llama-server {engine} " in line
        assert " -- -t 1" in line
    assert out.count("verify   2 tokens take as long as ") == 2
    assert "draft-simple draft.gguf" in out
    assert "\x1b" not in out
    text = html.read_text()
    assert text.count("<svg") >= 2
    assert "http://" not in text.replace("http://www.w3.org/2000/svg", "")  # opens offline
    assert "<script" not in text
    rows = list(csv.DictReader(table.open()))
    assert {r["workload"] for r in rows} == {"code", "chat"}
    assert rows[0]["label"] == "no speculation"
    assert float(rows[0]["tokens_per_second"]) > 0


def test_a_dry_run_lists_what_would_be_measured() -> None:
    args = (
        "probe",
        TARGET,
        "-w",
        "code",
        "-w",
        "edit",
        "--draft",
        DRAFT,
        "-c",
        "1024",
        "--dry-run",
    )
    done = specllama(*args, *ONE, "--api-key", "geheim")
    assert done.returncode == 0, done.stderr
    assert "target.gguf, code: up to 150 s" in done.stdout
    assert "measure  draft-simple with draft.gguf, K up to 16" in done.stdout
    assert "predict  ngram-simple, " in done.stdout
    assert "geheim" not in done.stdout
    first, second = json.loads(specllama(*args, "--json", *ONE).stdout)["workloads"]
    assert (first["workload"], second["workload"]) == ("code", "edit")
    assert "--spec-type" not in first["baseline"]
    assert first["candidates"][0]["draft"] == str(DRAFT)
    assert [c["methods"] for c in second["candidates"]] == [["draft-simple"]], "only the named one"
    other = specllama("probe", TARGET, "--draft", MODELS / "other-vocab.gguf", "--dry-run")
    assert "measure  nothing: other-vocab.gguf: token 258 is" in other.stdout
    assert "predict" not in other.stdout
    done = specllama("probe", "--url", "http://127.0.0.1:9", "--dry-run")
    assert done.returncode == 2
    assert "--dry-run cannot be combined with --url" in done.stderr


def result_keys(draft: Path | None = None, **scope: Any) -> set[str]:
    """The keys under which probe (or serve, by `scope`) stores its results."""
    settings = Settings(TARGET, "127.0.0.1", 0, context=1024)
    spec_options = SpeculationOptions("code", draft)
    if not scope:
        return {
            s.key for p in plan_probes(ProbeOptions(settings, (spec_options,))) for s in p.subjects
        }
    plan = prepare(settings, spec_options, scope.pop("user", ()), check_port=False)
    return {serve_task(plan, TuningOptions("auto", 60, SearchScope(**scope)))[2].key}


def test_a_result_applies_only_to_the_scope_it_was_measured_for() -> None:
    """Without --draft the pair was once ruled out unmeasured, and `serve --draft` then used that
    result."""
    usual, named = result_keys(everything=False), result_keys(DRAFT, user_choice=True)
    assert usual != named
    assert result_keys(DRAFT) == named, "probe's result is serve's"
    assert result_keys() == usual
    assert result_keys(DRAFT, user_choice=True, lengths=(2,)) != named
    assert result_keys(DRAFT, user_choice=True, p_min=0.5) != named
    (with_user_args,) = result_keys(DRAFT, user_choice=True, user=("--spec-draft-n-max", "2"))
    assert {with_user_args}.isdisjoint(named | result_keys(DRAFT, user_choice=True, lengths=(2,)))


def test_a_result_of_all_methods_also_applies_to_the_usual_scope() -> None:
    settings = Settings(TARGET, "127.0.0.1", 0, context=1024)
    (p,) = plan_probes(ProbeOptions(settings, (SpeculationOptions("code"),), everything=True))
    assert {s.key for s in p.subjects} > result_keys()


def test_draft_lengths_fixed_by_the_user_are_kept() -> None:
    settings = Settings(TARGET, "127.0.0.1", 0, context=1024)
    args = ("--spec-draft-n-max", "2", "--spec-draft-p-min", "0.75")
    plan = prepare(settings, SpeculationOptions("code", DRAFT), args, check_port=False)
    task, _, _ = serve_task(plan, TuningOptions("auto", 60, SearchScope(user_choice=True)))
    assert (task.lengths, task.p_min) == ((2,), 0.75)
    task, _, _ = serve_task(
        plan, TuningOptions("auto", 60, SearchScope(user_choice=True, lengths=(12,)))
    )
    assert task.lengths == (2,), "theirs win"
    plan = prepare(settings, SpeculationOptions("code", DRAFT), check_port=False)
    task, _, _ = serve_task(
        plan, TuningOptions("auto", 60, SearchScope(user_choice=True, lengths=(12,)))
    )
    assert [c.longest for c in task.candidates] == [12]


def test_the_run_line_has_the_measured_ngram_sizes() -> None:
    settings = Settings(TARGET, "127.0.0.1", 0, context=1024)
    (each,) = plan_probes(
        ProbeOptions(settings, (SpeculationOptions("edit", method="ngram-simple"),))
    )
    assert each.plan.choice.speculation is not None
    best = made.confirmation(replace(each.plan.choice.speculation, ngram=NgramSizes(6, 12)))
    tuned = replace(made.tuned(), workload="edit", confirmations=(best,), best=best)
    words = shlex.split(run_line(ProbeResult(each, tuned)))
    at = words.index("--")
    sizes = ["--spec-ngram-simple-size-n", "6", "--spec-ngram-simple-size-m", "12"]
    assert words[at + 1 :] == sizes
    done = specllama(*words[1:at], "--dry-run", "--json", *words[at:])
    assert done.returncode == 0, done.stderr
    command = json.loads(done.stdout)["command"]
    assert command[-4:] == sizes
    assert command.count(sizes[0]) == 1


def test_json_of_a_probe_with_mtp_has_all_figures(engine: str) -> None:
    w = probed_workload(MTP, "-w", "code", "--llama-server", engine)
    assert w["baseline"]["step_ms"] > 0
    # with a sliding window it returns to a checkpoint: small batches are not measured
    assert len(w["baseline"]["verify_ms"]) > 1
    assert w["loads"] >= 1
    if not w["trials"]:  # it cannot pay off on this machine: no launch
        assert "draft-mtp" in {d["setting"] for d in w["dropped"]}
        return
    trial = w["trials"][0]
    k = len(trial["acceptance_by_position"])
    assert trial["label"] == f"draft-mtp K={k}"
    assert 0 < trial["alpha"] < 1
    assert set(trial["step_ms"]) >= {"0", "1", str(k)}
    assert set(trial["predicted"]) == {str(i) for i in range(1, k + 1)}
    for confirmation in w["confirmations"]:
        assert 0 <= confirmation["draft_share"] <= 1
        assert confirmation["extra_memory_bytes"] > 0
        assert 0 <= confirmation["chance_slower"] <= 1


def test_only_the_given_draft_lengths_are_measured() -> None:
    w = probed_workload(TARGET, "--draft", DRAFT, "--draft-lengths", "1,3")
    assert {a["n_max"] for a in w["confirmations"] if a["n_max"]} <= {1, 3}
    for p in w["predictions"]:
        assert re.search(r" K=[13]\b", p["label"])


def test_all_includes_combinations_of_n_grams_and_drafts(native: Path) -> None:
    args = ("--all", "-w", "edit", "--llama-server", native, "--budget", "20", "-c", "1024")
    done = specllama("probe", TARGET, "--draft", DRAFT, *args, "--json", *ONE, timeout=120)
    (w,) = json.loads(done.stdout)["workloads"]
    maps = {(m["method"], m["with"] is not None) for m in w["ngram_maps"]}
    if w["trials"]:
        assert ("ngram-simple", True) in maps
    else:
        assert any("draft-simple draft.gguf" in d["setting"] for d in w["dropped"])


def test_results_for_the_users_prompts_are_stored_apart(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    file = tmp_path / "mine.txt"
    file.write_text("def one():\n---\ndef two(a, b):\n---\nclass Three:\n")
    w = probed_workload(TARGET, "--draft", DRAFT, "--prompts", file)
    assert w["baseline"]["responses"] <= 3
    # a result for these prompts is not stored as the workload's
    found = json.loads(specllama("results", TARGET, "--json").stdout)["results"]
    assert {r["prompts"] for r in found} <= {"yours"}


def test_results_are_printed_and_cleared(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    settings = Settings(TARGET, "127.0.0.1", 0, context=1024)
    for workload in ("text", "code"):
        (p,) = plan_probes(ProbeOptions(settings, (SpeculationOptions(workload, DRAFT),)))
        store(
            p.subjects[0], replace(made.tuned("open", best=workload == "code"), workload=workload)
        )
    found = json.loads(specllama("results", TARGET, "--json").stdout)["results"]
    assert {r["workload"]: r["speculation"] for r in found} == {
        "code": "draft-simple d2.gguf K=3",
        "text": "no speculation",
    }
    first = found[0]
    assert (first["state"], first["prompts"], first["texts"]) == ("open", "profile", 9)
    assert first["speedup"][1] < first["speedup"][0] < first["speedup"][2]
    assert 0 <= first["chance_slower"] <= 1
    assert first["since"] <= first["when"]
    out = specllama("results").stdout
    assert "target.gguf" in out
    assert re.search(r"code +open +draft-simple d2.gguf K=3 +1\.12x \(1\.07 to 1\.17\) +<1%", out)
    assert "9 of the profile's" in out
    assert f"off      target.gguf, text: {made.REASON}" in out
    assert "2 results deleted" in specllama("results", TARGET, "--clear").stdout
    assert "0 results deleted" in specllama("results", TARGET, "--clear").stdout
    assert f"no results for {TARGET} yet" in specllama("results", TARGET).stdout
    store(p.subjects[0], made.tuned())
    assert specllama("results", "--clear").stdout == "1 result deleted\n"


# ---- serve --tune -----------------------------------------------------------------


def test_serve_tunes_once_and_then_uses_the_saved_result(tmp_path: Path, engine: str) -> None:
    args = (TARGET, "--draft", DRAFT, "-w", "edit", "--tune", "auto", "--budget", "4")
    folders = [tmp_path / n for n in ("first", "second", "third")]
    for f in folders:
        f.mkdir()
    with Serve(folders[0], *args, "--llama-server", engine) as s:
        first = s.info
    assert first["tuning"]["source"] == "measured"
    assert "-lv" not in first["command"]  # its log would grow with the square of the requests
    assert 1 <= first["tuning"]["loads"] <= 4
    if first["tuning"]["speculation"] == "off":
        assert first["speculation"] == "off"
        assert first["tuning"]["reason"] in first["reason"]
    with Serve(folders[1], *args, "--llama-server", engine) as s:
        second = s.info["tuning"]
    if first["tuning"]["state"] == "decided":
        assert second["source"] == "cached"
        assert "specllama results" in second["notes"][0]
        assert s.info["methods"] == first["methods"]
        assert s.info["n_max"] == first["n_max"]
    else:  # an open result is continued
        assert second["source"] == "measured"
        assert "the unfinished run" in second["notes"][0]
    with Serve(folders[2], *args, "--force", "--llama-server", engine) as s:
        assert s.info["tuning"]["source"] == "measured"
        assert s.info["methods"]  # the fastest setting, however slow
    specllama("results", "--clear")


def store_decided_result(model: Path, context: int, *user_args: str) -> None:
    """Stores a result as if probe had found that K=2 of the draft pays off."""
    settings = Settings(model, "127.0.0.1", 0, context=context)
    options = ProbeOptions(settings, (SpeculationOptions("code", DRAFT),), user_args, "embedded")
    (p,) = plan_probes(options)
    spec = p.plan.choice.speculation
    assert spec is not None
    best = made.confirmation(replace(spec, n_max=2))
    reason = f"{best.label} is 1.12x plain decoding (1.05 to 1.21)"
    store(p.subjects[0], replace(made.tuned(), confirmations=(best,), best=best, reason=reason))


def test_serve_starts_with_the_setting_that_probe_decided(tmp_path: Path) -> None:
    copy = tmp_path / "model.gguf"
    copy.write_bytes(TARGET.read_bytes())
    store_decided_result(copy, 0, *ONE_THREAD[1:])
    args = ("--draft", DRAFT, "-w", "code", "--tune", "auto", "--llama-server", "embedded")
    started = time.monotonic()
    with Serve(tmp_path, copy, *args) as s:
        tuning = s.info["tuning"]
        assert (tuning["source"], tuning["state"]) == ("cached", "decided")
        assert (tuning["texts"], tuning["prompts"]) == (9, "profile")
        assert tuning["best"] == "draft-simple draft.gguf K=2"
        assert s.info["n_max"] == 2
        assert "tuned    draft-simple draft.gguf K=2 is 1.12x plain decoding" in s.err
    assert time.monotonic() - started < 30  # only the start, no measurement


def test_a_result_of_another_build_is_stale(tmp_path: Path) -> None:
    copy = tmp_path / "model.gguf"
    copy.write_bytes(TARGET.read_bytes())
    store_decided_result(copy, 1024, *ONE[1:])
    fake = Fake(tmp_path)
    args = ("serve", copy, "--draft", DRAFT, "-w", "code", "-c", "1024", "--dry-run")
    same = specllama(*args, "--llama-server", "embedded", *ONE)
    assert "K=2: measured at 1.12x plain decoding (1.05 to 1.21)\n" in same.stdout
    other = specllama(*args, "--llama-server", fake.path, *ONE)
    assert "measured at " not in other.stdout
    assert "set with --draft" in other.stdout


def test_doubtful_drafts_are_measured_only_with_all(tmp_path: Path) -> None:
    """A draft that the user did not name, for creative text at a high temperature."""
    for name in ("target", "draft"):
        (tmp_path / f"{name}.gguf").write_bytes((MODELS / f"{name}.gguf").read_bytes())
    settings = Settings(tmp_path / "target.gguf", "127.0.0.1", 0, context=1024)
    (p,) = plan_probes(ProbeOptions(settings, (SpeculationOptions("creative"),)))
    assert not p.task.candidates
    assert "too low to pay off" in p.doubts[0]
    assert "note     draft-simple is not measured: " in "\n".join(planned_lines(p))
    (p,) = plan_probes(ProbeOptions(settings, (SpeculationOptions("creative"),), everything=True))
    assert p.task.candidates


def test_ctrl_c_while_tuning_skips_it_and_serves(tmp_path: Path) -> None:
    args = ["serve", TARGET, "--draft", DRAFT, "--tune", "auto", "--budget", "60", "-w", "creative"]
    argv = [sys.executable, "-m", "specllama", *map(str, args), "--port", "0", "--json"]
    argv += ["-c", "1024", *ONE]
    out = (tmp_path / "out").open("w+")
    popen = subprocess.Popen(argv, stdout=out, stderr=subprocess.PIPE, text=True)
    try:
        assert popen.stderr is not None
        assert any("Ctrl-C skips it" in line for line in popen.stderr), "nothing says so"
        assert any("measuring" in line for line in popen.stderr), "tuning never began"
        popen.send_signal(signal.SIGINT)
        until = time.monotonic() + 30
        while not (tmp_path / "out").read_text().endswith("\n"):
            assert popen.poll() is None
            assert time.monotonic() < until
            time.sleep(0.1)
        data = json.loads((tmp_path / "out").read_text())
        assert data["tuning"]["source"] == "skipped"
        assert data["url"]
        popen.send_signal(signal.SIGINT)
        assert popen.wait(20) == 0
    finally:
        popen.kill()
        popen.wait()


@pytest.mark.parametrize("signum", [signal.SIGINT, signal.SIGTERM])
def test_a_stopped_probe_leaves_nothing_running(tmp_path: Path, signum: int) -> None:
    argv = [sys.executable, "-m", "specllama", "probe", str(TARGET), "--draft", str(DRAFT)]
    argv += ["--budget", "120", "-c", "1024", "--json", *ONE]
    popen = subprocess.Popen(argv, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    children = _wait_for_server_pid(popen)
    assert popen.stderr is not None
    assert any("measuring" in line for line in popen.stderr), "it never began"
    children |= {c.pid for c in psutil.Process(popen.pid).children()}
    popen.send_signal(signum)
    out, err = popen.communicate(timeout=30)
    assert popen.returncode == 130
    assert "Traceback" not in err
    assert all(process_ended(c) for c in children)
    if out:
        assert json.loads(out)["workloads"][0]["state"] == "open"


def _wait_for_server_pid(popen: subprocess.Popen[str]) -> set[int]:
    until = time.monotonic() + 30
    while time.monotonic() < until:
        assert popen.poll() is None
        for child in psutil.Process(popen.pid).children():
            try:
                if "-np" in child.cmdline():
                    return {child.pid}
            except psutil.Error:
                continue
        time.sleep(0.05)
    raise AssertionError("no server was started")


# ---- bad input ----------------------------------------------------------------------


@pytest.mark.parametrize(
    ("args", "code", "message"),
    [
        ([], 2, "probe takes either a MODEL or --url"),
        ([str(TARGET), "--url", "http://127.0.0.1:9"], 2, "either a MODEL or --url"),
        ([str(TARGET), "--budget", "0"], 2, "no time to measure"),
        ([str(TARGET), "--draft-lengths", "0"], 2, "--draft-lengths 0"),
        ([str(TARGET), "--draft-lengths", "1,x"], 2, "--draft-lengths 1,x"),
        ([str(TARGET), "--prompts", "/nowhere.txt"], 2, "/nowhere.txt: cannot be read"),
        ([str(TARGET), "--report", "/no/such/r.html"], 2, "no such folder"),
        ([str(TARGET), "--baseline-url", "http://x"], 2, "--baseline-url needs --url"),
        ([str(TARGET), "-w", "sleep"], 2, "no workload called 'sleep'"),
        (["/nowhere.gguf"], 2, "no such file"),
        (
            [str(TARGET), "--draft", str(MODELS / "other-vocab.gguf")],
            2,
            "nothing to measure: other-vocab.gguf: token 258 is",
        ),
    ],
)
def test_bad_input_is_one_clear_line(args: list[str], code: int, message: str) -> None:
    done = specllama("probe", *args)
    assert done.returncode == code
    assert message in done.stderr.splitlines()[0]
    assert len(done.stderr.splitlines()) <= 2


def test_prompts_longer_than_the_context_are_an_error(tmp_path: Path) -> None:
    file = tmp_path / "long.txt"
    file.write_text("word " * 3000)
    done = specllama("probe", TARGET, "--draft", DRAFT, "--prompts", file, *QUICK, *ONE)
    assert done.returncode == 1
    assert "context" in done.stderr
    assert len(done.stderr.splitlines()) <= 2


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        ("a.txt", "", "no prompts found"),
        ("a.txt", "---\n\n---\n", "no prompts found"),
        ("a.jsonl", '{"prompt": "x"}\n{oops}\n', "line 2 is not JSON"),
        ("a.jsonl", '{"prompt": "x"}\n\n{"text": "y"}\n', "line 3 has neither"),
        ("a.jsonl", '{"messages": [{"role": "cat", "content": "x"}]}', "line 1 has neither"),
        ("a.jsonl", "[1]", "line 1 has neither"),
        ("a.jsonl", '{"messages": [{"role": "user", "content": null}]}', "line 1 has neither"),
        ("a.jsonl", '{"messages": [{"role": "user", "content": [{"image": 1}]}]}', "neither"),
        (
            "a.jsonl",
            '{"messages": [{"role": "assistant", "content": "a"}]}',
            "only assistant messages",
        ),
        ("a.jsonl", '{"prompt": "x", "tools": 1}', "line 1 has tools that are not in OpenAI's"),
        ("a.jsonl", '{"prompt": "x", "tools": [{"name": "f"}]}', "line 1 has tools"),
        ("a.jsonl", '{"prompt": "x", "tools": [{"type": "function", "function": {}}]}', "tools"),
    ],
)
def test_invalid_prompt_files_are_errors(
    tmp_path: Path, name: str, text: str, message: str
) -> None:
    file = tmp_path / name
    file.write_text(text)
    with pytest.raises(UsageError, match=message):
        read_prompts(file)


def test_texts_json_lines_and_conversations_are_read_as_prompts(tmp_path: Path) -> None:
    file = tmp_path / "p"
    file.write_text("one\ntwo\n---\n\nthree\n")
    assert read_prompts(file) == ("one\ntwo", "three")
    messages = [{"role": "system", "content": "s"}, {"role": "user", "content": "u"}]
    file.write_text(json.dumps({"messages": messages}) + "\n" + json.dumps({"prompt": "p"}))
    assert read_prompts(file) == (Conversation(tuple(messages)), "p")
    # logged conversations: the last response is not requested, OpenAI's parts are joined
    turns = [{"role": "assistant", "content": "a"}, {"role": "user", "content": "v"}]
    log = {"model": "m", "messages": [*messages, *turns, {"role": "assistant", "content": "b"}]}
    parts = [{"type": "text", "text": "x"}, {"type": "text", "text": "y"}]
    tool_call = {"role": "assistant", "content": None, "tool_calls": [{"id": "1"}]}
    more = {"messages": [{"role": "user", "content": parts}, tool_call]}
    file.write_text(json.dumps(log) + "\n" + json.dumps(more))
    assert read_prompts(file) == (
        Conversation((*messages, *turns)),
        Conversation(({"role": "user", "content": "xy"},)),
    )
    # the tools of a request are kept
    tool = {"type": "function", "function": {"name": "f", "parameters": {}}}
    file.write_text(
        json.dumps({"messages": messages, "tools": [tool]})
        + "\n"
        + json.dumps({"prompt": "p", "tools": [tool]})
    )
    assert read_prompts(file) == (
        Conversation(tuple(messages), (tool,)),
        Conversation(({"role": "user", "content": "p"},), (tool,)),
    )
    for prompt in read_prompts(file):
        file.write_text(json.dumps(as_record(prompt)))
        assert read_prompts(file) == (prompt,)
    file.write_bytes(b"\xff\xfe\x00")
    with pytest.raises(UsageError, match="not UTF-8"):
        read_prompts(file)


@given(st.text())
def test_any_prompt_file_is_read_or_an_error(
    tmp_path_factory: pytest.TempPathFactory, text: str
) -> None:
    file = tmp_path_factory.getbasetemp() / "any.txt"
    file.write_text(text, encoding="utf-8", errors="surrogatepass")
    try:
        prompts = read_prompts(file)
    except UsageError:
        return
    assert prompts
    assert all(prompts)


# ---- the log's own statistics -------------------------------------------------------

LOG = """\
0.01 I slot print_timing: id  0 | task 0 | prompt eval time =       9.18 ms /     7 tokens
0.01 I slot print_timing: id  0 | task 0 |        eval time =     100.00 ms /   50 tokens
0.01 I spec common_specu: statistics     draft-simple: #calls(b,g,a) =    1     30     30, #gen drafts =     30, #acc drafts =    20, #gen tokens =    120, #acc tokens =    36, #mean acc len = 1.58, dur(b,g,a) = 1.000, 20.0, 0.5 ms
0.02 I slot print_timing: id  0 | task 9 |        eval time =     200.00 ms /   90 tokens
0.02 I spec common_specu: statistics     draft-simple: #calls(b,g,a) =    2     90     90, #gen drafts =     90, #acc drafts =    50, #gen tokens =    360, #acc tokens =    99, #mean acc len = 1.58, dur(b,g,a) = 1.500, 69.0, 1.0 ms
"""


def test_draft_time_is_read_from_the_log() -> None:
    split = time_split(LOG)
    assert split.decode_ms == 200.0
    assert split.methods["draft-simple"].ms == pytest.approx(50.0)
    assert split.methods["draft-simple"].drafted == 240
    assert split.draft_share == pytest.approx(0.25)
    assert time_split("").draft_share is None


@given(st.text() | st.text("statistics draft: #gen tokens = 1, dur(b,g,a) ms\n"))
def test_any_log_can_be_parsed(text: str) -> None:
    time_split(text)
