"""`serve OWNER/REPO[:QUANT]`: the file, the draft and the downloads, on a local Hub."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from specllama.cli.app import run
from specllama.drafts import repository as repositories
from specllama.drafts.hub import RemoteFile
from specllama.drafts.repository import Repository, is_quant, repository, sidecars
from tests import zoo
from tests.help_render import render, version
from tests.hub_server import Hub
from tests.support import MODELS, Serve, script
from tests.test_hub import with_fields

GIB = 2**30


@pytest.fixture
def hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Hub]:
    """A Hub with org/tiny-GGUF in three sizes, and a draft for it in another repository."""
    import huggingface_hub.constants as constants
    from huggingface_hub import HfFileSystem

    root, cache = tmp_path / "hub", tmp_path / "hf"
    with Hub(root) as server:
        monkeypatch.setenv("HF_HUB_CACHE", str(cache))
        monkeypatch.setenv("HF_ENDPOINT", server.url)
        monkeypatch.setenv("HF_HUB_DISABLE_XET", "1")
        monkeypatch.setattr(constants, "HF_HUB_CACHE", str(cache))
        monkeypatch.setattr(constants, "ENDPOINT", server.url)
        template = server.url + "/{repo_id}/resolve/{revision}/{filename}"
        monkeypatch.setattr(constants, "HUGGINGFACE_CO_URL_TEMPLATE", template)
        HfFileSystem.clear_instance_cache()  # it caches listings and the address of its server
        tiny, draft = root / "org/tiny-GGUF", root / "someone/tiny-draft-GGUF"
        for folder in (tiny, draft):
            folder.mkdir(parents=True)
        base: dict[str, zoo.Value] = {
            "general.base_model.count": 1,
            "general.base_model.0.repo_url": f"{server.url}/org/tiny",
        }
        with_fields(MODELS / "target.gguf", tiny / "tiny-Q4_K_M.gguf", base)
        shutil.copy(MODELS / "target.gguf", tiny / "tiny-Q8_0.gguf")
        (tiny / "mmproj-tiny-Q4_K_M.gguf").write_bytes(b"a projector")
        shutil.copy(MODELS / "draft.gguf", draft / "tiny.Q5_1.gguf")
        (draft / "base").write_text("org/tiny")
        yield server


@pytest.fixture(scope="module")
def engine(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A llama-server that only answers --version, --help and --list-devices."""
    tmp_path = tmp_path_factory.mktemp("engine")
    (tmp_path / "help").write_text(render("b11434"))
    (tmp_path / "version").write_text(version("b11434"))
    body = (
        "import pathlib, sys\n"
        f"folder = pathlib.Path({str(tmp_path)!r})\n"
        "if '--list-devices' in sys.argv: print('Available devices:')\n"
        "elif '--help' in sys.argv: print((folder / 'help').read_text())\n"
        "else: print((folder / 'version').read_text())\n"
    )
    return str(script(tmp_path / "llama-server", body))


def files(**sizes: float) -> list[RemoteFile]:
    names = {name.replace("__", "."): size for name, size in sizes.items()}
    return [RemoteFile("o/r", f"{name}.gguf", int(size * GIB)) for name, size in names.items()]


def stems(found: tuple[RemoteFile, ...]) -> list[str]:
    return [f.name.removesuffix(".gguf") for f in found]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("org/model-GGUF", Repository("org/model-GGUF")),
        ("org/model-GGUF:Q5_K_M", Repository("org/model-GGUF", "Q5_K_M")),
        ("hf.co/org/model:iq4_xs", Repository("org/model", "iq4_xs")),
        ("https://huggingface.co/org/model", Repository("org/model")),
        ("org/model:sub/m-Q4_0.gguf", Repository("org/model", "sub/m-Q4_0.gguf")),
        ("model.gguf", None),
        ("models/model.gguf", None),
        ("./org/model", None),
        ("../org/model", None),
        ("/org/model", None),
        ("~/model", None),
        ("C:/models/model", None),
        ("C:\\models\\model", None),
        ("a/b/c", None),
        ("model", None),
    ],
)
def test_repositories_are_told_apart_from_paths(text: str, expected: Repository | None) -> None:
    assert repository(text) == expected


