"""How the processes of a run share their machine: memory that is kept, and who waits for a core."""

from __future__ import annotations

import contextlib
import ctypes
import os
import sys
from collections.abc import Iterator

M_TRIM_THRESHOLD, M_MMAP_THRESHOLD = -1, -3  # malloc.h
LARGEST = 2**31 - 1
MMAP = 2**25  # the most that glibc takes


def keep_freed_memory() -> bool:
    """Let this process keep what it frees, up to 2 GiB, instead of giving it back to the system at once.

    Every step allocates the same activations; given back, each of their pages has to be cleared and mapped again in the next
    step (measured in docs/log.md). Returns whether it was set: glibc only, elsewhere nothing happens.
    """
    if not sys.platform.startswith("linux"):
        return False
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (AttributeError, OSError):  # musl has none
        return False
    return bool(mallopt(M_TRIM_THRESHOLD, LARGEST)) and bool(mallopt(M_MMAP_THRESHOLD, MMAP))


@contextlib.contextmanager
def in_background() -> Iterator[None]:
    """Start processes that wait for a free core instead of taking one from training (Linux's SCHED_BATCH).

    Every process of Ray wakes 100 times a second. Ten of them took one of two training threads off its core 900 times a
    second, and the other thread waited for it (docs/performance.md). What these processes start inherits the policy.
    """
    if not hasattr(os, "SCHED_BATCH"):
        yield
        return
    before = os.sched_getscheduler(0)
    _set_policy(os.SCHED_BATCH)
    try:
        yield
    finally:
        _set_policy(before)


def to_foreground() -> None:
    """Undo `in_background` for this thread and those that it starts: it is the one that trains."""
    if hasattr(os, "SCHED_BATCH") and os.sched_getscheduler(0) == os.SCHED_BATCH:
        _set_policy(os.SCHED_OTHER)


def _set_policy(policy: int) -> None:
    with contextlib.suppress(OSError):  # a sandbox may forbid it; the run is slower then
        os.sched_setscheduler(0, policy, os.sched_param(0))
