"""The built-in profiles."""

from __future__ import annotations

from pathlib import Path

import pytest

from specllama import workloads
from specllama.errors import UsageError
from specllama.prompts import as_text
from specllama.resources import profiles_dir

HELD_OUT = Path(__file__).parent.parent / "benchmarks" / "prompts"


def test_the_documented_profiles_exist() -> None:
    assert workloads.names() == sorted(
        "chat code text edit creative rag summarize reasoning agent translate".split()
    )


@pytest.mark.parametrize("name", workloads.names())
def test_each_profile_is_complete(name: str) -> None:
    w = workloads.load_workload(name)
    assert w.title
    assert w.methods
    assert 0 <= w.sampling["temperature"] <= 2
    assert w.n_max >= 1
    assert len(w.prompts) == 24
    assert len(set(map(as_text, w.prompts))) == len(w.prompts)
    assert (
        max(len(as_text(p)) for p in w.prompts[:2]) < 600
    )  # the verification at every start uses them


@pytest.mark.parametrize("name", ["code", "edit", "text"])
def test_both_halves_of_the_prompts_have_the_same_sizes(name: str) -> None:
    sizes = [len(as_text(p)) for p in workloads.load_workload(name).prompts]
    halves = (sizes[:12], sizes[12:])
    for limits in ((0, 600), (600, 2200), (2200, 6500)):
        first, second = (sum(limits[0] <= n < limits[1] for n in half) for half in halves)
        assert first == second > 0


def test_benchmark_prompts_share_no_lines_with_the_profiles() -> None:
    """Held-out prompts, which judge settings chosen by the profiles' prompts, share no line of 40 or
    more characters with them."""
    files = sorted(HELD_OUT.glob("*.txt"))
    assert [f.stem for f in files] == ["chat", "code", "edit", "text"]
    for file in files:
        held_out = file.read_text(encoding="utf-8")
        assert len(held_out.split("\n=====\n")) == 12
        each = (workloads.load_workload(n).prompts for n in workloads.names())
        shipped = "\n".join(as_text(p) for prompts in each for p in prompts)
        lines = {s.strip() for s in held_out.splitlines()} & {
            s.strip() for s in shipped.splitlines()
        }
        assert max(map(len, lines), default=0) < 40


@pytest.mark.parametrize(("name", "sizes"), [("code", (12, 48)), ("text", (8, 32))])
def test_n_gram_sizes_of_profiles(name: str, sizes: tuple[int, int]) -> None:
    ngram = workloads.load_workload(name).ngram
    assert (ngram.n, ngram.m) == sizes


@pytest.mark.parametrize("name", ["nope", "../code", "", "prompts"])
def test_an_unknown_workload_is_an_error(name: str) -> None:
    with pytest.raises(UsageError, match="no workload called") as e:
        workloads.load_workload(name)
    assert "code" in e.value.hint


def test_the_error_for_a_broken_profile_names_the_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(workloads, "profiles_dir", lambda: tmp_path)
    (tmp_path / "prompts").mkdir()
    (tmp_path / "prompts" / "x.txt").write_text("one\n=====\ntwo\n")
    good = 'title="x"\nmethods=["ngram-simple"]\n[sampling]\n[ngram]\nn=1\nm=2\n[draft]\nn_max=1\np_min=0\n'
    (tmp_path / "x.toml").write_text(good)
    assert workloads.load_workload("x").prompts == ("one", "two")
    for broken in (
        good.replace("ngram-simple", "draft-self"),
        good.replace("n_max=1", ""),
        "typo = 1\n" + good,
        "not toml",
    ):
        (tmp_path / "x.toml").write_text(broken)
        with pytest.raises(UsageError, match=r"x\.toml"):
            workloads.load_workload("x")


@pytest.mark.parametrize(
    ("line", "instead", "message"),
    [
        ("n_max=1", "n_max=0", "draft.n_max is 0: must be an integer from 1 to 512"),
        ("n_max=1", "n_max=1.5", "draft.n_max is 1.5: must be an integer"),
        ("n_max=1", "n_max=true", "draft.n_max is true: must be an integer"),
        ("n_max=1", "nmax=1", "unknown setting draft.nmax"),
        ("n_max=1", "", "draft.n_max is missing (must be an integer from 1 to 512)"),
        ("p_min=0", "p_min=7", "draft.p_min is 7: must be a number from 0 to 1"),
        ("p_min=0", 'p_min="0"', 'draft.p_min is "0": must be a number from 0 to 1'),
        ("n=1", "n=nan", "ngram.n is nan: must be an integer from 1 to 1024"),
        ("m=2", "m=99999", "ngram.m is 99999: must be an integer from 1 to 1024"),
        ("m=2", "m=2\nmin_hits=-1", "ngram.min_hits is -1: must be"),
        ('title="x"', "title=7", "title is 7: must be a string"),
        ('title="x"', "", "title is missing (must be a string)"),
        ('title="x"', 'title="x"\nmax_tokens="many"', 'max_tokens is "many": must be an integer'),
        ('title="x"', 'title="x"\nthinking=1', "thinking is 1: must be true or false"),
        ('["ngram-simple"]', '["draft-self"]', "methods is \"draft-self\": must be a list of these"),
        ('["ngram-simple"]', '"ngram-simple"', "must be a list of these"),
        ('["ngram-simple"]', "[]", "methods is []: must be a list of these"),
        ('["ngram-simple"]', "[[1]]", "methods is [1]: must be a list of these"),
        ("[sampling]", "[sampling]\ntemperature=3", "sampling.temperature is 3: must be a number"),
        ("[sampling]", "[sampling]\ntop_p=inf", "sampling.top_p is inf: must be a number"),
        ("[sampling]", "[sampling]\nstop='x'", 'sampling.stop is "x": must be a number'),
        ("[sampling]", "[[sampling]]", "sampling is [{}]: must be a table"),
        ("[ngram]", "[other]", "unknown setting other"),
    ],
)  # fmt: skip
def test_the_error_for_a_wrong_value_names_the_allowed_values(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, line: str, instead: str, message: str
) -> None:
    monkeypatch.setattr(workloads, "profiles_dir", lambda: tmp_path)
    (tmp_path / "prompts").mkdir()
    (tmp_path / "prompts" / "x.txt").write_text("one")
    good = 'title="x"\nmethods=["ngram-simple"]\n[sampling]\n[ngram]\nn=1\nm=2\n[draft]\nn_max=1\np_min=0\n'
    assert good.count(line) >= 1
    (tmp_path / "x.toml").write_text(good.replace(line, instead, 1))
    with pytest.raises(UsageError) as e:
        workloads.load_workload("x")
    assert e.value.message.startswith(f"{tmp_path / 'x.toml'}: ")
    assert message in e.value.message


def test_a_profile_of_version_0_1_0_can_be_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`profiles new` wrote `answer = …` for max_tokens."""
    old = (profiles_dir() / "reasoning.toml").read_text().replace("max_tokens", "answer")
    monkeypatch.setattr(workloads, "profiles_dir", lambda: tmp_path)
    (tmp_path / "prompts").mkdir()
    (tmp_path / "prompts" / "x.txt").write_text("one")
    (tmp_path / "x.toml").write_text(old)
    assert workloads.load_workload("x").max_tokens == 512


def test_a_profile_without_prompts_is_an_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(workloads, "profiles_dir", lambda: tmp_path)
    (tmp_path / "prompts").mkdir()
    (tmp_path / "prompts" / "x.txt").write_text("\n")
    (tmp_path / "x.toml").write_text('title="x"\n')
    with pytest.raises(UsageError, match="no prompts in"):
        workloads.load_workload("x")
