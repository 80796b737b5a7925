"""Set-up of benchmarks/real.py: models, the engine, and a home folder without saved results."""

from __future__ import annotations

import hashlib
import os
import platform
import shutil
import subprocess
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from benchmarks import large_target, real_models

ROOT = Path(__file__).parent.parent
_TINY_MTP = ROOT / "tests" / "models" / "mtp.gguf"
_LAYERS, _DROP = 80, (18, 22)  # of the large target (added), of the draft (left out)
_MTP_LAYERS, _MTP_FF = 30, 8192
_HOMES = ("XDG_CACHE_HOME", "XDG_STATE_HOME", "XDG_CONFIG_HOME", "XDG_DATA_HOME", "HOME")
_FOREIGN = ("LLAMA_", "SPECLLAMA_", "HF_", "GGML_")


@dataclass(frozen=True)
class Models:
    """Paths of the models: `large` generates what `small` does, `draft` nearly so; `mtp` has a head."""

    folder: Path
    large: Path
    draft: Path
    mtp: Path


def engine() -> str:
    """A value for --llama-server: the tests' native server, one on PATH, or the embedded one."""
    named = os.environ.get("SPECLLAMA_TEST_LLAMA_SERVER")
    return named or shutil.which("llama-server") or "embedded"


def models() -> Models:
    """Fetches and builds missing models; they are stored outside the checkout."""
    source = _fetched() / "smollm2.gguf"
    made_by = [Path(str(m.__file__)).read_bytes() for m in (real_models, large_target)]
    settings = repr((source.stat().st_size, _LAYERS, _DROP, _MTP_LAYERS, _MTP_FF)).encode()
    key = hashlib.sha256(b"".join([settings, *made_by, _TINY_MTP.read_bytes()])).hexdigest()[:10]
    folder = _cache() / f"real-{source.parent.name.removeprefix('models-')}-{key}"
    folder.mkdir(parents=True, exist_ok=True)
    found = Models(folder, folder / "large.gguf", folder / "draft.gguf", folder / "mtp.gguf")
    _make(found.large, lambda new: real_models.large(source, new, _LAYERS))
    _make(found.draft, lambda new: real_models.draft(source, new, _DROP))
    _make(found.mtp, _mtp)
    return found


def _cache() -> Path:
    """The folder of .ci/fetch-models."""
    named = os.environ.get("SPECLLAMA_CI_CACHE")
    base = os.environ.get("XDG_CACHE_HOME") or str(Path.home() / ".cache")
    return Path(named) if named else Path(base) / "specllama" / "ci"


def _fetched() -> Path:
    named = os.environ.get("SPECLLAMA_TEST_MODELS")
    if named:
        return Path(named).resolve()
    done = subprocess.run([ROOT / ".ci" / "fetch-models"], stdout=subprocess.PIPE, check=True)
    return Path(done.stdout.decode().strip())


def _mtp(out: Path) -> None:
    """A target with a head, of 196 million parameters. In F32: smaller matrices load so fast
    that compute dominates, and no draft would pay off."""
    packed = out.with_name("packed.gguf")
    large_target.build(packed, _MTP_LAYERS, _MTP_FF, _TINY_MTP)
    real_models.widen(packed, out)


def _make(path: Path, build: Callable[[Path], object]) -> None:
    """Builds a missing file; an incomplete one never gets its name."""
    if path.exists():
        return
    with tempfile.TemporaryDirectory(dir=path.parent) as folder:
        new = Path(folder) / path.name
        build(new)
        new.replace(path)


@contextmanager
def fresh_home(near: Path) -> Iterator[Path]:
    """A temporary folder next to the models for caches, logs and the home, without settings from
    outside: the tuner finds no saved results."""
    before = dict(os.environ)
    with tempfile.TemporaryDirectory(dir=near) as folder:
        try:
            for name in [n for n in os.environ if n.startswith(_FOREIGN)]:
                del os.environ[name]
            os.environ.update({name: f"{folder}/{name.lower()}" for name in _HOMES})
            yield Path(folder)
        finally:
            os.environ.clear()
            os.environ.update(before)


def alone(folder: Path, *files: Path) -> tuple[Path, ...]:
    """Links to the files in a folder of their own, so that no other files are next to them."""
    folder.mkdir()
    return tuple(_linked(f, folder / f.name) for f in files)


def _linked(file: Path, link: Path) -> Path:
    os.link(file, link)
    return link


def machine() -> str:
    """The processor and its load."""
    name = platform.processor() or platform.machine()
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
        name = next((x.split(":", 1)[1].strip() for x in lines if x.startswith("model name")), name)
    except OSError:
        pass
    load = f", load {os.getloadavg()[0]:.1f}" if hasattr(os, "getloadavg") else ""
    return f"{name}, {os.cpu_count()} cores{load}"
