"""llama-server in a container of llama.cpp's own images: where files are, which image, which port.

The images (llama.cpp .github/workflows/docker.yml, b11434) have /app/llama-server as their
entrypoint, so that only arguments are given, and their health check asks port 8080.
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from dataclasses import dataclass
from ipaddress import ip_address
from pathlib import Path

from specllama.engine.capabilities import IK_LLAMA
from specllama.engine.option_sources import ParsedOption
from specllama.formats import server
from specllama.formats.base import Decision, FormatError

PORT = 8080  # inside; the images' own health check asks it
_IMAGE = "ghcr.io/ggml-org/llama.cpp:server"
# The name of a device as llama.cpp lists it → the image with that backend, and who sells it.
_BACKENDS = (
    ("CUDA", "-cuda", "nvidia"),
    ("ROCm", "-rocm", "amd"),
    ("HIP", "-rocm", "amd"),
    ("SYCL", "-intel", "intel"),
    ("MUSA", "-musa", "mthreads"),
    ("Vulkan", "-vulkan", "dri"),
)
_ROOT = "/models"


@dataclass(frozen=True)
class Container:
    """What runs inside. `folders`: folder of this machine → where it is inside, read-only;
    `vendor`: whose GPU it needs, "" = none. `notes`: one line each."""

    image: str
    args: tuple[str, ...]
    folders: dict[str, str]
    vendor: str
    key: bool
    notes: tuple[str, ...]


def container(decision: Decision) -> Container:
    """The same command inside. Raises FormatError for an engine that has no image, and for files
    that cannot be mounted."""
    plan = decision.plan
    if plan.capabilities.flavour == IK_LLAMA:
        raise FormatError(
            "ik_llama.cpp has no images of its own, and llama.cpp's do not take its options",
            "Name a llama-server of llama.cpp with --llama-server, or take another --format.",
        )
    cmd = server.command(decision)
    server.refuse_writing(cmd, "a container")
    kept = cmd.without(server.HOST, server.PORT, server.KEY_FILE).options
    folders = _Folders(kept)
    options = [server.with_paths(o, folders.inside) for o in kept]
    args = (*(w for o in options for w in o.words), server.HOST, "0.0.0.0", server.PORT, str(PORT))
    suffix, vendor = _backend(decision)
    key = bool(plan.settings.api_key or cmd.value(server.KEY_FILE))
    return Container(
        f"{_IMAGE}{suffix}", args, folders.mounts, vendor, key, tuple(_notes(decision, cmd))
    )


def _backend(decision: Decision) -> tuple[str, str]:
    names = server.devices(decision)
    for start, suffix, vendor in _BACKENDS:
        if any(n.startswith(start) for n in names):
            return suffix, vendor
    return "", ""


def _notes(decision: Decision, cmd: server.ServerCommand) -> Iterable[str]:
    caps = decision.plan.capabilities
    build = f"b{caps.build}" if caps.build else "this build"
    yield (
        f"the options are those of {build}; images are built once a day: "
        f"a tag with -bNNNN behind it pins one"
    )
    if any(
        a.startswith(("127.", "localhost", "[::1]"))
        for a in (cmd.value(server.RPC) or "").split(",")
    ):
        yield "the addresses of --rpc are this machine's own, which a container does not reach"


class _Folders:
    """Which folders are mounted, and where. A file behind a relative link (Hugging Face's cache)
    is mounted with what the link leads to."""

    def __init__(self, options: Iterable[ParsedOption]) -> None:
        self._found: dict[str, str] = {}  # path → the folder that is mounted for it
        for option in options:
            server.with_paths(option, self._note)
        roots = sorted(set(self._found.values()))
        roots = [r for r in roots if not any(r != o and _within(r, o) for o in roots)]
        many = len(roots) > 1
        self.mounts = {r: f"{_ROOT}/{i}" if many else _ROOT for i, r in enumerate(roots, 1)}

    def inside(self, path: str) -> str:
        """Where a path of this machine is inside; one that is not here stays as it is."""
        if path not in self._found:
            return path
        real = path if _within(path, self._found[path]) else os.path.realpath(path)
        root = next(r for r in self.mounts if _within(real, r))
        return f"{self.mounts[root]}/{Path(real).relative_to(root).as_posix()}"

    def _note(self, path: str) -> str:
        if os.path.exists(path):
            self._found[path] = _folder(path)
        return path


def _folder(path: str) -> str:
    """The folder that holds the file and everything that its links lead to."""
    real = os.path.realpath(path)
    if os.path.isdir(path):
        return real
    parent = os.path.dirname(path)
    if os.path.realpath(parent) == os.path.dirname(real):
        return parent
    if os.path.islink(path) and not os.path.isabs(os.readlink(path)):
        common = os.path.commonpath([parent, real])
        if common == os.path.dirname(common):
            raise FormatError(f"{path} is a link to {real}: nothing less than / holds both")
        return common
    return os.path.dirname(real)  # a link by an absolute path leads nowhere inside


def _within(path: str, folder: str) -> bool:
    return os.path.commonpath([path, folder]) == folder


def published(host: str) -> str:
    """An address as a container's published ports want it: an IP. Raises FormatError."""
    try:
        found = ip_address("127.0.0.1" if host == "localhost" else host)
    except ValueError:
        raise FormatError(
            f"a container's port is published on an IP address, not on {host!r}",
            "Give --host 127.0.0.1, 0.0.0.0, or an address of this machine.",
        ) from None
    return f"[{found}]" if found.version == 6 else str(found)
