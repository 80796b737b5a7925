"""Files that specllama writes."""

from __future__ import annotations

from pathlib import Path

import pytest

from specllama.storage import write_atomically


def test_errors_name_the_file_and_not_a_temporary_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(dir: Path, prefix: str) -> None:
        raise PermissionError(13, "Permission denied", f"{dir}/{prefix}p1sf9twd")

    monkeypatch.setattr("tempfile.mkstemp", refuse)
    with pytest.raises(PermissionError) as e:
        write_atomically(tmp_path / "b.json", "new")
    assert e.value.filename == str(tmp_path / "b.json")


def test_a_write_that_fails_leaves_the_old_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "a" / "b.json"
    write_atomically(path, "old")

    def refuse(*_: object) -> None:
        raise OSError("disk full")

    monkeypatch.setattr("os.replace", refuse)
    with pytest.raises(OSError, match="disk full"):
        write_atomically(path, "new")
    assert path.read_text() == "old"
    assert [p.name for p in path.parent.iterdir()] == ["b.json"]
