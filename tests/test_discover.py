"""The search for drafts, and the cache of headers."""

from __future__ import annotations

import hashlib
import json
import shutil
from pathlib import Path

import pytest

from specllama import config, workloads
from specllama.drafts.discover import discover
from specllama.drafts.ollama import shown_name
from specllama.drafts.pick import rank_drafts
from specllama.engine.settings import Speculation
from specllama.gguf import GgufError, read_model
from specllama.gguf.cache import InspectCache
from specllama.gguf.source import FileSource
from specllama.tuning.records import method_label, setting_label
from tests.edited import edited
from tests.support import MODELS, specllama

DRAFT = MODELS / "draft.gguf"


@pytest.fixture
def target(tmp_path: Path) -> Path:
    folder = tmp_path / "models" / "q8"
    folder.mkdir(parents=True)
    return Path(shutil.copy(MODELS / "target.gguf", folder))


def found_paths(target: Path, *folders: Path) -> list[str]:
    return [str(m.path) for m in discover(read_model(target), folders).models]


def put_draft(folder: Path, name: str = "d.gguf") -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    return Path(shutil.copy(DRAFT, folder / name))


@pytest.mark.parametrize("place", [".", "MTP", "..", "../MTP"])
def test_drafts_near_the_target_are_found(target: Path, place: str) -> None:
    path = put_draft(target.parent / place)
    assert [Path(p).resolve() for p in found_paths(target)] == [path.resolve()]


