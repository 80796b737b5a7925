"""probe --replay: reading conversations, and predictions on them compared with real servers."""

from __future__ import annotations

import json
import math
import shlex
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import httpx
import pytest
from hypothesis import given
from hypothesis import strategies as st

from specllama.cli.replay_lines import below_table, data, replay_row
from specllama.engine.client import Conversation
from specllama.engine.settings import NgramSizes, Settings, Speculation
from specllama.errors import UsageError
from specllama.planning.spec_options import SpeculationOptions
from specllama.prompts import read_prompts
from specllama.serving.probe import ProbeOptions, plan_probes
from specllama.serving.replay import ConversationReplay, plan_replay, replay_conversations
from specllama.tuning.confidence import Ratios
from specllama.tuning.conversations import PastRequest, conversation_groups, read_conversations
from specllama.tuning.costs import VerifyCosts
from specllama.tuning.ngrams import KnownText
from specllama.tuning.ngrams import replay as replay_ngrams
from specllama.tuning.replayed import (
    DraftGuesses,
    KnownTexts,
    ReplayedSetting,
    best_combined,
    best_draft,
    best_ngram,
    choose_replayed,
    fixed_ngram,
    spec_default,
)
from specllama.tuning.run import TrialCandidate
from specllama.tuning.speedup import StepCost
from tests.support import MODELS, specllama
from tests.test_ngrams import REQUESTS, post, serving, tokenize

TARGET, DRAFT = MODELS / "target.gguf", MODELS / "draft.gguf"


def user(text: str) -> dict[str, Any]:
    return {"role": "user", "content": text}


def assistant(text: str | None, **more: Any) -> dict[str, Any]:
    return {"role": "assistant", "content": text, **more}


def conversation_file(folder: Path, *lines: Any) -> Path:
    path = folder / "chats.jsonl"
    path.write_text("\n".join(x if isinstance(x, str) else json.dumps(x) for x in lines))
    return path


# ---- reading ---------------------------------------------------------------------


def test_every_response_is_a_request(tmp_path: Path) -> None:
    talk = [
        {"role": "system", "content": "s"},
        user("a"),
        assistant("A"),
        user("b"),
        assistant("B"),
    ]
    parts = {"role": "user", "content": [{"type": "text", "text": "c"}]}
    path = conversation_file(
        tmp_path,
        {"messages": talk, "finish_reason": "length"},
        "",
        {"prompt": "p", "answer": "q"},
        {"prompt": "p", "completion": "r", "finish_reason": "length"},
        {"messages": [parts, assistant("C")]},
    )
    found = read_conversations(path)
    assert [(r.line, r.response, r.truncated) for r in found.requests] == [
        (1, "A", False), (1, "B", True), (3, "q", False), (4, "r", True), (5, "C", False),
    ]  # fmt: skip
    assert found.requests[0].prompt == Conversation(tuple(talk[:2]))
    assert found.requests[1].prompt == Conversation(tuple(talk[:4]))
    assert found.requests[2].prompt == "p"
    assert found.requests[4].prompt == Conversation((user("c") | {"content": "c"},))
    # the same file as prompts: the messages before the last response
    prompts = (Conversation(tuple(talk[:4])), "p", "p", Conversation((user("c"),)))
    assert read_prompts(path) == prompts


