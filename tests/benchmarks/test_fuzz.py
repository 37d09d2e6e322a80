"""A fixed part of `benchmarks/fuzz.py`: damaged inputs end in counted bad samples, or in an error that names the file."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks.fuzz import BAD, TARGETS, attempt

RUNS = 200


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("fuzz")


@pytest.mark.parametrize("target", range(len(TARGETS)), ids=[target.name.replace(" ", "-") for target in TARGETS])
def test_damaged_inputs(target: int, place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MULTICSE_CACHE", str(place / "cache"))
    found = [attempt(number, place) for number in range(target, RUNS, len(TARGETS))]
    assert [outcome for outcome in found if outcome.kind in BAD] == []
