"""Byte mutations of real headers: no traceback, no hang, no excessive memory."""

from __future__ import annotations

import json
import random
import subprocess
import sys

import pytest

from tests.support import MODELS

# Runs in a separate process, so that its peak memory can be measured.
_FUZZ = """
import json, random, resource, sys, time
from pathlib import Path
from specllama.gguf import GgufError, LazyArray, model_info
from specllama.gguf.header import parse_header
from specllama.gguf.oddities import oddities
from specllama.gguf.source import BytesSource
from specllama.memory.errors import MemoryInputError
from specllama.memory.estimate import GpuSplit, model_lines
from specllama.memory.use import ModelUse
path, seed, rounds = Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3])
raw, rng = path.read_bytes(), random.Random(seed)
end = parse_header(BytesSource(raw)).data_offset
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
worst, good = 0.0, 0
for _ in range(rounds):
    data = bytearray(raw)
    for _ in range(rng.randint(1, 12)):
        # mutations near the beginning have the most effect: they hit lengths and counts
        at = rng.randrange(min(end, rng.choice((64, 2000, end))))
        data[at] = rng.choice((0, 1, 9, 127, 255, rng.randrange(256)))
    if rng.random() < 0.2:
        del data[rng.randrange(8, len(data)):]
    begin = time.perf_counter()
    try:
        header = parse_header(BytesSource(bytes(data)))
        info = model_info([header], [path])
        list(oddities(info))
        good += 1
        list(model_lines("target", info, ModelUse(4096), GpuSplit(("GPU0",), (1.0,))))
        list(model_lines("draft", info, ModelUse(4096, flash=False), GpuSplit(), mtp=True))
    except (GgufError, MemoryInputError):
        pass
    worst = max(worst, time.perf_counter() - begin)
peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before
print(json.dumps({"worst_s": worst, "peak_kib": peak, "good": good}))
"""


@pytest.mark.skipif(sys.platform == "win32", reason="resource is POSIX only")
@pytest.mark.parametrize(("name", "rounds"), [("target", 400), ("mtp-head", 400), ("phi-3", 60)])
def test_mutated_headers_are_read_or_rejected_within_limits(
    name: str, rounds: int, request: pytest.FixtureRequest
) -> None:
    if name == "phi-3":
        path = request.getfixturevalue("vocab_dir") / "ggml-vocab-phi-3.gguf"
    else:
        path = MODELS / f"{name}.gguf"
    seed = random.Random(name).randrange(10**6)
    argv = [sys.executable, "-c", _FUZZ, str(path), str(seed), str(rounds)]
    done = subprocess.run(argv, capture_output=True, text=True, timeout=150, check=False)
    assert done.returncode == 0, done.stderr[-2000:]
    result = json.loads(done.stdout)
    assert 0 < result["good"] < rounds  # the mutations are neither harmless nor all fatal
    assert result["worst_s"] < 5  # a hang, not a measurement
    assert result["peak_kib"] < 200 * 1024 + 4 * path.stat().st_size / 1024
