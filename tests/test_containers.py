"""Mounted files, images and API keys of the formats that run llama-server in a container."""

from __future__ import annotations

import os
import shutil
from pathlib import Path
from typing import Any

import pytest

from specllama.engine.settings import Settings
from specllama.formats import Decision, FormatError, compose, kubernetes, systemd, write_format
from specllama.formats.containers import Container, container
from specllama.planning.prepare import prepare
from specllama.planning.spec_options import SpeculationOptions
from tests import formats_read
from tests.fake_ik import FakeIk
from tests.fake_server import Fake
from tests.support import MODELS


def decision(tmp: Path, target: Path, draft: Path, *server_args: str, **config: Any) -> Decision:
    settings = Settings(target, "127.0.0.1", 9000)
    server = str(Fake(tmp, **config).path)
    return Decision(
        prepare(settings, SpeculationOptions("code", draft), server_args, server, check_port=False)
    )


def files_on_host(c: Container) -> list[Path]:
    """The model files of its command as paths on this machine."""
    host_folders = {container_folder: host for host, container_folder in c.folders.items()}
    args = formats_read.host_paths(list(c.args), host_folders)
    return [Path(args[args.index(name) + 1]) for name in ("-m", "-md")]


def test_a_shared_folder_is_mounted_once(tmp_path: Path) -> None:
    c = container(decision(tmp_path, MODELS / "target.gguf", MODELS / "draft.gguf"))
    assert c.folders == {str(MODELS): "/models"}
    assert c.args[:2] == ("-m", "/models/target.gguf")


def test_several_folders_are_mounted_separately(tmp_path: Path) -> None:
    (tmp_path / "other").mkdir()
    draft = Path(shutil.copy(MODELS / "draft.gguf", tmp_path / "other"))
    c = container(decision(tmp_path, MODELS / "target.gguf", draft))
    assert sorted(c.folders.values()) == ["/models/1", "/models/2"]
    assert files_on_host(c) == [MODELS / "target.gguf", draft]


def test_a_nested_folder_needs_no_mount_of_its_own(tmp_path: Path) -> None:
    (tmp_path / "drafts").mkdir()
    target = Path(shutil.copy(MODELS / "target.gguf", tmp_path))
    draft = Path(shutil.copy(MODELS / "draft.gguf", tmp_path / "drafts"))
    c = container(decision(tmp_path, target, draft))
    assert c.folders == {str(tmp_path): "/models"}
    assert files_on_host(c) == [target, draft]


@pytest.mark.skipif(os.name == "nt", reason="links need rights on Windows")
def test_links_of_the_hugging_face_cache_work_inside_the_container(tmp_path: Path) -> None:
    """snapshots/COMMIT/NAME → ../../blobs/HASH."""
    (tmp_path / "blobs").mkdir()
    (tmp_path / "snapshots" / "c0ffee").mkdir(parents=True)
    links = []
    for name in ("target", "draft"):
        shutil.copy(MODELS / f"{name}.gguf", tmp_path / "blobs" / f"hash-{name}")
        link = tmp_path / "snapshots" / "c0ffee" / f"{name}.gguf"
        link.symlink_to(Path("..") / ".." / "blobs" / f"hash-{name}")
        links.append(link)
    c = container(decision(tmp_path, links[0], links[1]))
    assert c.folders == {str(tmp_path): "/models"}
    assert files_on_host(c) == links


@pytest.mark.skipif(os.name == "nt", reason="links need rights on Windows")
def test_the_target_of_an_absolute_link_is_mounted(tmp_path: Path) -> None:
    link = tmp_path / "model.gguf"
    link.symlink_to(MODELS / "target.gguf")
    c = container(decision(tmp_path, link, MODELS / "draft.gguf"))
    assert c.folders == {str(MODELS): "/models"}
    assert files_on_host(c) == [MODELS / "target.gguf", MODELS / "draft.gguf"]


@pytest.mark.parametrize(
    ("device", "image", "gpu"),
    [
        ("CUDA0: NVIDIA RTX (24124 MiB, 23600 MiB free)", "server-cuda", "nvidia.com/gpu"),
        ("ROCm0: AMD (24124 MiB, 23600 MiB free)", "server-rocm", "amd.com/gpu"),
        ("Vulkan0: Some (8000 MiB, 7000 MiB free)", "server-vulkan", ""),
        ("  (none)", "server", ""),
    ],
)
def test_the_image_matches_the_devices_backend(
    device: str, image: str, gpu: str, tmp_path: Path
) -> None:
    made = decision(tmp_path, MODELS / "target.gguf", MODELS / "draft.gguf", devices=device)
    service = formats_read.compose(compose.write(made).text)
    assert service["image"] == f"ghcr.io/ggml-org/llama.cpp:{image}"
    assert ("deploy" in service) == (image == "server-cuda")
    assert ("devices" in service) == (image in ("server-rocm", "server-vulkan"))
    pod = formats_read.kubernetes(kubernetes.write(made).text)
    assert pod.get("resources", {}).get("limits", {}) == ({gpu: "1"} if gpu else {})


