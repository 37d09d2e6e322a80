"""One process at a time works in a folder, or on the checkpoints behind a URL; a second one is told who does."""

from __future__ import annotations

import contextlib
import fcntl
import json
import logging
import os
import signal
import socket
import threading
import time
import uuid
from collections.abc import Iterator
from pathlib import Path

import psutil

from multicse.trainers.engine.store import Store
from multicse.trainers.recipe import RecipeError

log = logging.getLogger(__name__)

RENEWED = 10.0
"""Seconds after which a lease behind a URL is written again; one that is not for four times as long is nobody's."""
HOLDER = "holder.json"
DRIVER, WRITER = ".lock", ".writer.lock"
"""Locks in a run's output: of its driver, and of the worker that writes there, which may outlive a dead driver a while."""
OUTLIVES = 60.0
"""Seconds that this may take."""


@contextlib.contextmanager
def held(folder: Path, setting: str = "run.output", name: str = DRIVER, wait: float = 0) -> Iterator[None]:
    """A folder for this process alone, made when absent. Raises RecipeError that says who has it.

    name: of the lock, as who writes there and who drives are two processes. wait: seconds that another one has to end.
    """
    folder.mkdir(parents=True, exist_ok=True)
    end = time.monotonic() + wait
    with open(folder / name, "a+") as file:
        while True:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)  # a process that dies lets go of it
                break
            except BlockingIOError:
                if time.monotonic() > end:
                    file.seek(0)
                    raise _in_use(setting, str(folder), file.read()) from None
            time.sleep(0.2)
        file.truncate(0)
        file.write(f"process {os.getpid()} on {socket.gethostname()}")
        file.flush()
        yield


@contextlib.contextmanager
def leased(store: Store) -> Iterator[None]:
    """The checkpoints behind a URL for this process alone; those in a folder are `held` with it.

    Nothing can be locked there: an object that its holder writes again and again says that it lives. Who finds one from
    another machine waits to see whether that happens. Raises RecipeError that says who has it.
    """
    if not store.remote:
        yield
        return
    ours = {"host": socket.gethostname(), "process": os.getpid(), "run": uuid.uuid4().hex}
    seen, end = store.read(HOLDER), time.monotonic() + 4 * RENEWED
    while seen is not None and not _dead(seen) and time.monotonic() < end:
        time.sleep(RENEWED / 4)
        if (now := store.read(HOLDER)) and now != seen:
            holder = json.loads(now)
            raise _in_use("run.storage", store.place, f"process {holder['process']} on {holder['host']}")
    done, count = threading.Event(), 0
    store.write(HOLDER, json.dumps({**ours, "count": count}).encode())
    time.sleep(RENEWED / 4)  # for who found nobody at the same time

    def others() -> RecipeError | None:
        holder = json.loads(store.read(HOLDER) or b"{}")
        lost = holder.get("run", ours["run"]) != ours["run"]
        return _in_use("run.storage", store.place, f"process {holder['process']} on {holder['host']}") if lost else None

    def renew() -> None:
        nonlocal count
        while not done.wait(RENEWED):
            count += 1
            with contextlib.suppress(OSError, ValueError):  # a store that is away for a while
                if error := others():  # it took this process, which did not come to write for long, for dead
                    log.error("%s. This run ends.", error)
                    os.kill(os.getpid(), signal.SIGTERM)
                    return
                store.write(HOLDER, json.dumps({**ours, "count": count}).encode())

    if error := others():
        raise error
    thread = threading.Thread(target=renew, daemon=True, name="lease")
    thread.start()
    try:
        yield
    finally:
        done.set()
        thread.join()
        with contextlib.suppress(OSError, ValueError):
            if not others():
                store.delete(HOLDER)


def _dead(holder: bytes) -> bool:
    """Whether the holder was a process of this machine that is no more."""
    with contextlib.suppress(ValueError, KeyError, TypeError):
        found = json.loads(holder)
        return found["host"] == socket.gethostname() and not psutil.pid_exists(found["process"])
    return False


def _in_use(setting: str, place: str, holder: str) -> RecipeError:
    who = holder.strip() or "another process"
    return RecipeError(f"{setting}={place!r} is in use by {who}; wait for it, end it, or give another one")
