"""Who has the checkpoints behind a URL: a holder that lives is named, one that is dead is in nobody's way."""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from multicse.trainers.engine import lease
from multicse.trainers.engine.lease import HOLDER, held, leased
from multicse.trainers.engine.store import Store
from multicse.trainers.recipe import RecipeError


@pytest.fixture
def store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Store:
    monkeypatch.setattr(lease, "RENEWED", 0.5)
    return Store(f"file://{tmp_path}/store", tmp_path / "local")


def test_a_holder_that_lives_is_named(store: Store) -> None:
    with leased(store), pytest.raises(RecipeError, match=r"run\.storage=.*in use by process \d+ on "), leased(store):
        pass
    assert store.read(HOLDER) is None


def test_of_two_at_once_one_gets_in(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    """Both found nobody there."""
    read, first = Store.read, threading.Barrier(2)

    def together(store: Store, name: str) -> bytes | None:
        found = read(store, name)
        with contextlib.suppress(threading.BrokenBarrierError):
            first.wait(30)
        first.abort()
        return found

    def enter(_: int) -> bool:
        try:
            with leased(store):
                time.sleep(1)
                return True
        except RecipeError:
            return False

    monkeypatch.setattr(Store, "read", together)
    with ThreadPoolExecutor(2) as pool:
        assert sorted(pool.map(enter, range(2))) == [False, True]


def test_who_ends_soon_is_waited_for(tmp_path: Path) -> None:
    """A worker outlives its dead driver a while; the lock ends with its process."""
    program = f"""
import sys
from pathlib import Path
from multicse.trainers.engine.lease import held
with held(Path({str(tmp_path)!r})):
    print("held", flush=True)
    sys.stdin.read()
"""
    pipe = subprocess.PIPE
    with subprocess.Popen([sys.executable, "-c", program], stdin=pipe, stdout=pipe, text=True) as other:
        assert other.stdin is not None and other.stdout is not None and other.stdout.readline() == "held\n"
        with pytest.raises(RecipeError, match=rf"run\.output=.* process {other.pid} on "), held(tmp_path):
            pass
        threading.Timer(0.5, other.stdin.close).start()
        with held(tmp_path, wait=300):
            assert (tmp_path / lease.DRIVER).read_text().startswith(f"process {os.getpid()} on ")


@pytest.mark.parametrize("host", ["here", "elsewhere"])
def test_a_dead_holder_is_in_nobodys_way(store: Store, host: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """On this machine that is seen at once, on another one when it does not say that it lives."""
    place = lease.socket.gethostname() if host == "here" else host
    store.write(HOLDER, json.dumps({"host": place, "process": 2**22 + 1, "run": "x", "count": 0}).encode())
    pauses: list[float] = []
    sleep = time.sleep

    def pause(seconds: float) -> None:
        pauses.append(seconds)
        sleep(seconds)

    monkeypatch.setattr(time, "sleep", pause)
    with leased(store):
        assert (len(pauses) > 1) == (host == "elsewhere")  # one is for who came at the same time
        assert b'"run": "x"' not in (store.read(HOLDER) or b"")
