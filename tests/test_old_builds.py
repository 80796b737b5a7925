"""Real old builds serve the tiny pair, or the error names the reason."""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
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
def test_an_old_build_drafts(name: str, old_builds: Path, tmp_path: Path) -> None:
    binary, path = engine(old_builds, name)
    draft = ("--draft", MODELS / "draft.gguf")
    with Serve(
        tmp_path, MODELS / "target.gguf", *draft, "--llama-server", binary, PYTHONPATH=path
    ) as serving:
        assert serving.info["speculation"] == "on"
        assert 0 < serving.info["alpha"] < 1


@pytest.mark.parametrize(
    ("name", "needs"),
    [("b10434", ("AVX-512", "AVX-VNNI")), ("xllamacpp-2026.4.8672", ("AVX-512",))],
    ids=["b10434", "xllamacpp-2026.4.8672"],
)
def test_a_build_for_avx512_reports_a_cpu_without_it(
    name: str, needs: Sequence[str], old_builds: Path, tmp_path: Path
) -> None:
    """On a CPU that has what it needs, it drafts like the other builds."""
    lacking = next((f for f in needs if f in cpu.missing_features()), None)
    if lacking is None:
        test_an_old_build_drafts(name, old_builds, tmp_path)
        return
    binary, path = engine(old_builds, name)
    argv = ("serve", MODELS / "target.gguf", "--draft", MODELS / "draft.gguf", "--tune", "off")
    done = specllama(*argv, "--port", "0", "--llama-server", binary, PYTHONPATH=path)
    assert done.returncode == 1
    assert f"built for another CPU (SIGILL: this one lacks {lacking}" in done.stderr
    assert "retrying" not in done.stderr
    assert ("`--llama-server embedded`" in done.stderr) == (binary != "embedded")


def test_n_grams_on_a_build_with_one_type_and_one_size(old_builds: Path, tmp_path: Path) -> None:
    binary, path = engine(old_builds, "xllamacpp-2026.4.8929")
    target = MODELS / "target.gguf"
    method = ("--method", "ngram-mod", "--workload", "edit")
    with Serve(tmp_path, target, *method, "--llama-server", binary, PYTHONPATH=path) as serving:
        assert "--spec-ngram-size-n" in serving.info["command"]
        assert serving.info["speculation"] == "on"


@pytest.mark.parametrize("name", ["b10068", "xllamacpp-2026.7.9873"])
@pytest.mark.parametrize("kind", ["eagle3", "dflash"])
def test_trained_drafters_run_on_builds_that_support_them(
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
    ("name", "kind", "message"),
    [
        ("xllamacpp-2026.4.8929", "eagle3", "b8929 lists draft-eagle3 but cannot run it"),
        ("xllamacpp-2026.4.8929", "dflash", "b8929 does not support --spec-type draft-dflash"),
        ("xllamacpp-2026.7.9873", "dspark", "b9873 does not support --spec-type draft-dspark"),
        ("b10068", "dspark", "an unnumbered build does not support --spec-type draft-dspark"),
    ],
)
def test_a_build_without_the_drafters_method_is_the_reason(
    name: str, kind: str, message: str, old_builds: Path, tmp_path: Path
) -> None:
    binary, path = engine(old_builds, name)
    draft = untrained.ALL[kind](tmp_path / f"{kind}.gguf")
    argv = ("serve", MODELS / "target.gguf", "--draft", draft, "--dry-run")
    output = specllama(*argv, "--llama-server", binary, PYTHONPATH=path).stdout
    needs = {"eagle3": 9611, "dflash": 9837, "dspark": 10173}[kind]
    assert f"method   none: {kind}.gguf: {message}; it needs build ≥ b{needs} (engine)" in output
    hint = re.search(
        rf"the embedded engine \(b\d+\) supports draft-{kind}: use --llama-server embedded", output
    )
    assert bool(hint) == (binary != "embedded")
