"""The Hub, simulated by a local server with the same API and ranged reads."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests import zoo
from tests.hub_server import Hub
from tests.support import MODELS, specllama

EMBEDDED = ("--llama-server", "embedded")


@pytest.fixture
def hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Hub]:
    root = tmp_path / "hub"
    root.mkdir()
    with Hub(root) as server:
        monkeypatch.setenv("HF_ENDPOINT", server.url)
        monkeypatch.setenv("HF_HOME", str(tmp_path / "hf_home"))
        monkeypatch.setenv("HF_HUB_DISABLE_XET", "1")
        monkeypatch.delenv("HF_HUB_OFFLINE", raising=False)
        yield server


def repo(hub: Hub, name: str) -> Path:
    path = hub.root / name
    path.mkdir(parents=True)
    return path


@pytest.fixture
def coder(hub: Hub, tmp_path: Path) -> Path:
    """A local Qwen2.5-Coder target, and the Hub repository with its known draft."""
    small = repo(hub, "ggml-org/Qwen2.5-Coder-0.5B-Q8_0-GGUF")
    zoo.llama(small / "coder-q8_0.gguf", "Qwen2.5 Coder 0.5B", zoo.QWEN25, 32)
    (small / "README.md").write_text("a model card")
    (tmp_path / "here").mkdir()
    return zoo.llama(tmp_path / "here" / "t.gguf", "Qwen2.5 Coder 7B", zoo.QWEN25_LARGE, 128)


def test_inspect_reads_only_the_header_of_a_remote_file(hub: Hub) -> None:
    """The token table has megabytes; the weights are not read."""
    path = zoo.llama(repo(hub, "org/big") / "big.gguf", "Big", zoo.QWEN25, 128)
    assert path.stat().st_size > 70 * 2**20
    done = specllama("inspect", "org/big:big.gguf", "--json")
    assert done.returncode == 0, done.stderr
    data = json.loads(done.stdout)
    assert data["vocabulary"]["n_tokens"] == 151936
    assert data["parameters"] > 19e6
    assert hub.sent < 5 * 2**20
    assert all(r for method, p, r in hub.requests if method == "GET" and "/resolve/" in p)


def test_no_hub_requests_without_the_hub_option(hub: Hub, coder: Path) -> None:
    done = specllama("pick-draft", coder, *EMBEDDED)
    assert done.returncode == 1
    assert "ggml-org/Qwen2.5-Coder-0.5B-Q8_0-GGUF" in done.stdout
    assert hub.requests == []


def test_a_known_draft_is_checked_remotely_and_downloaded(hub: Hub, coder: Path) -> None:
    listing = specllama("pick-draft", coder, "--hub", *EMBEDDED)
    assert listing.returncode == 0, listing.stderr
    assert "ggml-org/Qwen2.5-Coder-0.5B-Q8_0-GGUF:coder-q8_0.gguf" in listing.stdout
    assert "--hub --download" in listing.stdout.splitlines()[-1]
    assert not any("README" in p for _, p, _ in hub.requests)
    done = specllama("pick-draft", coder, "--hub", "--download", "--json", *EMBEDDED)
    assert done.returncode == 0, done.stderr
    downloaded = Path(json.loads(done.stdout)["draft"])
    original = hub.root / "ggml-org/Qwen2.5-Coder-0.5B-Q8_0-GGUF/coder-q8_0.gguf"
    assert downloaded.read_bytes() == original.read_bytes()
    assert done.stderr == ""  # no progress bar in a pipe


def test_an_interrupted_download_is_resumed(hub: Hub, coder: Path) -> None:
    hub.cut_after = 13_000_000  # the library saves partial downloads in pieces of 10 MB
    args = ("pick-draft", coder, "--hub", "--download", "--json", *EMBEDDED)
    # header reads are shorter than the cut; the download is the first long transfer
    done = specllama(*args)
    if done.returncode != 0:  # the library gave up; the same command resumes
        assert "could not reach" in done.stderr
        done = specllama(*args)
    assert done.returncode == 0, done.stderr
    assert hub.cut_after is None
    downloaded = Path(json.loads(done.stdout)["draft"])
    original = hub.root / "ggml-org/Qwen2.5-Coder-0.5B-Q8_0-GGUF/coder-q8_0.gguf"
    assert downloaded.read_bytes() == original.read_bytes()
    assert any(r.startswith("bytes=") and r.endswith("-") for _, _, r in hub.requests)


def test_a_target_without_a_known_repository_gets_a_warning(hub: Hub) -> None:
    """The target names no base model. Once the search was skipped without a message."""
    target = MODELS / "target.gguf"
    done = specllama("pick-draft", target, "--hub", *EMBEDDED)
    assert done.returncode == 0, done.stderr
    assert "the Hub has no repository to search: none is known for this" in done.stdout
    (warning,) = json.loads(specllama("pick-draft", target, "--hub", "--json", *EMBEDDED).stdout)[
        "warnings"
    ]
    assert warning.startswith("the Hub has no repository to search")


def test_drafts_are_found_by_their_base_model(hub: Hub, tmp_path: Path) -> None:
    path = repo(hub, "someone/tiny-draft-GGUF")
    shutil.copy(MODELS / "draft.gguf", path / "tiny.Q5_1.gguf")
    (path / "base").write_text("org/tiny")
    (tmp_path / "here").mkdir()
    fields: dict[str, zoo.Value] = {
        "general.base_model.count": 1,
        "general.base_model.0.repo_url": f"{hub.url}/org/tiny",
    }
    target = with_fields(MODELS / "target.gguf", tmp_path / "here" / "t.gguf", fields)
    data = json.loads(specllama("pick-draft", target, "--hub", "--json", *EMBEDDED).stdout)
    assert [c["draft"] for c in data["candidates"]] == ["someone/tiny-draft-GGUF:tiny.Q5_1.gguf"]


def test_all_parts_of_a_split_remote_model_are_read(hub: Hub) -> None:
    from specllama.gguf import read_model

    path = repo(hub, "org/split")
    zoo.llama(path / "m-00001-of-00002.gguf", "M", zoo.LLAMA2, 32)
    zoo.write(path / "m-00002-of-00002.gguf", "llama", {}, {"blk.1.attn_norm.weight": (32,)})
    whole = read_model(path / "m-00001-of-00002.gguf")
    data = json.loads(specllama("inspect", "org/split:m-00002-of-00002.gguf", "--json").stdout)
    assert data["tensors"] == whole.tensors
    assert data["file_bytes"] == whole.file_bytes
    assert len(data["shards"]) == 2


def with_fields(source: Path, to: Path, fields: dict[str, zoo.Value]) -> Path:
    """A copy with further keys after the existing ones; the tensor data moves accordingly."""
    from specllama.gguf import read_header

    header, raw = read_header(source), source.read_bytes()
    first = min(raw.index(t.name.encode()) for t in header.tensors) - 8
    more = b"".join(zoo._string(k) + zoo._value(v) for k, v in fields.items())
    count = int.from_bytes(raw[16:24], "little") + len(fields)
    table_end = max(raw.index(t.name.encode()) + len(t.name) for t in header.tensors)
    head = raw[:16] + count.to_bytes(8, "little") + raw[24:first] + more + raw[first:table_end]
    last = max(header.tensors, key=lambda t: raw.index(t.name.encode()))
    head += raw[table_end : table_end + 4 + 8 * len(last.shape) + 12]
    head += bytes(-len(head) % 32)
    to.write_bytes(head + raw[header.data_offset :])
    return to


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("org/gated:m.gguf", "the repository is gated"),
        ("org/busy:m.gguf", "429"),
        ("org/broken:m.gguf", "500"),
        ("org/nope:m.gguf", "repository not found"),
        ("org/there:m.gguf", "file not found"),
    ],
)
def test_hub_errors_are_short(hub: Hub, name: str, message: str) -> None:
    repo(hub, "org/there")
    for special in ("gated", "busy", "broken"):
        repo(hub, f"org/{special}")
    done = specllama("inspect", name)
    assert done.returncode == 1
    assert message in done.stderr
    assert len(done.stderr.splitlines()) <= 2


def test_offline_and_unreachable_hubs_are_errors(hub: Hub, coder: Path) -> None:
    offline = specllama("pick-draft", coder, "--hub", *EMBEDDED, HF_HUB_OFFLINE="1")
    assert offline.returncode == 1
    assert "HF_HUB_OFFLINE" in offline.stderr
    unreachable = specllama("inspect", "org/m:m.gguf", HF_ENDPOINT="http://127.0.0.1:9")
    assert unreachable.returncode == 1
    assert "could not reach" in unreachable.stderr
    assert "Traceback" not in unreachable.stderr


def test_the_hub_token_is_never_printed(hub: Hub, coder: Path) -> None:
    done = specllama("pick-draft", coder, "--hub", "--json", *EMBEDDED, HF_TOKEN="hf_secret123")
    assert done.returncode == 0
    assert "hf_secret123" not in done.stdout + done.stderr