def test_tool_calls_are_context_only(tmp_path: Path) -> None:
    call = assistant(None, tool_calls=[{"id": "1", "function": {"name": "f", "arguments": "{}"}}])
    talk = [user("a"), call, {"role": "tool", "content": "7"}, assistant("it is 7")]
    found = read_conversations(conversation_file(tmp_path, {"messages": talk}))
    assert found.calls == 1
    assert [r.prompt for r in found.requests] == [Conversation(tuple(talk[:3]))]
    tool = {"type": "function", "function": {"name": "f"}}
    found = read_conversations(conversation_file(tmp_path, {"messages": talk, "tools": [tool]}))
    assert [r.prompt for r in found.requests] == [Conversation(tuple(talk[:3]), (tool,))]
    with pytest.raises(UsageError, match="its only responses are tool calls"):
        read_conversations(conversation_file(tmp_path, {"messages": talk[:2]}))


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("{", "line 2 is not JSON"),
        ('{"messages": [NaN]}', "line 2 is not JSON"),
        ('{"prompt": "\\ud800", "answer": "x"}', "line 2 is not JSON"),
        ("[" * 100_000, "line 2 is not JSON"),
        ("7", "line 2 has neither messages nor a prompt"),
        ({"messages": [{"role": ["user"], "content": "a"}]}, "line 2 has neither"),
        ({"messages": [user("a"), assistant(None)]}, "line 2 has neither"),
        ({"messages": [user("a")]}, "line 2 contains no response"),
        ({"messages": [assistant("A")]}, "line 2 contains no response"),
        ({"messages": [user("a"), assistant("")]}, "line 2 contains no response"),
        ({"prompt": "a"}, "line 2 contains no response"),
    ],
)
def test_an_error_names_the_bad_line(tmp_path: Path, line: Any, message: str) -> None:
    with pytest.raises(UsageError, match=message):
        read_conversations(conversation_file(tmp_path, {"prompt": "p", "answer": "q"}, line))


def test_an_unreadable_file_is_an_error(tmp_path: Path) -> None:
    for content, message in ((b"\xff\xfe", "not UTF-8"), (b"\n \n", "no conversation found")):
        (tmp_path / "f").write_bytes(content)
        with pytest.raises(UsageError, match=message):
            read_conversations(tmp_path / "f")
    with pytest.raises(UsageError, match="No such file"):
        read_conversations(tmp_path / "none")


def test_unicode_line_separators_do_not_end_a_line(tmp_path: Path) -> None:
    line = json.dumps({"prompt": "a\u2028b", "answer": "c\x85d"}, ensure_ascii=False)
    path = tmp_path / "f.jsonl"
    path.write_text("\ufeff" + line, encoding="utf-8")
    (one,) = read_conversations(path).requests
    assert (one.prompt, one.response) == ("a\u2028b", "c\x85d")
    assert read_prompts(path) == ("a\u2028b",)


values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
    max_leaves=8,
)
messages = st.lists(
    st.fixed_dictionaries(
        {"role": st.sampled_from(["user", "assistant", "system", "tool"]) | values},
        optional={"content": st.text() | values, "tool_calls": values, "finish_reason": values},
    )
)
records = values | st.fixed_dictionaries(
    {},
    optional={
        "messages": messages | values,
        "prompt": st.text() | values,
        "answer": st.text() | values,
        "completion": values,
        "finish_reason": st.just("length") | values,
    },
)


@given(st.lists(st.one_of(records.map(json.dumps), st.text()), max_size=4))
def test_any_lines_are_read_or_an_error(
    tmp_path_factory: pytest.TempPathFactory, lines: list[str]
) -> None:
    path = tmp_path_factory.mktemp("any") / "f.jsonl"
    path.write_bytes("\n".join(lines).encode("utf-8", "surrogatepass"))
    for read in (read_conversations, read_prompts):
        try:
            read(path)
        except UsageError:
            continue
    try:
        found = read_conversations(path)
    except UsageError:
        return
    assert found.requests
    assert all(r.response and r.prompt for r in found.requests)


def test_neighbouring_conversations_share_a_group() -> None:
    requests = [PastRequest(line, "p", "a") for line in (1, 1, 2, 4, 4, 9)]
    assert list(conversation_groups(requests, 10)) == [0, 0, 1, 2, 2, 3]
    assert list(conversation_groups(requests, 2)) == [0, 0, 0, 1, 1, 1]
    assert list(conversation_groups([], 2)) == []


# ---- predictions with made-up costs ------------------------------------------------

FLAT = VerifyCosts(StepCost(10.0, 0.1, 9), {1: 10.0, 65: 10.0})  # verifying is free: a gain is τ
STEEP = VerifyCosts(StepCost(10.0, 0.1, 9), {b: 10.0 * b for b in range(1, 66)})


def repetitive_texts(count: int = 6) -> KnownTexts:
    """Responses that repeat their prompts."""
    known = []
    for i in range(count):
        words = tuple(range(100 * i, 100 * i + 40))
        known.append(KnownText((7, *words, 8), words))
    return KnownTexts(tuple(known), tuple(range(count)))


