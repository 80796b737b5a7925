"""llama-server in one of llama.cpp's own images: mounts, image and port.

The images (llama.cpp .github/workflows/docker.yml, b11434) have /app/llama-server as their
entrypoint, so only arguments are needed, and their health check uses port 8080.
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

PORT = 8080  # inside; the images' health check uses it
_IMAGE = "ghcr.io/ggml-org/llama.cpp:server"
# Prefix of a device's name in llama.cpp → the image with that backend, its vendor.
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
    """A container. `folders`: folder on this machine → its read-only mount; `vendor`: of the GPU it
    needs, "" = none; `key`: it has an API key. `notes`: one line each."""

    image: str
    args: tuple[str, ...]
    folders: dict[str, str]
    vendor: str
    key: bool
    notes: tuple[str, ...]


def container(decision: Decision) -> Container:
    """The command in a container. Raises FormatError for an engine without an image, and for files
    that cannot be mounted."""
    plan = decision.plan
    if plan.capabilities.flavour == IK_LLAMA:
        raise FormatError(
            "ik_llama.cpp publishes no images, and llama.cpp's do not know its options",
            "Set a mainline llama-server with --llama-server, or use another --format.",
        )
    cmd = server.command(decision)
    server.refuse_writing(cmd, "a container")
    local = cmd.without(server.HOST, server.PORT, server.KEY_FILE).options
    folders = _Folders(local)
    options = [server.with_paths(o, folders.inside) for o in local]
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
        f"the options are for {build}; images are built daily: "
        f"append -bNNNN to the tag to pin a build"
    )
    if any(
        a.startswith(("127.", "localhost", "[::1]"))
        for a in (cmd.value(server.RPC) or "").split(",")
    ):
        yield "--rpc names local addresses, which are not reachable from a container"


class _Folders:
    """Which folders are mounted, and where. A file that is a relative link (Hugging Face's cache) is
    mounted together with the link's target."""

    def __init__(self, options: Iterable[ParsedOption]) -> None:
        self._found: dict[str, str] = {}  # path → the folder that is mounted for it
        for option in options:
            server.with_paths(option, self._note)
        roots = sorted(set(self._found.values()))
        roots = [r for r in roots if not any(r != o and _within(r, o) for o in roots)]
        many = len(roots) > 1
        self.mounts = {r: f"{_ROOT}/{i}" if many else _ROOT for i, r in enumerate(roots, 1)}

    def inside(self, path: str) -> str:
        """The path inside the container; one that does not exist here stays unchanged."""
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
    """The folder with the file and the targets of its links."""
    real = os.path.realpath(path)
    if os.path.isdir(path):
        return real
    parent = os.path.dirname(path)
    if os.path.realpath(parent) == os.path.dirname(real):
        return parent
    if os.path.islink(path) and not os.path.isabs(os.readlink(path)):
        common = os.path.commonpath([parent, real])
        if common == os.path.dirname(common):
            raise FormatError(f"{path} is a link to {real}; only / contains both")
        return common
    return os.path.dirname(real)  # an absolute link is broken inside


def _within(path: str, folder: str) -> bool:
    return os.path.commonpath([path, folder]) == folder


def published(host: str) -> str:
    """The IP address on which a container's port is published. Raises FormatError for a name."""
    try:
        found = ip_address("127.0.0.1" if host == "localhost" else host)
    except ValueError:
        raise FormatError(
            f"a container's port can be published only on an IP address, not on {host!r}",
            "Use --host 127.0.0.1, 0.0.0.0, or an address of this machine.",
        ) from None
    return f"[{found}]" if found.version == 6 else str(found)
