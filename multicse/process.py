"""Garbage collection in processes of this project: commands, and workers of Ray."""

import atexit
import gc


def collect_rarely() -> None:
    """Let Python walk through all objects rarely, and not at the end of the process.

    Importing torch, transformers and Ray creates a million objects that stay. Python's defaults walk through all of them
    eight times meanwhile (1.1 of 10 s of processor time) and again at the end (1.6 s). Young objects are collected as usual.
    """
    gc.set_threshold(*gc.get_threshold()[:2], 1000)
    atexit.register(gc.freeze)
