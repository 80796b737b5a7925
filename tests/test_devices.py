"""Parsing of --list-devices and sizes, and margins. Recorded outputs (tests/data/devices) are from
public reports of llama.cpp users; the two CUDA ones and the empty ones follow llama.cpp's source."""

from __future__ import annotations

from pathlib import Path

import psutil
import pytest
from hypothesis import given
from hypothesis import strategies as st

from specllama.engine.locate import Engine
from specllama.memory import devices
from specllama.memory.devices import (
    MIB,
    Device,
    Machine,
    find_machine,
    overcommitted,
    parse_devices,
    parse_sizes,
)
from specllama.memory.errors import MemoryInputError
from specllama.memory.nvml import Gpu
from tests.support import script

RECORDED = Path(__file__).parent / "data" / "devices"


@pytest.mark.parametrize(
    ("file", "expected"),
    [
        ("cuda-one", [("CUDA0", "NVIDIA GeForce RTX 3090", 24124, 23600, False)]),
        (
            "cuda-two",
            [
                ("CUDA0", "NVIDIA GeForce RTX 4090", 24210, 23486, False),
                ("CUDA1", "NVIDIA GeForce RTX 3060", 11909, 11789, False),
            ],
        ),
        ("metal-old", [("Metal", "Apple M4 Max", 98304, 98303, True)]),
        ("metal-new", [("MTL0", "Apple M2 Pro", 10922, 10922, True)]),
        (
            "vulkan-with-igpu",
            [
                ("Vulkan0", "AMD Radeon RX 7900 XTX", 24560, 22532, False),
                ("Vulkan1", "AMD Radeon(TM) Graphics", 48532, 46105, True),
            ],
        ),
        (
            "vulkan-radv",
            [
                ("Vulkan0", "AMD Radeon RX 9070 XT (RADV GFX1201)", 16304, 16304, False),
                ("Vulkan1", "AMD Radeon Graphics (RADV RAPHAEL_MENDOCINO)", 512, 512, False),
            ],
        ),
        (
            "vulkan-one-number",
            [
                ("Vulkan0", "AMD Radeon(TM) RX Vega 11 Graphics", 2048, 2048, False),
                ("Vulkan1", "AMD Radeon RX 580 2048SP", 4096, 4096, False),
            ],
        ),
        ("rocm", [("ROCm0", "AMD Radeon RX 7900 XTX", 24560, 24428, False)]),
        ("sycl", [("SYCL0", "Intel(R) Arc(TM) A750 Graphics", 8000, 7721, False)]),
        ("vulkan-software", [("Vulkan0", "llvmpipe (LLVM 15.0.6, 256 bits)", 2048, 2048, True)]),
        ("with-cpu", [("Vulkan0", "AMD Radeon RX 9070 XT", 16304, 13737, False)]),
        ("none-old", []),
        ("none-new", []),
    ],
)
def test_recorded_device_lists_are_parsed(
    file: str, expected: list[tuple[str, str, int, int, bool]]
) -> None:
    found = parse_devices((RECORDED / f"{file}.txt").read_text())
    assert [(d.name, d.label, d.total // MIB, d.free // MIB, d.shared) for d in found] == expected


@given(st.text() | st.text("CUDA0: ()Mi,Bfre123\n "))
def test_any_text_is_parsed_as_devices(text: str) -> None:
    for d in parse_devices(text):
        assert 0 <= d.free <= d.total


@pytest.mark.parametrize(
    ("text", "sizes"),
    [
        ("24GiB", [24 * 1024]),
        ("24", [24 * 1024]),
        ("16384MiB", [16384]),
        ("0.5g", [512]),
        ("24GiB, 12GB", [24 * 1024, 12 * 1024]),
        ("16MiB", [16]),
        ("25769803776B", [24 * 1024]),
    ],
)
def test_sizes_with_and_without_units(text: str, sizes: list[int]) -> None:
    assert [n // MIB for n in parse_sizes(text)] == sizes


@pytest.mark.parametrize(
    "text", ["", "abc", "24XB", "-3GiB", "0", "12 GiB x", "1e9", "24GiB,", "9999T"]
)
def test_invalid_sizes_are_errors(text: str) -> None:
    with pytest.raises(MemoryInputError, match="--vram"):
        parse_sizes(text)


def engine(tmp_path: Path, body: str) -> Engine:
    path = script(tmp_path / "llama-server", body)
    return Engine((str(path),), path, embedded=False, reason="test")


def test_devices_are_listed_by_the_engine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(devices, "gpus", lambda: ())
    text = (RECORDED / "cuda-two.txt").read_text()
    m = find_machine(engine(tmp_path, f"print({text!r})"))
    assert m.names == ("CUDA0", "CUDA1")
    assert m.gpus[0].source == "llama-server --list-devices"
    assert m.note == ""
    assert m.shares((3, 1)) == (3, 1)
    assert m.shares() == (23486 * MIB, 11789 * MIB)


@pytest.mark.parametrize(
    ("body", "message"),
    [
        ("import sys; sys.exit(3)", "exited with code 3"),
        ("print('Segmentation fault')", "could not parse"),
        ("import os, sys; os.write(1, bytes(range(256)))", "could not parse"),
        ("import time; time.sleep(60)", "--list-devices did not finish"),
    ],
)
def test_an_engine_without_a_device_list_gives_a_note(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, body: str, message: str
) -> None:
    monkeypatch.setattr(devices, "LIST_TIMEOUT", 1.0)
    m = find_machine(engine(tmp_path, body))
    assert m.gpus == ()
    assert message in m.note
    assert "--vram" in m.note
    assert m.ram.free > 0


def test_vram_replaces_the_engines_device_list(tmp_path: Path) -> None:
    m = find_machine(engine(tmp_path, "raise SystemExit(1)"), (2**34, 2**33))
    assert [(g.name, g.free, g.usable, g.source) for g in m.gpus] == [
        ("GPU0", 2**34, 2**34, "--vram"),
        ("GPU1", 2**33, 2**33, "--vram"),
    ]


def test_other_processes_on_a_gpu_are_listed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    other = Gpu(0, "NVIDIA GeForce RTX 3060", 11909 * MIB, 0, False, ())
    with_desktop = Gpu(
        1, "NVIDIA GeForce RTX 4090", 24210 * MIB, 0, True, (("firefox", 400 * MIB), ("Xorg", MIB))
    )
    monkeypatch.setattr(devices, "gpus", lambda: (other, with_desktop))
    monkeypatch.setattr(devices, "on_windows", lambda: False)
    m = find_machine(engine(tmp_path, f"print({(RECORDED / 'cuda-two.txt').read_text()!r})"))
    assert (
        m.gpus[0].others == "firefox 400 MiB, Xorg 1 MiB (NVML)"
    )  # matched by name, not by number
    assert m.gpus[0].margin == 1536 * MIB  # it shows a desktop
    assert (m.gpus[1].others, m.gpus[1].margin) == ("", 1024 * MIB)


def test_margins_on_windows_and_small_gpus(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(devices, "gpus", lambda: ())
    monkeypatch.setattr(devices, "on_windows", lambda: True)
    m = find_machine(engine(tmp_path, f"print({(RECORDED / 'cuda-one.txt').read_text()!r})"))
    assert m.gpus[0].margin == 1536 * MIB
    m = find_machine(engine(tmp_path, f"print({(RECORDED / 'vulkan-radv.txt').read_text()!r})"))
    assert m.gpus[1].margin == 128 * MIB  # at most a quarter of a small GPU


@pytest.mark.parametrize(
    ("release", "windows"),
    [("5.15.167.4-microsoft-standard-WSL2", True), ("6.1.0-28-amd64", False)],
)
def test_wsl_counts_as_windows(release: str, windows: bool) -> None:
    assert devices.on_windows(release) is windows


def test_shared_memory_is_counted_once() -> None:
    gpu = Device("MTL0", "Apple M2", 10 * 2**30, 10 * 2**30, "test", shared=True, margin=0)
    ram = Device("RAM", "", 16 * 2**30, 12 * 2**30, "test", shared=True, margin=0)
    m = Machine((gpu,), ram)
    assert overcommitted({"MTL0": 9 * 2**30, "RAM": 2 * 2**30}, m) == []
    assert overcommitted({"MTL0": 9 * 2**30, "RAM": 4 * 2**30}, m) == [(ram, 2**30)]
    assert overcommitted({"MTL0": 11 * 2**30}, m) == [(gpu, 2**30)]


def listing(*lines: str, err: str = "") -> str:
    """A server that lists these devices, and RPC servers only if --rpc comes first."""
    return f"""
import sys
words = sys.argv[1:]
rpc = "--rpc" in words[: words.index("--list-devices")]
print({err!r}, file=sys.stderr)
print("Available devices:")
for line in {lines!r}:
    if rpc or not line.startswith("RPC"):
        print("  " + line)
"""


def test_remote_devices_are_listed_first(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(devices, "on_windows", lambda: True)
    body = listing(
        "Vulkan0: a card (8000 MiB, 7000 MiB free)",
        "RPC0: 10.0.0.2:50052 (16000 MiB, 15000 MiB free)",
        "RPC1: [fe80::1]:50052 (16000 MiB, 15000 MiB free)",
    )
    m = find_machine(engine(tmp_path, body), rpc=["10.0.0.2:50052,[fe80::1]:50052"])
    assert m.names == ("RPC0", "RPC1", "Vulkan0")
    assert [g.margin // MIB for g in m.gpus] == [1024, 1024, 1536]  # remote GPUs show no desktop
    assert not any(g.shared for g in m.gpus)
    assert find_machine(engine(tmp_path, body)).names == ("Vulkan0",)


def test_local_ram_offered_by_rpc_is_counted_once(tmp_path: Path) -> None:
    total = psutil.virtual_memory().total // MIB
    body = listing(
        f"RPC0: 127.0.0.1:50052 ({total} MiB, {total} MiB free)",
        "RPC1: 127.0.0.1:50053 (8000 MiB, 7000 MiB free)",
        f"RPC2: 10.0.0.2:50053 ({total} MiB, {total} MiB free)",
    )
    m = find_machine(engine(tmp_path, body), rpc=["127.0.0.1:50052,127.0.0.1:50053,10.0.0.2:50053"])
    assert [g.shared for g in m.gpus] == [True, False, False]


def test_an_unreachable_rpc_server_is_reported(tmp_path: Path) -> None:
    body = listing(err="0.00.062.244 E Failed to connect to 127.0.0.1:1")
    m = find_machine(engine(tmp_path, body), rpc=["127.0.0.1:1"])
    assert (m.gpus, m.note, m.unreached) == ((), "", ("127.0.0.1:1",))


def test_rpc_with_a_build_without_rpc_is_an_error(tmp_path: Path) -> None:
    message = 'error while handling argument "--rpc": RPC not supported in this build'
    body = f"import sys; print({message!r}, file=sys.stderr); print('usage:'); sys.exit(1)"
    with pytest.raises(MemoryInputError, match="was built without RPC"):
        find_machine(engine(tmp_path, body), rpc=["10.0.0.2:1"])


def test_a_software_device_gets_no_desktop_margin(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(devices, "on_windows", lambda: False)
    body = listing("Vulkan0: llvmpipe (LLVM 19.1.0, 256 bits) (24000 MiB, 24000 MiB free)")
    (gpu,) = find_machine(engine(tmp_path, body)).gpus
    assert (gpu.shared, gpu.margin) == (True, 1024 * MIB)