def test_with_free_verification_the_gain_is_the_tokens_per_step() -> None:
    spec = Speculation(("ngram-simple",))
    setting, speeds = best_ngram(spec, repetitive_texts(), FLAT)
    assert setting is not None
    assert setting.ratios.value == pytest.approx(setting.tau)
    assert setting.alpha == 1.0
    assert setting.speculation.ngram in speeds.speedups
    assert speeds.speedups[NgramSizes(2, 3)] < setting.ratios.value
    best, reason = choose_replayed([setting], FLAT)
    assert best is setting
    assert "plain decoding" in reason
    given_one = fixed_ngram(
        Speculation(("ngram-simple",), ngram=NgramSizes(2, 4)), repetitive_texts(), FLAT, "x"
    )
    assert given_one is not None
    assert not given_one.may_win
    assert given_one.tau < setting.tau
    assert choose_replayed([given_one], FLAT)[0] is None


def test_nothing_pays_if_verifying_a_token_costs_a_plain_step() -> None:
    setting, _ = best_ngram(Speculation(("ngram-simple",)), repetitive_texts(), STEEP)
    assert setting is not None
    best, reason = choose_replayed([setting], STEEP)
    assert best is None
    assert "nothing would have paid" in reason
    assert "verifying 3 tokens takes as long as 3.0 plain steps" in reason
    new = KnownTexts((KnownText((1, 2, 3), tuple(range(50, 90))),), (0,))
    setting, _ = best_ngram(Speculation(("ngram-simple",)), new, FLAT)
    assert setting is not None
    assert choose_replayed([setting], FLAT)[1].endswith("no token would have been drafted")
    rejected = replace(setting, drafted=3)
    assert choose_replayed([rejected], FLAT)[1].endswith(
        "no drafted token would have been accepted"
    )
    assert choose_replayed([], FLAT)[0] is None


def test_spec_default_drafts_at_least_48_tokens() -> None:
    words = tuple(range(100, 260))
    text = KnownTexts((KnownText((7, *words, 8), words),), (0,))
    found = spec_default(text, FLAT)
    assert found is not None
    assert found.accepted > 48
    short = KnownTexts((KnownText((7, *words[:28], 8), words[:28]),), (0,))
    nothing = spec_default(short, FLAT)
    assert nothing is not None
    assert (nothing.drafted, nothing.tau) == (0, 1.0)
    assert spec_default(text, VerifyCosts(StepCost(10.0, 0.1, 9), {1: 10.0, 33: 12.0})) is None


def draft_guesses(texts: KnownTexts, agrees: bool, passes: Sequence[float]) -> DraftGuesses:
    bits = tuple(tuple(agrees for _ in k.response[1:]) for k in texts.texts)
    candidate = TrialCandidate(Speculation(("draft-simple",), Path("d.gguf")), longest=8)
    return DraftGuesses(candidate, bits, tuple(passes), timed=True)


def test_the_cost_of_a_draft_is_that_of_its_passes() -> None:
    texts = repetitive_texts()
    right, wrong = (draft_guesses(texts, x, [1.0] * 9) for x in (True, False))
    step = right.step(FLAT)
    assert step(4, False) == pytest.approx(10 + 4 + 1)
    assert step(0, False) == pytest.approx(10 + 1)
    assert step(8, True) == pytest.approx(10 + 1)  # an n-gram draft: only the draft's catch-up pass
    assert step(17, True) == pytest.approx(10 + 2)  # two of the largest timed pass
    assert step(65, False) is None
    best = best_draft(right, texts, FLAT, range(1, 9))
    assert best is not None
    assert best.speculation.n_max == 7  # 8 is as fast: the shorter one is taken
    assert set(best.curve) == set(range(1, 9))
    assert best.curve[7].value == pytest.approx(best.curve[8].value)
    assert best.ratios.value == pytest.approx(
        best.tau * 10 / (10 + best.speculation.n_max + 1), rel=0.1
    )
    always_wrong = best_draft(wrong, texts, FLAT, range(1, 9))
    assert always_wrong is not None
    assert always_wrong.ratios.value < 1
    assert best_draft(right, texts, FLAT, [70]) is None
    both, speeds = best_combined(
        Speculation(("ngram-simple",)), best.speculation, right, texts, FLAT
    )
    assert both is not None
    assert both.speculation.methods == ("ngram-simple", "draft-simple")
    assert both.ratios.value > best.ratios.value  # n-gram drafts are longer and cost no drafting
    assert speeds.draft == best.name


