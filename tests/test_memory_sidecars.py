"""Memory of drafters with their own architecture, compared with the server's log.

llama-fit-params does not support them: it exits with "requires ctx_other to be set".
"""

from __future__ import annotations

from pathlib import Path

import pytest

from specllama.gguf import read_model
from specllama.memory.devices import MIB
from specllama.memory.estimate import Drafting, GpuSplit, estimate, total
from specllama.memory.observed import read_log
from specllama.memory.use import ModelUse
from tests import untrained
from tests.support import MODELS, Serve

TARGET = MODELS / "target.gguf"


@pytest.mark.parametrize("kind", untrained.ALL)
def test_the_estimate_is_within_5_percent_of_the_log(
    kind: str, engine: str, tmp_path: Path
) -> None:
    args = ("--draft", MODELS / f"{kind}.gguf", "--llama-server", engine)
    with Serve(tmp_path, TARGET, *args, "--", "-lv", "4") as s:
        real = read_log(Path(s.info["log"]).read_text())
        lines = s.info["memory"]["lines"]
    assert real is not None
    cache = sum(x["bytes"] for x in lines if x["what"] == "KV cache")
    assert cache == pytest.approx(real.cache, abs=MIB / 50)
    assert sum(x["bytes"] for x in lines) == pytest.approx(real.total, rel=0.05)


# MiB of the compute buffers of target and draft together, from the log of b11434's server on
# these files after a request: (eagle3, dflash and dspark).
MEASURED = {
    ModelUse(2048, outputs=1): (25.78, 25.28),
    ModelUse(8192, ubatch=256, outputs=1): (15.90, 15.65),
    ModelUse(8192, ubatch=1024, batch=1024, outputs=1): (63.54, 62.54),
    ModelUse(8192, flash=False, outputs=1): (167.02, 167.02),
}


@pytest.mark.parametrize("kind", untrained.ALL)
@pytest.mark.parametrize("use", MEASURED, ids=["usual", "small ubatch", "large ubatch", "no flash"])
def test_compute_buffers_agree_with_measured_ones(kind: str, use: ModelUse, tmp_path: Path) -> None:
    """An encoder keeps logits for a whole batch, twice, because tokens are sampled on the device."""
    draft = read_model(untrained.ALL[kind](tmp_path / "d.gguf"))
    drafting = Drafting((f"draft-{kind}",), draft, 3)
    lines = estimate(read_model(TARGET), use, GpuSplit(), drafting)
    measured = MEASURED[use][0 if kind == "eagle3" else 1]
    assert total([x for x in lines if x.what == "compute"]) / MIB == pytest.approx(
        measured, rel=0.06
    )


def test_a_drafter_with_the_targets_output_matrix_has_logits_of_its_size(tmp_path: Path) -> None:
    draft = read_model(untrained.eagle3(tmp_path / "d.gguf"))
    assert draft.layout.vocabulary == 0
    lines = estimate(
        read_model(TARGET), ModelUse(2048), GpuSplit(), Drafting(("draft-eagle3",), draft, 3)
    )
    compute = next(x for x in lines if (x.who, x.what) == ("draft", "compute"))
    assert compute.bytes >= 2 * 4096 * 512 * 4


def test_a_draft_buffer_reserved_again_counts_until_the_server_listens() -> None:
    log = """\
load_tensors: CPU_Mapped model buffer size = 2.00 MiB
llama_context: CPU output buffer size = 0.02 MiB
sched_reserve: CPU compute buffer size = 8.00 MiB
load_tensors: CPU_Mapped model buffer size = 4.00 MiB
llama_context: CPU output buffer size = 0.02 MiB
sched_reserve: CPU compute buffer size = 9.00 MiB
sched_reserve: CPU compute buffer size = 17.00 MiB
srv llama_server: listening on http://127.0.0.1:1
sched_reserve: CPU compute buffer size = 10.00 MiB
"""
    found = read_log(log)
    assert found is not None
    assert (found.weights, found.compute) == (6 * MIB, 27 * MIB)
