"""Files specllama keeps."""

from __future__ import annotations

from pathlib import Path

import pytest

from specllama.storage import log_dir, new_log, write_atomically


def test_only_the_newest_logs_are_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    log_dir().mkdir(parents=True)
    for i in range(30):
        (log_dir() / f"20260101-0000{i:02}-8080.log").touch()
    new = new_log(8080)
    left = sorted(p.name for p in log_dir().glob("*.log"))
    assert left == [f"20260101-0000{i:02}-8080.log" for i in range(11, 30)]
    assert new.parent == log_dir()
    assert new.name.endswith("-8080.log")


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