def test_requests_of_one_conversation_are_averaged() -> None:
    texts = KnownTexts(repetitive_texts(3).texts, (0, 0, 1))
    r = texts.by_group(Ratios((0.0, math.log(3), math.log(2)), (30.0, 30.0, 10.0)))
    assert r.weights == (60.0, 10.0)
    assert math.exp(r.logs[0]) == pytest.approx(60 / (30 + 10))
    assert math.exp(r.logs[1]) == pytest.approx(2)
    assert texts.first(2).groups == (0, 0)
    assert texts.tokens == 120


def test_a_gain_that_may_be_chance_is_reported_but_not_chosen() -> None:
    ratios = Ratios(tuple(map(math.log, (2.0, 0.7, 1.6, 0.8, 0.9))), (9.0,) * 5)
    setting = ReplayedSetting("x", Speculation(("ngram-mod",)), 9, 5, 9, 14, ratios, "")
    best, reason = choose_replayed([setting], FLAT)
    assert best is None
    assert "chance of being slower" in reason
    one = ReplayedSetting("x", Speculation(("ngram-mod",)), 9, 5, 9, 14, Ratios((0.5,), (9.0,)), "")
    assert choose_replayed([one], FLAT)[0] is one
    assert "a single conversation" in choose_replayed([one], FLAT)[1]
    two = replace(one, ratios=Ratios((0.5, 0.51), (9.0, 9.0)))
    assert choose_replayed([two], FLAT)[0] is two
    assert choose_replayed([two], FLAT)[1].endswith("; 2 responses say little about others")


@pytest.mark.parametrize(
    ("count", "cell"), [(2, "1.65x"), (4, "1.65x"), (5, "1.65x (1.63 to 1.67)")]
)
def test_few_responses_have_no_interval(count: int, cell: str) -> None:
    """Seen: 0.70x (0.01 to 72.82) from two responses."""
    ratios = Ratios((0.5,) * count, (9.0,) * count)
    setting = ReplayedSetting("x", Speculation(("ngram-mod",)), 9, 5, 9, 14, ratios, "")
    assert replay_row(setting)[5] == cell


# ---- against real servers -----------------------------------------------------------


class _Silent:
    def step(self, text: str, share: float, left_s: float) -> None:
        pass


def probe_options(**more: Any) -> ProbeOptions:
    given: dict[str, Any] = {
        "spec_options_list": (SpeculationOptions("code", method="ngram-simple"),),
        **more,
    }
    settings = Settings(TARGET, "127.0.0.1", 0, context=1024)
    return ProbeOptions(settings, user_args=("-t", "1"), llama_server="embedded", **given)


def record_responses(
    server: httpx.Client, folder: Path
) -> tuple[Path, list[tuple[tuple[int, ...], int]]]:
    """Greedy responses of a server without speculation as a file of conversations, and the requests
    as ids with their lengths; only those whose text is tokenized as it was sampled."""
    lines, requests = [], []
    for text, limit in REQUESTS:
        talk = [user(text)]
        prompt = tokenize(server, post(server, "/apply-template", {"messages": talk})["prompt"])
        body = {"prompt": prompt, "n_predict": limit, "temperature": 0, "return_tokens": True}
        got = post(server, "/completion", body)
        plain = {"content": got["content"], "add_special": False, "parse_special": False}
        ids = post(server, "/tokenize", plain)["tokens"]
        ended = got["stop_type"] == "eos"
        if tuple(ids) == tuple(got["tokens"][: len(ids)]) and len(ids) == limit - ended:
            reason = "stop" if ended else "length"
            lines.append({"messages": [*talk, assistant(got["content"])], "finish_reason": reason})
            requests.append((prompt, limit))
    assert len(lines) >= 3
    return conversation_file(folder, *lines), requests