def test_a_key_file_becomes_a_secret(tmp_path: Path) -> None:
    file = tmp_path / "keys"
    file.write_text("sk-secret\n")
    pair = (MODELS / "target.gguf", MODELS / "draft.gguf")
    made = decision(tmp_path, *pair, "--api-key-file", str(file))
    service = formats_read.compose(compose.write(made).text)
    assert service["environment"] == {"LLAMA_API_KEY": "${LLAMA_API_KEY:?set it}"}
    pod = formats_read.kubernetes(kubernetes.write(made).text)
    ref = {"name": f"{made.name}-api-key", "key": "api-key"}
    assert pod["env"] == [{"name": "LLAMA_API_KEY", "valueFrom": {"secretKeyRef": ref}}]
    for words in (service["command"], pod["args"]):
        assert "--api-key-file" not in words
    assert service["ports"] == ["127.0.0.1:9000:8080"]


def test_health_checks_use_the_api_prefix(tmp_path: Path) -> None:
    pair = (MODELS / "target.gguf", MODELS / "draft.gguf")
    made = decision(tmp_path, *pair, "--api-prefix", "/llm")
    service = formats_read.compose(compose.write(made).text)
    assert service["healthcheck"]["test"][-1] == "http://localhost:8080/llm/health"
    pod = formats_read.kubernetes(kubernetes.write(made).text)
    get = {"path": "/llm/health", "port": "http", "scheme": "HTTP"}
    assert pod["startupProbe"]["httpGet"] == pod["livenessProbe"]["httpGet"] == get


def test_files_that_the_server_writes_are_refused(tmp_path: Path) -> None:
    pair = (MODELS / "target.gguf", MODELS / "draft.gguf")
    made = decision(tmp_path, *pair, "--log-file", str(tmp_path / "log"))
    for name in ("compose", "kubernetes"):
        with pytest.raises(FormatError, match="read-only access"):
            write_format(name, made)
    with pytest.raises(FormatError, match="read-only access"):
        systemd.unit(made, for_machine=True)
    assert "--log-file" in systemd.unit(made, for_machine=False).text


def test_local_rpc_servers_are_reported_as_unreachable(tmp_path: Path) -> None:
    pair = (MODELS / "target.gguf", MODELS / "draft.gguf")
    made = decision(tmp_path, *pair, "--rpc", "10.0.0.2:50052,127.0.0.1:50052")
    assert any("not reachable" in note for note in container(made).notes)


def test_ik_llama_has_no_image_and_no_router(tmp_path: Path) -> None:
    settings = Settings(MODELS / "target.gguf", "127.0.0.1", 9000)
    spec_options = SpeculationOptions("code", MODELS / "draft.gguf")
    server = str(FakeIk(tmp_path).path)
    made = Decision(prepare(settings, spec_options, (), server, check_port=False))
    for name, why in (
        ("compose", "no images"),
        ("kubernetes", "no images"),
        ("preset", "no router"),
    ):
        with pytest.raises(FormatError, match=why):
            write_format(name, made)
    assert formats_read.shell(write_format("shell", made).text) == list(made.plan.command.argv)


def test_ports_are_published_on_ip_addresses_only() -> None:
    from specllama.formats.base import FormatError
    from specllama.formats.containers import published

    assert [published(h) for h in ("localhost", "0.0.0.0", "::1")] == [
        "127.0.0.1",
        "0.0.0.0",
        "[::1]",
    ]
    for host in ("/tmp/x.sock", "myhost"):
        with pytest.raises(FormatError, match="IP address"):
            published(host)


@pytest.mark.parametrize(
    ("device", "gpu"),
    [("CUDA0: NVIDIA RTX (24124 MiB, 23600 MiB free)", True), ("  (none)", False)],
)
@pytest.mark.parametrize("groups", [("video", "render"), ("video",), ()])
def test_a_unit_names_existing_groups_only_if_a_gpu_is_used(
    device: str,
    gpu: bool,
    groups: tuple[str, ...],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """systemd does not start a unit that names a missing group."""
    monkeypatch.setattr(systemd, "_is_group", lambda name: name in groups)
    made = decision(tmp_path, MODELS / "target.gguf", MODELS / "draft.gguf", devices=device)
    lines = systemd.unit(made, for_machine=True).text.splitlines()
    named = [x.partition("=")[2] for x in lines if x.startswith("SupplementaryGroups=")]
    assert named == ([" ".join(groups)] if gpu and groups else [])
    assert ("#SupplementaryGroups=video render" in lines) == (gpu and not groups)
    assert ("PrivateDevices=yes" in lines) == (not gpu)
    assert any("nvidia" in x for x in lines) == gpu
