"""ik_llama.cpp's server: its help, launch and verification. Most tests use a fake server that
behaves as a real one did; SPECLLAMA_TEST_IK_SERVER names a real one."""

from __future__ import annotations

from pathlib import Path

from specllama.engine.capabilities import read_capabilities
from specllama.engine.locate import locate
from tests import help_render
from tests.fake_ik import FakeIk
from tests.support import MODELS, Serve

PAIR = (MODELS / "target.gguf", "--draft", MODELS / "draft.gguf")


def test_help_is_parsed_although_it_exits_with_1(tmp_path: Path) -> None:
    caps = read_capabilities(locate(str(FakeIk(tmp_path).path)))
    assert (caps.problem, caps.flavour, caps.build) == ("", "ik_llama", None)
    assert len(caps.options) == len(help_render.ik_data()["options"])
    for name in ("--ctx-checkpoints", "-crs", "--webui-mcp-proxy", "--spec-autotune"):
        assert caps.find(name) is not None


def test_drafted_tokens_are_counted_from_its_timings(tmp_path: Path) -> None:
    fake = FakeIk(tmp_path)
    with Serve(tmp_path, *PAIR, "--llama-server", fake.path) as serving:
        assert serving.info["speculation"] == "on"
        assert serving.info["alpha"] == serving.info["accepted"] / serving.info["drafted"]
        assert "it does not support --list-devices" in str(serving.info["warnings"])
    (argv,) = fake.starts
    assert "--jinja" in argv
    assert argv[argv.index("--spec-type") + 1].startswith("draft:n_max=3,")
    assert not {"--slots", "-ngld", "-lv", "--fit-target"} & set(argv)


def test_a_real_ik_llama_server_drafts(ik_server: Path, tmp_path: Path) -> None:
    with Serve(tmp_path, *PAIR, "--llama-server", ik_server) as serving:
        assert serving.info["flavour"] == "ik_llama"
        assert serving.info["speculation"] == "on"
        assert serving.info["drafted"] > 0


def test_tuning_measures_all_draft_lengths_on_one_server_with_new_prompts(tmp_path: Path) -> None:
    fake = FakeIk(tmp_path)
    tune = ("--tune", "auto", "--llama-server", fake.path)
    with Serve(tmp_path, *PAIR, *tune) as serving:
        assert serving.info["speculation"] == "on"
        assert serving.info["methods"] == ["draft-simple"]
        assert "one launch at K=5" in serving.err
    assert len(fake.starts) <= 4
    drafted = [a for a in fake.requests if a["drafted"]]
    assert len({a["k"] for a in drafted}) >= 3
    assert not any(a["repeated"] for a in drafted)
