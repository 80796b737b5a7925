"""What shells complete: values from the CLI, scripts that carry them, tried in the shells."""

from __future__ import annotations

from pathlib import Path

import pytest

from specllama.cli import complete
from specllama.planning.choose import parse_methods
from specllama.workloads import names


def test_lists_by_comma_are_completed_at_their_last_word() -> None:
    assert complete.methods("ngram-map") == ["ngram-map-k", "ngram-map-k4v"]
    assert complete.methods("ngram-mod,d") == [
        "ngram-mod,draft",
        "ngram-mod,dflash",
        "ngram-mod,dspark",
    ]
    assert "code,chat" in complete.workloads("code,")
    assert "code,code" not in complete.workloads("code,")
    assert complete.one_of("speed", "context")("s") == ["speed"]
    assert "q8_0" in complete.cache_types("q8")


def test_every_value_that_is_completed_is_taken() -> None:
    assert [parse_methods(word) for word in complete.METHODS]
    assert list(complete.workloads("")) == names()


def test_the_users_own_workloads_are_completed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("specllama.workloads.own_dir", lambda: tmp_path)
    (tmp_path / "letters.toml").write_text("")
    assert complete.workloads("let") == ["letters"]
