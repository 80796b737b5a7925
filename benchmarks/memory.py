"""Memory estimates against llama-fit-params: `python -m benchmarks.memory [LLAMA_FIT_PARAMS]`.

Headers of well-known models at their real dimensions (tests/giants.py) at several contexts,
cache types, ubatch sizes, with and without flash attention. One row per configuration:
MiB by our formulas, by llama.cpp, and the error; then the median and the worst.
"""

from __future__ import annotations

import argparse
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent.parent))

from specllama.gguf import read_model
from specllama.memory.estimate import GpuSplit, model_lines, total
from specllama.memory.use import ModelUse
from tests.giants import GIANTS, build

MIB = 2**20
# (context, ubatch, flash attention, cache type) of each configuration
SETTINGS = (
    (4096, 512, True, "f16"),
    (4096, 512, False, "f16"),
    (4096, 2048, True, "f16"),
    (32768, 512, True, "f16"),
    (32768, 512, True, "q8_0"),
    (32768, 2048, False, "f16"),
    (131072, 512, True, "q4_0"),
    (131072, 512, True, "f16"),
)


@dataclass(frozen=True)
class Row:
    """One configuration. MiB; llama.cpp's are cut to whole ones."""

    name: str
    use: ModelUse
    ours: tuple[float, float, float]
    theirs: tuple[int, int, int]

    @property
    def error(self) -> float:
        """Of the total. llama.cpp cuts each of its three numbers: half a MiB each is added."""
        truth = sum(self.theirs) + 1.5
        return (sum(self.ours) - truth) / truth

    @property
    def cache_is_exact(self) -> bool:
        """KV cache and state, and weights, to the MiB llama.cpp prints."""
        return int(self.ours[0]) == self.theirs[0] and int(self.ours[1]) == self.theirs[1]


def ours(name: str, folder: Path, use: ModelUse) -> tuple[float, float, float]:
    """(weights, context, compute) in MiB, for all in RAM."""
    lines = list(model_lines("target", read_model(build(folder, name)), use, GpuSplit()))

    def mib(*what: str) -> float:
        return total([line for line in lines if line.what in what]) / MIB

    return mib("weights"), mib("KV cache", "recurrent state"), mib("compute")


def theirs(binary: str, path: Path, use: ModelUse) -> tuple[int, int, int]:
    """llama-fit-params' (model, context, compute) in MiB. Reads no weights."""
    argv = [binary, "-m", str(path), "-fitp", "on", "-fit", "off", "--no-repack"]
    argv += ["-c", str(use.context), "-np", "1", "-b", str(use.batch), "-ub", str(use.ubatch)]
    argv += ["-fa", "on" if use.flash else "off", "-ctk", use.cache_k, "-ctv", use.cache_v]
    done = subprocess.run(argv, capture_output=True, text=True, errors="replace", check=False)
    host = [line.split() for line in done.stdout.splitlines() if line.startswith("Host ")]
    if not host:
        sys.exit(f"{path.name}: {binary} gave no figures:\n{(done.stdout + done.stderr)[-500:]}")
    return int(host[0][1]), int(host[0][2]), int(host[0][3])


def rows(binary: str, folder: Path, names: Iterable[str] = GIANTS) -> Iterator[Row]:
    """Each model at every setting."""
    for name in names:
        for context, ubatch, flash, kind in SETTINGS:
            use = ModelUse(context, ubatch=ubatch, flash=flash, cache_k=kind, cache_v=kind)
            yield Row(
                name, use, ours(name, folder, use), theirs(binary, folder / f"{name}.gguf", use)
            )


def find() -> str | None:
    """llama-fit-params on PATH, next to the tests' native server, or in .ci/build-llama's
    output folder."""
    server = os.environ.get("SPECLLAMA_TEST_LLAMA_SERVER")
    folders = [Path(server).parent] if server else []
    folders += sorted((Path.home() / ".cache" / "specllama" / "ci").glob("*/bin"))
    beside = (shutil.which("llama-fit-params", path=str(f)) for f in folders)
    return shutil.which("llama-fit-params") or next(filter(None, beside), None)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("binary", nargs="?", default=find())
    binary = parser.parse_args().binary
    if not binary:
        sys.exit("no llama-fit-params found; give its path, or build one with .ci/build-llama")
    done = []
    print(
        f"{'model':20} {'context':>8} {'ubatch':>6} fa  cache {'ours':>11} {'llama.cpp':>11} {'error':>7}"
    )
    with tempfile.TemporaryDirectory() as folder:
        for r in rows(binary, Path(folder)):
            done.append(r)
            u = r.use
            exact = "" if r.cache_is_exact else "  cache or weights differ"
            print(
                f"{r.name:20} {u.context:8} {u.ubatch:6} {'on ' if u.flash else 'off'} {u.cache_k:5} "
                f"{sum(r.ours):11,.0f} {sum(r.theirs):11,} {r.error:+7.2%}{exact}"
            )
    errors = [r.error for r in done]
    print(
        f"{len(done)} configurations of {len(GIANTS)} models: "
        f"median error {statistics.median(map(abs, errors)):.2%}, "
        f"worst over {max(errors):+.2%}, worst under {min(errors):+.2%}; weights and cache exact "
        f"in {sum(r.cache_is_exact for r in done)}"
    )


if __name__ == "__main__":
    main()
