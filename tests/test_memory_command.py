"""`specllama memory` and the memory check of serve, with real and fake servers."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from specllama.engine.settings import Settings
from specllama.memory.observed import read_log
from specllama.planning.feasible import feasible_methods
from specllama.planning.prepare import prepare
from specllama.planning.spec_options import SpeculationOptions
from tests import zoo
from tests.fake_server import Fake
from tests.giants import build
from tests.support import MODELS, Serve, specllama

TARGET, DRAFT, MTP = (MODELS / f"{n}.gguf" for n in ("target", "draft", "mtp"))
MIB = 2**20
CUDA = "  CUDA0: NVIDIA GeForce RTX 3090 (24124 MiB, 23600 MiB free)"


@pytest.fixture(scope="module")
def headers(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("giants")
    for name in ("llama-3.1-70b", "llama-3.2-1b", "llama-3.1-8b"):
        build(folder, name, zoo.LLAMA31)
    return folder


def memory_json(*args: str | Path) -> dict[str, Any]:
    done = specllama("memory", *args, "--json")
    assert done.returncode == 0, done.stderr
    data: dict[str, Any] = json.loads(done.stdout)
    return data


def test_the_table_has_items_a_verdict_and_the_options(headers: Path) -> None:
    target, draft = headers / "llama-3.1-70b.gguf", headers / "llama-3.2-1b.gguf"
    done = specllama("memory", target, "--draft", draft, "-c", "32768", "--vram", "48GiB")
    assert done.returncode == 0
    out = done.stdout
    for part in ("target weights", "target KV cache", "target compute", "draft weights"):
        assert re.search(rf"^{part} ", out, re.M)
    assert re.search(r"^draft KV cache +1,024\.0 ", out, re.M)
    assert re.search(r"^usable +49,152\.0 ", out, re.M)
    assert re.search(r"^verdict  (fits only if|does not fit)", out, re.M)
    assert "chosen   8 of the draft's 17 layers in RAM: fits  [--draft-layers 9]" in out
    assert "option   a context of 30,720 tokens with this draft: fits  [-c 30720]" in out
    assert "option   n-gram only (ngram-simple, no VRAM): fits  [--method ngram-simple]" in out
    assert re.search(
        r"^longest  30,720 tokens with the draft, 36,096 without on the GPU alone "
        r"\([\d,]+ tokens with layers in RAM\)$",
        out,
        re.M,
    )
    assert "\x1b" not in out


@pytest.mark.parametrize(
    ("args", "message"),
    [
        (
            ("--method", "none"),
            r"no context fits on the GPU alone \([\d,]+ tokens with layers in RAM\)",
        ),
        (
            ("--draft", DRAFT),
            r"no context fits on the GPU alone \([\d,]+ tokens with layers in RAM\), with or without a draft",
        ),
        (("--method", "none", "--", "-ngl", "99"), "no context fits"),
        (("--draft", DRAFT, "--", "-ngl", "99"), "no context fits, with or without a draft"),
    ],
)
def test_longest_line_reports_that_no_context_fits(
    args: tuple[str | Path, ...], message: str
) -> None:
    done = specllama("memory", TARGET, "--vram", "1MiB", "--llama-server", "embedded", *args)
    assert done.returncode == 0, done.stderr
    assert re.search(rf"^longest  {message}$", done.stdout, re.M)


def test_a_context_that_fits_only_without_the_draft_is_reported(headers: Path) -> None:
    pair = (headers / "llama-3.1-70b.gguf", "--draft", headers / "llama-3.1-8b.gguf")
    done = specllama("memory", *pair, "--vram", "40GiB", "-c", "4096")
    assert re.search(
        r"^longest  no context fits.*; [\d,]+ tokens without a draft$", done.stdout, re.M
    )


@pytest.mark.parametrize(
    ("args", "message"),
    [
        (("-c", "1000"), "2,048 tokens, with or without n-grams"),
        (("-c", "100000"), "100,000 tokens, with or without n-grams"),  # no multiple of 256
        (
            ("-c", "100000", "--vram", "100MiB"),
            r"([\d,]+) tokens on the GPU alone \(100,000 tokens with layers in RAM\), with or without n-grams",
        ),
    ],
)
def test_longest_line_with_n_grams(args: tuple[str, ...], message: str) -> None:
    args = ("--method", "ngram-simple", "--vram", "24GiB", *args)
    done = specllama("memory", TARGET, "--llama-server", "embedded", *args)
    assert done.returncode == 0, done.stderr
    assert re.search(rf"^longest  {message}$", done.stdout, re.M), done.stdout


def test_pick_draft_reports_that_no_context_fits() -> None:
    done = specllama("pick-draft", TARGET, "--vram", "1MiB", "--llama-server", "embedded")
    assert "without a draft no context length fits" in done.stdout


def test_a_model_that_does_not_fit_is_a_verdict_and_not_an_error() -> None:
    args = ("--draft", DRAFT, "--vram", "1MiB", "--llama-server", "embedded", "--", "-ngl", "99")
    done = specllama("memory", TARGET, *args)
    assert done.returncode == 0, done.stderr
    assert "verdict  does not fit: GPU0 is " in done.stdout


def test_json_lines_add_up_to_the_totals_per_device(headers: Path) -> None:
    target, draft = headers / "llama-3.1-70b.gguf", headers / "llama-3.2-1b.gguf"
    data = memory_json(target, "--draft", draft, "-c", "32768", "--vram", "48GiB,24GiB")
    assert data["verdict"] == "fits"
    assert [d["name"] for d in data["devices"]] == ["GPU0", "GPU1", "RAM"]
    sums = {d["name"]: 0 for d in data["devices"]}
    for line in data["lines"]:
        sums[line["device"]] += line["bytes"]
    assert sums == data["chosen"]["bytes"]


def test_the_default_context_is_the_longest_that_fits(headers: Path) -> None:
    target, draft = headers / "llama-3.1-70b.gguf", headers / "llama-3.2-1b.gguf"
    speed = memory_json(target, "--draft", draft, "--vram", "48GiB")
    assert (speed["context_wanted"], speed["context"]) == (131072, 30720)
    assert speed["verdict"] == "fits"
    context = memory_json(target, "--draft", draft, "--vram", "48GiB", "--prefer", "context")
    assert context["context"] == 36096
    assert context["chosen"]["flags"] == ["--method", "ngram-simple"]


def test_prefer_speed_shortens_the_context(headers: Path) -> None:
    target, draft = headers / "llama-3.1-70b.gguf", headers / "llama-3.2-1b.gguf"
    data = memory_json(
        target, "--draft", draft, "-c", "32768", "--vram", "48GiB", "--prefer", "speed"
    )
    assert (data["context"], data["verdict"]) == (30720, "fits")


def test_llama_fit_params_is_used_where_it_exists(native: Path, headers: Path) -> None:
    data = memory_json(headers / "llama-3.1-8b.gguf", "-c", "4096", "--llama-server", native)
    assert {x["what"]: x["source"] for x in data["lines"]} == {
        "weights": "llama.cpp",
        "KV cache": "llama.cpp",
        "compute": "formula",
    }


@pytest.mark.parametrize(
    ("args", "message"),
    [
        (["-c", "-5"], "must be an integer from 0"),
        (["-c", "99999999999"], "must be an integer from 0"),
        (["-ctk", "q9_9"], "-ctk q9_9: unknown cache type"),
        (["-ctv", "q8_0", "--", "-fa", "off"], "needs flash attention"),
        (["--vram", "lots"], "--vram lots: not a size"),
        (["--vram", ""], "--vram"),
        (["--prefer", "both"], "--prefer both"),
        (["--draft-cache", "q1", "--draft", str(DRAFT)], "--draft-cache q1: unknown cache type"),
        (["--method", "magic"], "no method called 'magic'"),
    ],
)
def test_bad_input_is_one_clear_line(args: list[str], message: str) -> None:
    done = specllama("memory", TARGET, *args)
    assert done.returncode == 2
    assert message in done.stderr.splitlines()[0]
    assert len(done.stderr.splitlines()) <= 2


def test_an_inconsistent_header_is_an_error_in_memory_only(tmp_path: Path) -> None:
    path = tmp_path / "odd.gguf"
    fields = zoo.shape("llama", "odd", 64, 3) | zoo.LLAMA2.fields()
    zoo.write(path, "llama", fields, zoo.llama_tensors(zoo.LLAMA2, 64))
    done = specllama("memory", path)
    assert done.returncode == 2
    assert "block_count is 3, but block 1 has no tensors" in done.stderr
    # in serve, llama-server decides
    done = specllama("serve", path, "--dry-run", "--method", "none")
    assert done.returncode == 0
    assert "memory unknown: the header of odd.gguf is inconsistent" in done.stdout


@pytest.mark.parametrize(
    ("config", "message"),
    [
        ({"devices_code": 3}, "--list-devices exited with code 3"),
        ({"devices_head": "ggml_cuda_init: failed", "devices": "?"}, "could not parse"),
    ],
)
def test_unreadable_devices_are_an_error_in_memory_only(
    tmp_path: Path, config: dict[str, Any], message: str
) -> None:
    fake = Fake(tmp_path, **config)
    done = specllama("memory", TARGET, "--llama-server", fake.path)
    assert done.returncode == 2
    assert message in done.stderr.splitlines()[0]
    assert "--vram" in done.stderr
    assert (
        specllama("memory", TARGET, "--llama-server", fake.path, "--vram", "1GiB").returncode == 0
    )
    # serve continues with a note
    done = specllama("serve", TARGET, "--llama-server", fake.path, "--dry-run")
    assert done.returncode == 0
    assert "note     memory not checked" in done.stdout


def test_a_context_beyond_training_is_a_warning() -> None:
    data = memory_json(TARGET, "-c", "8192")
    assert "the context is 8,192 tokens, but the model was trained on 2,048" in data["warnings"]
    assert not any("logprobs" in w for w in data["warnings"])  # they need no memory


def test_serve_uses_n_grams_if_the_draft_does_not_fit() -> None:
    done = specllama("serve", TARGET, "--draft", DRAFT, "--vram", "16MiB", "--dry-run")
    assert done.returncode == 0
    method = next(x for x in done.stdout.splitlines() if x.startswith("method"))
    assert method.startswith(
        "method   ngram-simple: draft.gguf does not fit together with the target"
    )
    assert re.search(r"\(GPU0 is \d\.\d MiB short\); n-gram only", method)
    assert "-md" not in done.stdout.splitlines()[-1]


def test_serve_runs_the_option_it_chose(tmp_path: Path, engine: str) -> None:
    with Serve(
        tmp_path, TARGET, "--draft", DRAFT, "--vram", "12MiB", "--llama-server", engine
    ) as s:
        assert s.info["methods"] == ["ngram-simple"]
        assert s.info["memory"]["requested"]["verdict"] != "fits"
        assert s.info["memory"]["verdict"] == "fits"


def test_the_estimate_agrees_with_the_servers_log(tmp_path: Path, engine: str) -> None:
    """Target + draft, and MTP: each part as the server allocates it."""
    for number, args in enumerate(((TARGET, "--draft", DRAFT), (MTP,))):
        folder = tmp_path / str(number)
        folder.mkdir()
        with Serve(folder, *args, "--llama-server", engine, "--", "-lv", "4") as s:
            real = read_log(Path(s.info["log"]).read_text())
            lines = s.info["memory"]["lines"]
        assert real is not None
        estimated = {
            w: sum(x["bytes"] for x in lines if x["what"] == w)
            for w in ("weights", "KV cache", "compute")
        }
        assert estimated["weights"] == pytest.approx(real.weights, abs=MIB / 50)
        assert estimated["KV cache"] == pytest.approx(real.cache, abs=MIB / 50)
        assert real.compute <= estimated["compute"] <= 1.5 * real.compute
        # the next estimate shows what was measured
        last = memory_json(*args, "-c", "1024", "--llama-server", engine)["last_time"]
        assert last["real_bytes"] == real.total
        assert last["share"] == pytest.approx(real.total / last["ours_bytes"] - 1)


def test_the_number_of_draft_layers_is_passed_explicitly(tmp_path: Path, headers: Path) -> None:
    fake = Fake(tmp_path, devices=CUDA)
    target, draft = headers / "llama-3.1-8b.gguf", headers / "llama-3.2-1b.gguf"
    args = ("serve", target, "--draft", draft, "-c", "8192", "--dry-run", "--json")
    data = json.loads(specllama(*args, "--llama-server", fake.path).stdout)
    command = data["command"]
    assert command[command.index("-ngld") + 1] == "17"
    assert "--fit-target" not in command  # b11434 counts the draft itself
    assert data["memory"]["devices"][0]["name"] == "CUDA0"
    with_draft_layers = json.loads(
        specllama(*args, "--llama-server", fake.path, "--draft-layers", "3").stdout
    )
    assert with_draft_layers["command"][with_draft_layers["command"].index("-ngld") + 1] == "3"


def test_fit_target_includes_the_draft_for_builds_that_ignore_it(
    tmp_path: Path, headers: Path
) -> None:
    fake = Fake(tmp_path, devices=CUDA, build=9246)
    target, draft = headers / "llama-3.1-8b.gguf", headers / "llama-3.2-1b.gguf"
    args = ("serve", target, "--draft", draft, "-c", "8192", "--dry-run", "--json")
    data = json.loads(specllama(*args, "--llama-server", fake.path).stdout)
    extra = sum(
        x["bytes"] for x in data["memory"]["lines"] if (x["who"], x["device"]) == ("draft", "CUDA0")
    )
    command = data["command"]
    assert int(command[command.index("--fit-target") + 1]) == 1024 + -(-extra // MIB)


def test_settings_of_the_tuner_get_draft_layers_and_fit_target(
    tmp_path: Path, headers: Path
) -> None:
    """Every setting that the tuner measures gets -ngld and --fit-target."""
    fake = Fake(tmp_path, devices=CUDA, build=9246)
    target, draft = headers / "llama-3.1-8b.gguf", headers / "llama-3.2-1b.gguf"
    settings = Settings(target, "127.0.0.1", 0, context=8192)
    plan = prepare(
        settings, SpeculationOptions("code", draft), (), str(fake.path), check_port=False
    )
    spec = plan.choice.speculation
    assert spec is not None
    bare = replace(spec, n_max=2, draft_layers=None)
    argv = plan.with_speculation(bare).command.argv
    assert argv[argv.index("-ngld") + 1] == "17"
    assert int(argv[argv.index("--fit-target") + 1]) > 1024
    assert "--fit-target" not in plan.with_speculation(None).command.argv
    found = feasible_methods(plan)
    assert [w.speculation.methods for w in found] == [("draft-simple",), ("ngram-simple",)]
    budget = plan.with_speculation(found[1].speculation).budget
    owners = {line.who for line in budget.lines} if budget is not None else {}
    assert owners == {"target"}, "the draft that is not loaded takes nothing"
    assert found[0].max_k == 16, "memory has room; the cost curve says how much is of use"


def test_the_users_arguments_change_the_estimate(tmp_path: Path, headers: Path) -> None:
    fake = Fake(tmp_path, devices=f"{CUDA}\n{CUDA.replace('CUDA0', 'CUDA1')}")
    target = headers / "llama-3.1-8b.gguf"

    def sums(*arguments: str) -> dict[str, int]:
        args = ("--method", "none", "-c", "8192", "--llama-server", fake.path)
        done = specllama("memory", target, *args, "--json", "--", *arguments)
        assert done.returncode == 0, done.stderr
        return dict(json.loads(done.stdout)["chosen"]["bytes"])

    both = sums()
    assert set(both) == {"RAM", "CUDA0", "CUDA1"}
    assert set(sums("-dev", "CUDA1")) == {"RAM", "CUDA1"}
    assert set(sums("-sm", "none", "-mg", "1")) == {"RAM", "CUDA1"}
    assert set(sums("-dev", "none")) == {"RAM"}
    assert sums("-ts", "3,1")["CUDA0"] > 2 * sums("-ts", "3,1")["CUDA1"]
    assert sums("-ngl", "0")["RAM"] > 4 * 2**30
    assert sums("-c", "16384")["CUDA0"] > both["CUDA0"]
    assert sums("-ctk", "q8_0", "-ctv", "q8_0")["CUDA0"] < both["CUDA0"]
    assert sums("-nkvo")["RAM"] == both["RAM"] + 8192 * 128 * 1024
    assert sums("--fit-target", "4096") == both  # a margin, not a requirement


def test_a_projector_is_part_of_the_estimate(tmp_path: Path) -> None:
    fake = Fake(tmp_path, devices=CUDA)
    projector = zoo.write(tmp_path / "mmproj.gguf", "clip", {}, {"v.weight": (1024, 1024)})
    done = specllama(
        "memory", TARGET, "--llama-server", fake.path, "--json", "--", "--mmproj", projector
    )
    line = next(x for x in json.loads(done.stdout)["lines"] if x["who"] == "projector")
    assert (line["device"], line["bytes"]) == ("CUDA0", 4 * MIB)


# ---- the server's log -----------------------------------------------------------

LOG = """\
load_tensors:        CUDA0 model buffer size =  4155.99 MiB
load_tensors:   CPU_Mapped model buffer size =   281.81 MiB
llama_context:  CUDA_Host  output buffer size =     0.49 MiB
llama_kv_cache:      CUDA0 KV buffer size =   512.00 MiB
llama_memory_recurrent:      CUDA0 RS buffer size =    10.00 MiB
sched_reserve:      CUDA0 compute buffer size =   258.50 MiB
sched_reserve:  CUDA_Host compute buffer size =    16.01 MiB
load_tensors:        CUDA0 model buffer size =   600.00 MiB
llama_context:  CUDA_Host  output buffer size =     0.49 MiB
llama_kv_cache:      CUDA0 KV buffer size =   128.00 MiB
sched_reserve:      CUDA0 compute buffer size =   100.00 MiB
sched_reserve:      CUDA0 compute buffer size =   100.00 MiB
"""


def test_a_buffer_reserved_twice_is_counted_once() -> None:
    real = read_log(LOG)
    assert real is not None
    assert real.weights == int(4155.99 * MIB) + int(281.81 * MIB) + 600 * MIB
    assert (real.cache, real.state) == (640 * MIB, 10 * MIB)
    assert real.compute == int(258.5 * MIB) + int(16.01 * MIB) + 100 * MIB


def test_a_log_without_buffer_sizes_gives_nothing() -> None:
    assert read_log("") is None
    assert read_log("main: server is listening") is None


@given(st.text() | st.text("modelKVRS buffer size = 0123456789.MiB\n"))
def test_any_log_can_be_parsed(text: str) -> None:
    read_log(text)


def test_a_variable_and_its_option_give_the_same_estimate(tmp_path: Path) -> None:
    """Docker users set all options as variables; the embedded engine's help lists no variable."""
    model = build(tmp_path, "qwen3-30b-a3b")
    arguments = ("memory", model, "--vram", "8GiB", "-c", "4096", "--method", "none", "--json")
    engine = ("--llama-server", "embedded")
    by_variable = specllama(*arguments, *engine, LLAMA_ARG_N_CPU_MOE="40")
    by_option = specllama(*arguments, *engine, "--", "--n-cpu-moe", "40")
    plain = specllama(*arguments, *engine)
    sums = [json.loads(d.stdout)["requested"]["bytes"] for d in (by_variable, by_option, plain)]
    assert sums[0] == sums[1] != sums[2]