@pytest.fixture
def not_temporary(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Test folders do not count as temporary, so folders near the target are searched."""
    monkeypatch.setattr("tempfile.gettempdir", lambda: "/nowhere")


@pytest.mark.usefixtures("not_temporary")
@pytest.mark.parametrize(
    ("target_at", "draft_at", "near"),
    [
        ("m", "m/drafts", True),
        ("m", "m/a/b/c", True),
        ("m", "m/a/b/c/d", None),
        ("all/big", "all/small", False),
        ("all/big", "all/small/q8", False),
        ("all/big", "all/small/q8/x", None),
        # LM Studio: models/OWNER/REPO/FILE
        ("models/one/Big-GGUF", "models/one/Small-GGUF", False),
        ("models/one/Big-GGUF", "models/two/Small-GGUF", False),
        ("models/one/Big-GGUF", "models/two/Small-GGUF/q8", None),
        ("m", "m/.trash", None),
    ],
)
def test_drafts_in_folders_below_and_beside_the_targets_are_found(
    tmp_path: Path, target_at: str, draft_at: str, near: bool | None
) -> None:
    root = tmp_path / "x" / "y"
    (root / target_at).mkdir(parents=True)
    target = Path(shutil.copy(MODELS / "target.gguf", root / target_at))
    path = put_draft(root / draft_at)
    result = discover(read_model(target), everywhere=False)
    assert [m.path for m in result.models] == ([path] if near is not None else [])
    assert result.near == (frozenset([path]) if near else frozenset())


@pytest.mark.usefixtures("not_temporary")
def test_the_limits_of_the_search_are_reported(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    here = tmp_path / "x" / "y" / "m"
    put_draft(here / "a" / "b" / "c" / "d")
    target = Path(shutil.copy(MODELS / "target.gguf", here))
    result = discover(read_model(target), everywhere=False)
    assert result.skipped == (f"{here}: folders more than 3 levels deep are not searched (1)",)
    assert result.rejected == ()
    monkeypatch.setattr("specllama.drafts.neighbours._MAX_FOLDERS", 20)
    for i in range(30):
        put_draft(here / f"n{i:02}")
    result = discover(read_model(target), everywhere=False)
    assert 10 < len(result.models) < 20
    assert f"{here}: only the first 20 folders and 300 files are searched" in result.skipped
    (tmp_path / "tmp").mkdir()
    argv = ("pick-draft", target, "--llama-server", "embedded")
    done = specllama(*argv, TMPDIR=str(tmp_path / "tmp"))
    assert f"skipped  {here}: folders more than 3" in done.stdout


@pytest.mark.usefixtures("not_temporary")
def test_a_home_or_a_hidden_folder_is_not_searched_recursively(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    home = tmp_path / "home" / "me"
    put_draft(home / "Documents")
    target = Path(shutil.copy(MODELS / "target.gguf", home))
    monkeypatch.setenv("HOME", str(home))
    assert found_paths(target) == []
    put_draft(home / ".app" / "a" / "b")
    hidden = Path(shutil.copy(target, home / ".app" / "a"))
    assert found_paths(hidden) == []


def test_a_temporary_folder_is_not_searched_recursively(target: Path) -> None:
    put_draft(target.parent / "below")
    assert found_paths(target) == []


def test_folders_of_other_programs_and_of_the_config_are_searched(
    target: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    home = tmp_path / "home"
    monkeypatch.setenv("HOME", str(home))
    monkeypatch.setenv("XDG_CACHE_HOME", str(home / ".cache"))
    monkeypatch.setenv("XDG_CONFIG_HOME", str(home / ".config"))
    expected = [
        put_draft(home / ".cache" / "llama.cpp", "a.gguf"),
        put_draft(home / ".lmstudio" / "models" / "org" / "repo", "b.gguf"),
        put_draft(tmp_path / "mine" / "deep", "c.gguf"),
    ]
    config.path().parent.mkdir(parents=True)
    config.path().write_text(f'model_dirs = ["{(tmp_path / "mine").as_posix()}"]\n')
    assert sorted(found_paths(target)) == sorted(map(str, expected))


def test_a_file_in_the_hub_cache_is_listed_once_by_name(
    target: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    hub = tmp_path / "hub"
    monkeypatch.setenv("HF_HUB_CACHE", str(hub))
    repo = hub / "models--org--small-GGUF"
    blob = put_draft(repo / "blobs", "0123abcd")
    names = []
    for commit in ("aaa", "bbb"):
        (repo / "snapshots" / commit).mkdir(parents=True)
        link = repo / "snapshots" / commit / "small-Q8_0.gguf"
        link.symlink_to(blob)
        names.append(str(link))
    assert found_paths(target) == names[:1]


def test_circular_broken_and_hard_links(target: Path, tmp_path: Path) -> None:
    tree = tmp_path / "tree"
    first = put_draft(tree / "a")
    (tree / "a" / "up").symlink_to(tree, target_is_directory=True)
    (tree / "a" / "dead.gguf").symlink_to(tree / "nowhere.gguf")
    (tree / "a" / "self.gguf").symlink_to(tree / "a" / "self.gguf")
    (tree / "b.gguf").hardlink_to(first)
    (tree / "sock.gguf").mkdir()
    assert len(found_paths(target, tree)) == 1


def test_links_out_of_the_searched_folder_get_a_warning(target: Path, tmp_path: Path) -> None:
    outside, tree = put_draft(tmp_path / "outside"), tmp_path / "tree"
    inside = put_draft(tree / "sub", "inside.gguf")
    (tree / "near.gguf").symlink_to(inside)
    (tree / "far.gguf").symlink_to(outside)
    result = discover(read_model(target), [tree])
    assert [p.name for p in result.outside] == ["far.gguf"]
    picked = rank_drafts(read_model(target), workloads.load_workload("code"), None, result)
    warned = {
        c.draft.path.name
        for c in picked.candidates
        if c.draft and "outside the folder" in str(c.warnings)
    }
    assert warned == {"far.gguf"}


def candidates(target: Path, *folders: Path, everywhere: bool = False) -> list[str]:
    info = read_model(target)
    picked = rank_drafts(
        info, workloads.load_workload("code"), None, discover(info, folders, everywhere)
    )
    return [c.draft.title for c in picked.candidates if c.draft is not None]


def test_the_targets_folder_ranks_before_its_parent(target: Path) -> None:
    """Even if the other one is smaller, and whether it is the same model or not."""
    near = edited(DRAFT, target.parent / "z-near.gguf", {"general.name": "near" * 500})
    far = edited(DRAFT, target.parent.parent / "a-far.gguf", {"general.name": "far"})
    assert near.stat().st_size > far.stat().st_size
    change = {"blk.0.attn_norm.weight": ((96,), "F32")}
    edited(DRAFT, target.parent.parent / "b-far.gguf", add=change)
    assert candidates(target) == ["z-near.gguf", "b-far.gguf"]


def test_the_nearest_of_two_copies_is_used(target: Path, tmp_path: Path) -> None:
    put_draft(target.parent.parent, "a.gguf")
    put_draft(target.parent, "z.gguf")
    assert candidates(target) == ["z.gguf"]
    (target.parent / "z.gguf").unlink()
    put_draft(tmp_path / "mine", "named.gguf")
    assert candidates(target, tmp_path / "mine") == ["named.gguf"]


def test_a_link_beside_the_target_to_another_folder_gets_a_warning(
    target: Path, tmp_path: Path
) -> None:
    outside = put_draft(tmp_path / "elsewhere")
    (target.parent / "link.gguf").symlink_to(outside)
    info = read_model(target)
    picked = rank_drafts(
        info, workloads.load_workload("code"), None, discover(info, everywhere=False)
    )
    assert f"a link to {outside.resolve()}, outside the folder searched" in str(picked.candidates)


def test_links_of_a_hugging_face_snapshot_get_no_warning(tmp_path: Path) -> None:
    repo = tmp_path / "models--org--m"
    (repo / "snapshots" / "abc").mkdir(parents=True)
    (repo / "blobs").mkdir()
    for name in ("target", "draft"):
        shutil.copy(MODELS / f"{name}.gguf", repo / "blobs" / name)
        (repo / "snapshots" / "abc" / f"{name}.gguf").symlink_to(repo / "blobs" / name)
    result = discover(read_model(repo / "snapshots" / "abc" / "target.gguf"), everywhere=False)
    assert [m.path.name for m in result.models] == ["draft.gguf"]
    assert result.outside == frozenset()


def ollama(root: Path, name: str, blob: Path, **more: object) -> Path:
    """A model as Ollama stores it: HOST/NAMESPACE/NAME/TAG."""
    digest = hashlib.sha256(name.encode()).hexdigest()
    (root / "blobs").mkdir(parents=True, exist_ok=True)
    stored = Path(shutil.copy(blob, root / "blobs" / f"sha256-{digest}"))
    manifest = root / "manifests" / name
    manifest.parent.mkdir(parents=True, exist_ok=True)
    layer = {"mediaType": "application/vnd.ollama.image.model", "digest": f"sha256:{digest}"}
    text = {"mediaType": "application/vnd.ollama.image.template", "digest": "sha256:" + "0" * 64}
    manifest.write_text(json.dumps({"schemaVersion": 2, "layers": [text, layer], **more}))
    return stored


def test_ollama_models_are_found_and_named(
    target: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    root = tmp_path / "home" / ".ollama" / "models"
    blob = ollama(root, "registry.ollama.ai/library/tiny/0.5b", DRAFT)
    ollama(root, "hf.co/someone/Other-GGUF/Q8_0", MODELS / "other-vocab.gguf")
    ollama(root, "registry.ollama.ai/someone/again/latest", blob)
    assert candidates(target, everywhere=True) == ["tiny:0.5b"]
    info = read_model(target)
    picked = rank_drafts(info, workloads.load_workload("code"), None, discover(info))
    rules = {r.what: r.rule for r in picked.rejected}
    assert rules == {
        "hf.co/someone/Other-GGUF:Q8_0": "token text",
        "someone/again:latest": "duplicate",
    }
    done = specllama("pick-draft", target, "--llama-server", "embedded")
    assert "tiny:0.5b" in done.stdout
    assert f"--draft {blob}" in " ".join(done.stdout.split())


def test_an_ollama_file_is_always_shown_by_its_name(tmp_path: Path) -> None:
    """Even if the model is given by its path, as in pick-draft's suggested command."""
    blob = ollama(tmp_path / "models", "registry.ollama.ai/library/tiny/0.5b", DRAFT)
    spec = Speculation(("draft-simple",), blob, n_max=3)
    assert setting_label(spec) == "draft-simple tiny:0.5b K=3"
    assert method_label(spec) == "draft-simple tiny:0.5b"
    target = ollama(
        tmp_path / "models", "registry.ollama.ai/library/big/1b", MODELS / "target.gguf"
    )
    done = specllama(
        "serve",
        target,
        "--draft",
        blob,
        "--vram",
        "8GiB",
        "--llama-server",
        "embedded",
        "--dry-run",
    )
    assert (done.returncode, done.stderr) == (0, "")
    lines = [line for line in done.stdout.splitlines() if " -m " not in line]
    assert "sha256-" not in "".join(lines)
    assert "target   big:1b: " in done.stdout
    assert "tiny:0.5b" in done.stdout
    unknown = Path(shutil.copy(DRAFT, tmp_path / f"sha256-{'0' * 64}"))
    assert shown_name(unknown) == unknown.name


@pytest.mark.parametrize(
    "text",
    [
        b"",
        b"[]",
        b'{"layers": 3}',
        b'{"layers": [3]}',
        b'{"layers": [{"mediaType": "application/vnd.ollama.image.model", "digest": 3}]}',
        b'{"layers": [{"mediaType": "application/vnd.ollama.image.model", "digest": "sha256:../x"}]}',
        b"[" * 100_000,
        b"\xff\xfe",
    ],
)
def test_damaged_manifests_are_ignored(
    target: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, text: bytes
) -> None:
    root = tmp_path / "ollama"
    monkeypatch.setenv("OLLAMA_MODELS", str(root))
    ollama(root, "registry.ollama.ai/library/tiny/latest", DRAFT)
    (root / "manifests/registry.ollama.ai/library/tiny/broken").write_bytes(text)
    assert candidates(target, everywhere=True) == ["tiny:latest"]


def test_missing_folders_and_files_as_folders_are_ignored(target: Path, tmp_path: Path) -> None:
    assert found_paths(target, tmp_path / "nowhere", DRAFT) == []


def test_unicode_names_and_long_paths(target: Path, tmp_path: Path) -> None:
    names = ["模型 草稿.gguf", "مسودة.gguf", "черновик (1).GGUF"]
    for i, name in enumerate(names):
        put_draft(tmp_path / "t" / str(i), name)
    deep = tmp_path / "t"
    while len(str(deep)) < 260:
        deep /= "x" * 60
    put_draft(deep, "long.gguf")
    assert sorted(Path(p).name for p in found_paths(target, tmp_path / "t")) == sorted(
        [*names, "long.gguf"]
    )


def test_files_that_cannot_be_drafts_are_rejected_with_a_reason(target: Path) -> None:
    (target.parent / "page.gguf").write_bytes(b"<html>")
    shutil.copy(target, target.parent / "twin.gguf")
    rules = {r.what: r.rule for r in discover(read_model(target)).rejected}
    assert rules == {"page.gguf": "unreadable", "twin.gguf": "size"}


def test_a_thousand_files_are_read_once(
    target: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tree = tmp_path / "many"
    tree.mkdir()
    raw = DRAFT.read_bytes()
    for i in range(1000):
        (tree / f"{i}.gguf").write_bytes(raw)
    reads = 0
    original = FileSource.read

    def counted(self: FileSource, at: int, n: int) -> bytes:
        nonlocal reads
        reads += 1
        return original(self, at, n)

    monkeypatch.setattr(FileSource, "read", counted)
    assert len(found_paths(target, tree)) == 1000
    first_reads, reads = reads, 0
    assert len(found_paths(target, tree)) == 1000
    assert first_reads >= 1000
    assert reads < 20  # the target itself


def test_the_cache_returns_what_was_read(tmp_path: Path) -> None:
    for path in sorted(MODELS.glob("*.gguf")):
        cache = InspectCache()
        first = cache.inspect(path)
        cache.save()
        cached = InspectCache().inspect(path)
        assert cached == first == read_model(path)
        assert cached.vocabulary is not None
        assert first.vocabulary is not None
        assert cached.vocabulary.tokens == first.vocabulary.tokens


def test_a_changed_file_is_read_again(tmp_path: Path) -> None:
    path = put_draft(tmp_path)
    cache = InspectCache()
    assert cache.inspect(path).parameters == 504_096
    cache.save()
    shutil.copy(MODELS / "other-vocab.gguf", path)
    assert InspectCache().inspect(path).embedding_length == 64


@pytest.mark.parametrize(
    "text", ["", "[]", '{"version": 1}', '{"version": "0.1.0/6", "models": 3}']
)
def test_a_damaged_cache_is_ignored(text: str, tmp_path: Path) -> None:
    path = put_draft(tmp_path)
    cache = InspectCache()
    cache.inspect(path)
    cache.save()
    cache._file.write_text(text)
    assert InspectCache().inspect(path).architecture == "llama"


def test_a_file_that_changes_while_it_is_read_is_an_error(tmp_path: Path) -> None:
    path = put_draft(tmp_path)
    info = read_model(path)
    assert info.vocabulary is not None
    path.write_bytes(path.read_bytes()[:1000])
    with pytest.raises(GgufError, match="changed while being read"):
        _ = info.vocabulary.tokens
