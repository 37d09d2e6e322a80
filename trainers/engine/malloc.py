"""One setting of the C library that costs CPU training a tenth of its time."""

from __future__ import annotations

import ctypes
import sys

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
