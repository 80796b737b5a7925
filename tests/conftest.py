"""Shared fixtures. Real servers run on the tiny models of tests/models."""

from __future__ import annotations

import importlib.util
import os
import signal
from pathlib import Path
from typing import Any, NoReturn

import pytest
from hypothesis import HealthCheck, settings

from tests.support import MODELS

# A shell's background jobs ignore SIGINT, and jobs under nohup ignore SIGHUP. Child processes
# inherit ignored signals but not Python handlers, so these signals get handlers that do nothing.
for _name in ("SIGINT", "SIGHUP", "SIGQUIT"):
    _signum = getattr(signal, _name, None)
    if _signum is not None and signal.getsignal(_signum) is signal.SIG_IGN:
        signal.signal(_signum, lambda *_: None)

# Examples that are slow to generate are not an error: the machine may be busy.
settings.register_profile(
    "shared machine", deadline=None, suppress_health_check=[HealthCheck.too_slow]
)
settings.load_profile("shared machine")

NATIVE_ENV = "SPECLLAMA_TEST_LLAMA_SERVER"
MODELS_ENV = "SPECLLAMA_TEST_MODELS"
BUILDS_ENV = "SPECLLAMA_TEST_BUILDS"
VULKAN_ENV = "SPECLLAMA_TEST_VULKAN"
IK_ENV = "SPECLLAMA_TEST_IK_SERVER"  # no CI has one
_TEST_VARIABLES = (NATIVE_ENV, MODELS_ENV, BUILDS_ENV, IK_ENV, VULKAN_ENV)


@pytest.fixture(autouse=True)
def _own_folders(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> None:
    """Separate caches, logs and config for this test run; no engine from the environment."""
    base = tmp_path_factory.getbasetemp() / "home"
    for name in ("CACHE", "STATE", "CONFIG", "DATA"):
        monkeypatch.setenv(f"XDG_{name}_HOME", str(base / name.lower()))
    # Other programs keep models in the home folder; a test must not find the user's.
    monkeypatch.setenv("HOME", str(base))
    for name in ("HF_HOME", "HF_HUB_CACHE", "LLAMA_CACHE", "OLLAMA_MODELS"):
        monkeypatch.delenv(name, raising=False)
    for name in list(os.environ):
        if name.startswith(("LLAMA_ARG_", "SPECLLAMA_")) and name not in _TEST_VARIABLES:
            monkeypatch.delenv(name)


def _missing(message: str) -> NoReturn:
    """Skips a test that lacks something it needs; in CI, the test fails."""
    if os.environ.get("CI"):
        pytest.fail(message)
    pytest.skip(message)


def _native() -> Path:
    value = os.environ.get(NATIVE_ENV)
    if value and Path(value).is_file():
        return Path(value)
    _missing(f"{NATIVE_ENV} must name a llama-server (.ci/build-llama makes one)")


@pytest.fixture(scope="session")
def native() -> Path:
    """A llama-server built from llama.cpp's source."""
    return _native()


def _real_model(name: str) -> Path:
    path = Path(os.environ.get(MODELS_ENV, "")) / name
    if os.environ.get(MODELS_ENV) and path.is_file():
        return path
    _missing(f"{MODELS_ENV} must name a folder with {name} (.ci/fetch-models makes one)")


@pytest.fixture(scope="session")
def smollm2() -> Path:
    """SmolLM2-135M-Instruct, Q4_1: a real chat model of 30 layers."""
    return _real_model("smollm2.gguf")


@pytest.fixture(scope="session")
def gemma() -> Path:
    """Gemma 3 270M, Q4_K_M: sliding windows, a large vocabulary, no chat template."""
    return _real_model("gemma.gguf")


@pytest.fixture(scope="session")
def old_builds() -> Path:
    """A folder of real old builds: b10068/llama-server, xllamacpp-VERSION/xllamacpp, …"""
    value = os.environ.get(BUILDS_ENV)
    if value and Path(value).is_dir():
        return Path(value)
    _missing(f"{BUILDS_ENV} must name a folder of old builds (.ci/fetch-builds makes one)")


@pytest.fixture(scope="session")
def ik_server() -> Path:
    """A real llama-server of ik_llama.cpp, which no package has."""
    value = os.environ.get(IK_ENV)
    if value and Path(value).is_file():
        return Path(value)
    pytest.skip(f"{IK_ENV} names no llama-server of ik_llama.cpp")


@pytest.fixture
def vulkan_server(old_builds: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A llama-server whose one GPU is Mesa's software Vulkan device, of 2 GiB."""
    folder = Path(os.environ.get(VULKAN_ENV, ""))
    if os.environ.get(VULKAN_ENV) == "none":
        pytest.skip("a software Vulkan driver cannot be had here (.ci/fetch-vulkan)")
    if not os.environ.get(VULKAN_ENV) or not (folder / "driver.json").is_file():
        _missing(f"{VULKAN_ENV} must name a Vulkan driver's folder (.ci/fetch-vulkan makes one)")
    monkeypatch.setenv("VK_DRIVER_FILES", str(folder / "driver.json"))
    monkeypatch.setenv("LD_LIBRARY_PATH", str(folder / "lib"))
    monkeypatch.setenv("MESA_SHADER_CACHE_DIR", str(folder / "shaders"))
    monkeypatch.setenv("GGML_VK_VISIBLE_DEVICES", "0")  # llama.cpp hides it unless it is named
    monkeypatch.setenv("LP_NUM_THREADS", "1")
    return old_builds / "b10068" / "llama-server"


@pytest.fixture(scope="session")
def vocab_dir() -> Path:
    """llama.cpp's real vocabulary files, kept beside the native server."""
    return _native().parent.parent / "vocab"


@pytest.fixture(scope="session")
def llama_cpp() -> Any:
    """The module of the extra llama-cpp-python, which CI must have."""
    if importlib.util.find_spec("llama_cpp") is None:
        _missing("the extra llama-cpp-python is not installed")
    return importlib.import_module("llama_cpp")


@pytest.fixture(params=["embedded", "native"])
def engine(request: pytest.FixtureRequest) -> str:
    """A value for --llama-server: each test runs with both engines."""
    return "embedded" if request.param == "embedded" else str(_native())


@pytest.fixture
def model_copy(tmp_path: Path) -> Path:
    """The target alone in a folder whose name has a space and is not ASCII."""
    folder = tmp_path / "modèles à moi"
    folder.mkdir()
    path = folder / "target.gguf"
    path.write_bytes((MODELS / "target.gguf").read_bytes())
    return path
