"""Real old builds serve the tiny pair, or say by name why they cannot."""

from __future__ import annotations

import os
import re
from pathlib import Path

import pytest

from specllama.engine import cpu
from tests import untrained
from tests.support import MODELS, Serve, specllama


def engine(builds: Path, name: str) -> tuple[str, str]:
    """--llama-server and PYTHONPATH that use the build."""
    path = os.environ.get("PYTHONPATH", "")
    if name.startswith("b"):
        return str(builds / name / "llama-server"), path
    return "embedded", os.pathsep.join(filter(None, (str(builds / name), path)))


@pytest.mark.parametrize("name", ["b10068", "xllamacpp-2026.4.8929", "xllamacpp-2026.7.9873"])
def test_it_drafts(name: str, old_builds: Path, tmp_path: Path) -> None:
    binary, path = engine(old_builds, name)
    draft = ("--draft", MODELS / "draft.gguf")
    with Serve(
        tmp_path, MODELS / "target.gguf", *draft, "--llama-server", binary, PYTHONPATH=path
    ) as serving:
        assert serving.info["speculation"] == "on"
        assert 0 < serving.info["alpha"] < 1


@pytest.mark.parametrize("name", ["b10434", "xllamacpp-2026.4.8672"])
def test_one_with_avx512_says_so_where_the_cpu_has_none(
    name: str, old_builds: Path, tmp_path: Path
) -> None:
    """Where the CPU has it, it drafts like the others."""
    if "AVX-512" not in cpu.missing_features():
        test_it_drafts(name, old_builds, tmp_path)
        return
    binary, path = engine(old_builds, name)
    argv = ("serve", MODELS / "target.gguf", "--draft", MODELS / "draft.gguf", "--tune", "off")
    done = specllama(*argv, "--port", "0", "--llama-server", binary, PYTHONPATH=path)
    assert done.returncode == 1
    assert "built for another CPU (SIGILL: this one lacks AVX-512)" in done.stderr
    assert "retrying" not in done.stderr
    assert ("`--llama-server embedded`" in done.stderr) == (binary != "embedded")


def test_n_grams_of_a_build_with_one_type_and_one_size(old_builds: Path, tmp_path: Path) -> None:
    binary, path = engine(old_builds, "xllamacpp-2026.4.8929")
    target = MODELS / "target.gguf"
    method = ("--method", "ngram-mod", "--workload", "edit")
    with Serve(tmp_path, target, *method, "--llama-server", binary, PYTHONPATH=path) as serving:
        assert "--spec-ngram-size-n" in serving.info["command"]
        assert serving.info["speculation"] == "on"


@pytest.mark.parametrize("name", ["b10068", "xllamacpp-2026.7.9873"])
@pytest.mark.parametrize("kind", ["eagle3", "dflash"])
def test_trained_drafters_on_builds_that_have_them(
    name: str, kind: str, old_builds: Path, tmp_path: Path
) -> None:
    """b9611 has EAGLE-3, b9837 DFlash."""
    binary, path = engine(old_builds, name)
    draft = MODELS / f"{kind}.gguf"
    args = ("--draft", draft, "--workload", "code", "--llama-server", binary)
    with Serve(tmp_path, MODELS / "target.gguf", *args, PYTHONPATH=path) as serving:
        assert serving.info["methods"] == [f"draft-{kind}"]
        assert serving.info["drafted"] > serving.info["accepted"] > 0
        assert serving.info["speculation"] == "on"


@pytest.mark.parametrize(
    ("name", "kind", "says"),
    [
        ("xllamacpp-2026.4.8929", "eagle3", "b8929 lists draft-eagle3 but cannot run it"),
        ("xllamacpp-2026.4.8929", "dflash", "b8929 does not support --spec-type draft-dflash"),
        ("xllamacpp-2026.7.9873", "dspark", "b9873 does not support --spec-type draft-dspark"),
        ("b10068", "dspark", "an unnumbered build does not support --spec-type draft-dspark"),
    ],
)
def test_builds_that_lack_a_drafters_method_say_so(
    name: str, kind: str, says: str, old_builds: Path, tmp_path: Path
) -> None:
    binary, path = engine(old_builds, name)
    draft = untrained.ALL[kind](tmp_path / f"{kind}.gguf")
    argv = ("serve", MODELS / "target.gguf", "--draft", draft, "--dry-run")
    said = specllama(*argv, "--llama-server", binary, PYTHONPATH=path).stdout
    needs = {"eagle3": 9611, "dflash": 9837, "dspark": 10173}[kind]
    assert f"method   none: {kind}.gguf: {says}; it needs build ≥ b{needs} (engine)" in said
    here = re.search(
        rf"the embedded engine \(b\d+\) supports draft-{kind}: use --llama-server embedded", said
    )
    assert bool(here) == (binary != "embedded")