def serve_requests(
    folder: Path, spec: Speculation, requests: Sequence[tuple[tuple[int, ...], int]]
) -> list[tuple[int, int, str]]:
    """Drafted tokens, accepted tokens and text of each request on a server with these settings."""
    found = []
    with serving("embedded", TARGET, folder, spec) as server:
        for prompt, limit in requests:
            body = {"prompt": prompt, "n_predict": limit, "temperature": 0, "cache_prompt": False}
            got = post(server, "/completion", body)
            t = got["timings"]
            found.append((t.get("draft_n", 0), t.get("draft_n_accepted", 0), got["content"]))
    return found


def responses_in(path: Path) -> list[str]:
    return [r.response for r in read_conversations(path).requests]


def test_predictions_agree_with_the_counts_of_a_server(tmp_path: Path) -> None:
    with serving("embedded", TARGET, tmp_path, None) as plain:
        path, requests = record_responses(plain, tmp_path)
    found = replay_conversations(
        probe_options(), read_conversations(path), tmp_path / "log", _Silent()
    )
    assert len(found.texts.texts) == len(requests)
    assert [k.prompt for k in found.texts.texts] == [p for p, _ in requests]
    assert any(s.source == "the profile's sizes" for s in found.settings)
    drafted = 0
    for n, m in ((2, 4), (4, 8), (12, 48)):
        spec = Speculation(("ngram-simple",), ngram=NgramSizes(n, m))
        setting = fixed_ngram(spec, found.texts, found.costs, "")
        assert setting is not None
        counted = serve_requests(tmp_path, spec, requests)
        predicted = replay_ngrams("ngram-simple", NgramSizes(n, m), found.texts.texts, 1024)
        assert sum(r.drafted for r in predicted) == setting.drafted
        assert sum(r.accepted for r in predicted) == setting.accepted
        same = [
            text == response
            for (*_, text), response in zip(counted, responses_in(path), strict=True)
        ]
        for one, (d, a, _), equal in zip(predicted, counted, same, strict=True):
            if equal:  # other batch shapes round differently: on some processors a token differs
                assert (one.drafted, one.accepted) == (d, a)
        assert sum(same) >= len(same) - 1
        drafted += setting.drafted
    assert drafted > 0
    shown = "\n".join(below_table(found))
    assert "run      specllama serve " in shown
    json.dumps(data(found))


def test_probe_replay_prints_table_verdict_and_run_line(tmp_path: Path) -> None:
    words = "def area(width, height):\n    return width * height\n" * 3
    talk = [user(f"Copy:\n{words}"), assistant(words), user("Again"), assistant(words)]
    path = conversation_file(
        tmp_path,
        *({"messages": [user(f"{i}"), *talk[1:]]} for i in range(3)),
        {"messages": talk},
        {"prompt": "x", "answer": "word " * 2000},
    )
    args = ("probe", TARGET, "--replay", path, "-c", "1024", "-w", "edit")
    rest = ("--llama-server", "embedded", "--", "-t", "1")
    dry = specllama(*args, "--dry-run", *rest)
    assert dry.returncode == 0, dry.stderr
    assert "target.gguf, 9 responses in 5 conversations of chats.jsonl" in dry.stdout
    assert "nothing is generated again" in dry.stdout
    done = specllama(*args, *rest)
    assert done.returncode == 0, done.stderr
    out = done.stdout
    assert "target.gguf, 8 responses of " in out
    assert "skipped  1 response: too long for a context of 1,024" in out
    assert "--spec-default (ngram-mod 24/48/64)" in out
    assert "verdict  " in out
    (run,) = (line for line in out.splitlines() if line.startswith("run      "))
    words_of = shlex.split(run[9:])
    assert words_of[:3] == ["specllama", "serve", str(TARGET)]
    assert words_of[words_of.index("--") + 1 :][:2] == ["-t", "1"]
    got = json.loads(specllama(*args, "--method", "ngram-mod", "--json", *rest).stdout)["replay"]
    assert (got["responses"], got["responses_replayed"], got["conversations"]) == (9, 8, 5)
    assert [s["methods"] for s in got["settings"] if not s["only_compared"]] == [["ngram-mod"]]
    path.write_text(json.dumps({"messages": talk}))
    few = specllama(*args, "--method", "ngram-mod", *rest).stdout
    assert "rest on 2 responses: too few to predict others (5 needed)" in few
    assert "x (" not in few[: few.index("speed-up by")], "no interval"
    assert got["left_out"] == {"too long for a context of 1,024": 1}
    assert ("--method none" in got["run"]) == (got["speculation"] == "off")