@given(st.text(st.sampled_from("ab/:.-_Q4\\ ~\0é"), max_size=30))
def test_any_text_is_a_repository_or_a_path(text: str) -> None:
    found = repository(text)
    if found is not None:
        owner, name = found.name.split("/")
        assert owner
        assert name
        assert f"{owner}/{name}" in text


def test_an_existing_path_is_not_a_repository(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "org" / "model").mkdir(parents=True)
    monkeypatch.chdir(tmp_path)
    assert repository("org/model") is None
    assert repository("org/other") == Repository("org/other")


@pytest.mark.parametrize(
    ("name", "quant", "expected"),
    [
        ("m-Q4_K_M.gguf", "q4_k_m", True),
        ("m.Q4_K_M-00001-of-00002.gguf", "Q4_K_M", True),
        ("m-UD-Q4_K_XL.gguf", "Q4_K_XL", True),
        ("m-UD-Q4_K_XL.gguf", "UD-Q4_K_XL", True),
        ("m-Q4_K_M.gguf", "Q4_K", False),
        ("m-IQ4_XS.gguf", "Q4_XS", False),
        ("Q4_K_M/m.gguf", "Q4_K_M", False),
    ],
)
def test_quantisations_are_read_from_names(name: str, quant: str, expected: bool) -> None:
    assert is_quant(name, quant) is expected


def test_files_are_tried_from_q4_k_m_to_smaller_ones() -> None:
    found = files(**{"m-Q8_0": 8, "m-Q4_K_M": 5, "m-Q5_K_M": 6, "m-Q2_K": 3, "m-Q3_K_M": 4})
    assert stems(repositories.models_to_try(found, "")) == ["m-Q4_K_M", "m-Q3_K_M", "m-Q2_K"]
    assert stems(repositories.models_to_try(found, "Q5_K_M")) == ["m-Q5_K_M"]
    assert stems(repositories.models_to_try(found, "m-Q8_0.gguf")) == ["m-Q8_0"]
    assert repositories.models_to_try(found, "Q6_K") == ()
    only = files(**{"m-F16": 16, "m-BF16": 17})
    assert stems(repositories.models_to_try(only, "")) == ["m-F16"]


def test_drafters_and_projectors_are_not_served() -> None:
    found = files(**{
        "mmproj-m-Q4_K_M": 1, "mtp-m-Q4_K_M": 0.5, "m-eagle3-Q4_K_M": 0.4, "m-Q8_0": 8,
        "imatrix-Q4_K_M": 0.1, "empty-Q4_K_M": 0,
    })  # fmt: skip
    assert stems(repositories.models_to_try(found, "")) == ["m-Q8_0"]
    assert stems(sidecars(found)) == ["mtp-m-Q4_K_M", "m-eagle3-Q4_K_M"]
    many = files(**{f"mtp-{i}-Q4_K_M": 0.5 for i in range(6)})
    assert len(sidecars(many)) == 4, "no more headers are read"
    gemma = files(**{"gemma-4-assistant-Q4_K_M": 0.4, "gemma-4-Q4_K_M": 8})
    assert stems(repositories.models_to_try(gemma, "")) == ["gemma-4-Q4_K_M"]
    assert stems(sidecars(gemma)) == ["gemma-4-assistant-Q4_K_M"]
    assert stems(repositories.models_to_try(files(**{"my-assistant-7B-Q8_0": 7}), "")) == [
        "my-assistant-7B-Q8_0"
    ]


def test_downloaded_files_have_their_names_in_the_repository(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A quantisation in the repository's name is not that of its files."""
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path))
    folder = tmp_path / "models--o--m-Q4_K_M-GGUF" / "snapshots" / ("c" * 40)
    (folder / "sub").mkdir(parents=True)
    for name in ("m-Q8_0.gguf", "sub/m-Q5_0-00001-of-00002.gguf", "sub/m-Q5_0-00002-of-00002.gguf"):
        (folder / name).write_bytes(b"x")
    found = repositories.downloaded_files("o/m-Q4_K_M-GGUF")
    assert [f.name for f in found] == ["m-Q8_0.gguf", "sub/m-Q5_0-00001-of-00002.gguf"]
    assert [f.name for f in repositories.models_to_try(tuple(found), "")] == ["m-Q8_0.gguf"]
    assert repositories.downloaded_files("o/other") == {}
    newer = folder.parent / ("d" * 40)
    newer.mkdir()
    (newer / "m-Q8_0.gguf").write_bytes(b"y")
    for at, revision in enumerate((folder, newer)):
        os.utime(revision, (at, at))
    (path,) = (
        p for f, p in repositories.downloaded_files("o/m-Q4_K_M-GGUF").items() if "Q8" in f.name
    )
    assert path.parent == newer


