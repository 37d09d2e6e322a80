"""Runs at a time: the order of results, one call per folder, and the end after an exception."""

from __future__ import annotations

import os
import pickle
import time
from pathlib import Path

import pytest

from multicse.reproduction import reproduce
from multicse.reproduction.tables.pool import Pool
from multicse.reproduction.tables.runs import Scale


def alone(place: Path, seconds: float) -> int:
    """Return this process, which is the only one that writes to the folder."""
    place.mkdir()
    time.sleep(seconds)
    place.rmdir()
    return os.getpid()


def failing(place: Path) -> None:
    place.touch()
    raise ValueError(place.name)


@pytest.mark.parametrize("jobs", [1, 2])
def test_calls_share_folders_and_keep_their_order(jobs: int, tmp_path: Path) -> None:
    folders = [tmp_path / name for name in "aabab"]
    with Pool(jobs) as pool:
        found = pool.map(lambda one: (one, pool.call(folders[one], alone, folders[one], 0.2)), range(5))
    assert [one for one, _ in found] == list(range(5))
    assert len({process for _, process in found} - {os.getpid()}) == (jobs if jobs > 1 else 0)


@pytest.mark.parametrize("jobs", [1, 2])
def test_the_first_exception_ends_all(jobs: int, tmp_path: Path) -> None:
    """Also one in a map inside a map, while other calls wait for a process; it is the one that is raised."""

    def inner(name: str) -> None:
        pool.call(tmp_path / name, failing, tmp_path / name)

    with pytest.raises(ValueError) as raised, Pool(jobs) as pool:
        pool.map(lambda letter: pool.map(inner, [f"{letter}{number}" for number in range(9)]), "abc")
    began = {file.name for file in tmp_path.iterdir()}
    assert str(raised.value) in began and len(began) < 20


def test_whatever_a_process_is_given_can_be_pickled(tmp_path: Path) -> None:
    for paper in reproduce.PAPERS:
        for table in reproduce.tables_of(paper).values():
            assert pickle.loads(pickle.dumps((table, Scale(tmp_path, tmp_path))))[0] == table