def test_a_failed_replay_is_an_error(tmp_path: Path) -> None:
    from specllama.tuning.errors import TuningError

    path = conversation_file(tmp_path, {"prompt": "x", "answer": "word " * 2000})
    with pytest.raises(TuningError, match="of 1 responses, 1 too long"):
        replay_conversations(probe_options(), read_conversations(path), tmp_path / "log", _Silent())


@pytest.mark.parametrize(
    ("args", "message"),
    [
        (("--url", "http://127.0.0.1:9"), "takes either a MODEL or --url"),
        (("--prompts", "f"), "cannot be combined with --prompts"),
        (("--draft-lengths", "2"), "cannot be combined with --draft-lengths"),
        (("--report", "r.html"), "cannot be combined with --report"),
        (("--parallel", "2"), "leave out --parallel"),
        (("-w", "code", "-w", "chat"), "one --workload"),
        (("--", "--spec-type", "ngram-mod"), "--spec-type after -- is not allowed"),
        (("--", "--spec-ngram-mod-n-max", "9"), "leave out --spec-ngram-mod-n-max"),
        (("--", "--spec-draft-p-min", "0.5"), "leave out p-min"),
    ],
)
def test_incompatible_options_are_errors(
    tmp_path: Path, args: tuple[str, ...], message: str
) -> None:
    path = conversation_file(tmp_path, {"prompt": "p", "answer": "q"})
    done = specllama(
        "probe", TARGET, "--replay", path, "--dry-run", "--llama-server", "embedded", *args
    )
    assert done.returncode == 2, done.stdout
    assert message in done.stderr
    assert len(done.stderr.splitlines()) <= 2


def test_a_bad_file_exits_with_2(tmp_path: Path) -> None:
    done = specllama("probe", TARGET, "--replay", conversation_file(tmp_path, {"prompt": "p"}))
    assert done.returncode == 2
    assert "line 1 contains no response" in done.stderr


def test_a_state_that_cannot_be_rolled_back_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    from specllama.serving import replay as module

    (p,) = plan_probes(probe_options())
    hybrid = replace(p, task=replace(p.task, hybrid=True))
    monkeypatch.setattr(module, "plan_probes", lambda _: iter([hybrid]))
    with pytest.raises(UsageError, match="cannot be rolled back"):
        plan_replay(probe_options())


@pytest.mark.usefixtures("llama_cpp")
def test_predictions_for_a_draft_model_agree_with_a_server(tmp_path: Path) -> None:
    with serving("embedded", TARGET, tmp_path, None) as plain:
        path, requests = record_responses(plain, tmp_path)
    spec_options = (SpeculationOptions("code", DRAFT),)
    found: ConversationReplay = replay_conversations(
        probe_options(spec_options_list=spec_options),
        read_conversations(path),
        tmp_path / "log",
        _Silent(),
    )
    alone = next(s for s in found.settings if s.speculation.methods == ("draft-simple",))
    assert set(alone.curve) == set(range(1, 17))
    assert any(s.speculation.uses_draft and s.speculation.uses_ngram for s in found.settings)
    counted = serve_requests(tmp_path, alone.speculation, requests)
    drafted, accepted = sum(d for d, _, _ in counted), sum(a for _, a, _ in counted)
    # batch shapes differ in process and in the server: between equally likely tokens, rounding
    # decides
    assert alone.drafted == pytest.approx(drafted, rel=0.05)
    assert alone.accepted == pytest.approx(accepted, rel=0.1)
    assert found.dropped == ()


def test_without_llama_cpp_python_the_draft_is_left_out_with_advice(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from specllama.serving import replay as module

    monkeypatch.setattr(module, "available", lambda: False)
    path = conversation_file(tmp_path, {"prompt": "def f(a):", "answer": "\n    return a\n"})
    found = replay_conversations(
        probe_options(spec_options_list=(SpeculationOptions("code", DRAFT),)),
        read_conversations(path),
        tmp_path / "log",
        _Silent(),
    )
    (dropped,) = found.dropped
    assert "pip install llama-cpp-python" in dropped.reason
    assert any(s.speculation.methods == ("ngram-simple",) for s in found.settings)