def test_a_dry_run_reads_headers_and_downloads_nothing(
    hub: Hub, engine: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    args = ["serve", "org/tiny-GGUF", "--workload", "code", "--dry-run", "--llama-server", engine]
    assert run(args) == 0
    out = capsys.readouterr().out
    assert "hub      org/tiny-GGUF:tiny-Q4_K_M.gguf: it fits" in out
    assert "get      org/tiny-GGUF:tiny-Q4_K_M.gguf, 2.9 MiB: not downloaded yet" in out
    assert "for images, download org/tiny-GGUF:mmproj-tiny-Q4_K_M.gguf" in out
    assert "get      someone/tiny-draft-GGUF:tiny.Q5_1.gguf, 0.5 MiB: not downloaded yet" in out
    assert "draft-simple with tiny-draft-GGUF:tiny.Q5_1.gguf" in out
    assert not list((tmp_path / "hf").rglob("*.gguf"))
    assert run([*args, "--json"]) == 0
    assert "draft" in json.loads(capsys.readouterr().out)


def test_the_largest_smaller_file_is_chosen_if_the_default_does_not_fit(
    hub: Hub, engine: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    import specllama.planning.from_hub as from_hub
    from specllama.memory.decide import FITS, TOO_BIG, FitVerdict

    small = hub.root / "org/tiny-GGUF" / "tiny-Q2_K.gguf"
    (hub.root / "org/tiny-GGUF" / "tiny-Q8_0.gguf").rename(small)
    monkeypatch.setattr(
        from_hub,
        "_verdict",
        lambda target, *_: FitVerdict(
            TOO_BIG if "Q4" in target.path.name else FITS, "RAM is 1 GiB short"
        ),
    )
    assert run(["serve", "org/tiny-GGUF", "--dry-run", "--llama-server", engine]) == 0
    out = capsys.readouterr().out
    assert "hub      org/tiny-GGUF:tiny-Q2_K.gguf: tiny-Q4_K_M.gguf does not fit" in out
    small.unlink()
    assert run(["serve", "org/tiny-GGUF", "--dry-run", "--llama-server", engine]) == 2
    err = capsys.readouterr().err
    assert "no file in org/tiny-GGUF fits: tiny-Q4_K_M.gguf: RAM is 1 GiB short" in err
    stems = ["serve", "org/tiny-GGUF:q4_k_m", "--dry-run", "--llama-server", engine]
    assert run(stems) == 0
    assert "requested as q4_k_m" in capsys.readouterr().out


def test_the_header_of_a_file_larger_than_all_memory_is_not_read(
    hub: Hub, engine: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    huge = tuple(RemoteFile("org/tiny-GGUF", f"tiny-{q}.gguf", 2**44) for q in ("Q4_K_M", "Q2_K"))
    monkeypatch.setattr("specllama.drafts.hub.files", lambda _: huge)
    assert run(["serve", "org/tiny-GGUF", "--dry-run", "--llama-server", engine]) == 2
    err = capsys.readouterr().err
    assert "it needs 16,384.0 GiB, only" in err
    assert len(err.splitlines()) == 2
    assert hub.sent == 0


def test_the_default_file_with_layers_in_ram_if_no_file_fits_entirely(
    hub: Hub, engine: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    import specllama.planning.from_hub as from_hub
    from specllama.memory.decide import PARTLY, FitVerdict

    (hub.root / "org/tiny-GGUF" / "tiny-Q8_0.gguf").rename(
        hub.root / "org/tiny-GGUF/tiny-Q2_K.gguf"
    )
    monkeypatch.setattr(from_hub, "_verdict", lambda *_: FitVerdict(PARTLY, "2 layers stay in RAM"))
    assert run(["serve", "org/tiny-GGUF", "--dry-run", "--llama-server", engine]) == 0
    assert "tiny-Q4_K_M.gguf: 2 layers stay in RAM" in capsys.readouterr().out


def test_a_head_in_the_models_repository_is_used(
    hub: Hub, engine: str, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = hub.root / "org/qwen-GGUF"
    folder.mkdir()
    shutil.copy(MODELS / "mtp-trunk.gguf", folder / "qwen-Q4_K_M.gguf")
    shutil.copy(MODELS / "mtp-head.gguf", folder / "mtp-qwen-Q8_0.gguf")
    args = ["memory", "org/qwen-GGUF", "--workload", "code", "--llama-server", engine]
    assert run(args) == 0
    out = capsys.readouterr().out
    assert "get      org/qwen-GGUF:mtp-qwen-Q8_0.gguf" in out
    assert "draft-mtp with qwen-GGUF:mtp-qwen-Q8_0.gguf" in out
    assert "verdict  fits" in out
    shutil.copy(MODELS / "mtp.gguf", folder / "qwen-Q4_K_M.gguf")  # contains its own head
    assert run([*args, "--json"]) == 0
    output = capsys.readouterr()
    assert "mtp-qwen" not in output.err
    assert json.loads(output.out)


@pytest.mark.parametrize(
    ("model", "code", "message"),
    [
        ("org/nope", 1, "repository not found"),
        ("org/gated", 1, "the repository is gated"),
        ("org/busy", 1, "429"),
        ("org/tiny-GGUF:Q3_K_S", 2, "It has mmproj-tiny-Q4_K_M.gguf, tiny-Q4_K_M.gguf"),
        ("org/empty", 2, "has no GGUF file"),
        ("org/projector", 2, "no model that can be served on its own"),
        ("org/nope/model.gguf", 2, "no such file"),
    ],
)
def test_errors_are_at_most_two_lines(
    hub: Hub, engine: str, model: str, code: int, message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    for name in ("gated", "busy", "empty", "projector"):
        (hub.root / "org" / name).mkdir()
    (hub.root / "org/projector/mmproj-m.gguf").write_bytes(b"a projector")
    for command in ("serve", "plan", "probe", "memory"):
        assert run([command, model, "--llama-server", engine]) == code
        err = capsys.readouterr().err
        assert message in err
        assert len(err.splitlines()) <= 2


def test_downloaded_files_are_served_offline(
    hub: Hub, engine: str, tmp_path: Path, capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    import huggingface_hub.constants as constants

    from specllama.drafts.hub import download

    dry = ["serve", "org/tiny-GGUF", "--dry-run", "--llama-server", engine]
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    assert run(dry) == 1
    assert "HF_HUB_OFFLINE" in capsys.readouterr().err
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
    path = download("org/tiny-GGUF:tiny-Q4_K_M.gguf")
    draft = download("someone/tiny-draft-GGUF:tiny.Q5_1.gguf")
    for offline in (True, False):
        monkeypatch.setattr(constants, "HF_HUB_OFFLINE", offline)
        assert run(dry) == 0
        out = capsys.readouterr().out
        assert str(path) in out
        assert str(draft) in out
        assert ("using the downloaded copy" in out) is offline


def test_plan_reads_remote_headers_but_writes_no_missing_paths(
    hub: Hub, engine: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["plan", "org/tiny-GGUF", "--llama-server", engine]) == 0
    assert "draft-simple with" in capsys.readouterr().out
    args = ["plan", "org/tiny-GGUF", "--llama-server", engine, "--format", "shell"]
    assert run(args) == 2
    output = capsys.readouterr()
    assert "specllama serve org/tiny-GGUF" in output.err
    assert output.out == ""


def test_a_full_disk_is_an_error_before_the_download(
    hub: Hub, engine: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    full = shutil._ntuple_diskusage(total=9, used=9, free=0)
    monkeypatch.setattr(shutil, "disk_usage", lambda _: full)
    assert run(["serve", "org/tiny-GGUF", "--llama-server", engine]) == 1
    err = capsys.readouterr().err
    assert "has only 0.0 MiB free" in err


def test_a_repository_is_served_with_its_draft(hub: Hub, tmp_path: Path, native: Path) -> None:
    with Serve(tmp_path, "org/tiny-GGUF", "--workload", "code", "--llama-server", native) as server:
        assert server.info["speculation"] == "on"
        downloaded = sorted(p.name for p in (tmp_path / "hf").rglob("*.gguf"))
        assert downloaded == ["tiny-Q4_K_M.gguf", "tiny.Q5_1.gguf"]
        assert "download org/tiny-GGUF:tiny-Q4_K_M.gguf" in server.err
