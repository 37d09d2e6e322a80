"""The functions on the page that follows one batch exist, and a step calls them in this order."""

from __future__ import annotations

import importlib
import re
import sys
import threading
from functools import reduce
from types import FrameType
from typing import Any

from multicse.trainers.recipe import Recipe
from tests.conftest import PACKAGE, ROOT
from tests.worlds import run, text_only

ELSEWHERE = {"ray_chunks", "Executor.blocks", "read_blocks", "Chunk.to_block", "Chunk.from_block", "average"}
"""Functions that need Ray or several workers."""
ON_GPUS = {"pinned", "uploaded"}


def named(text: str) -> list[tuple[str, str]]:
    """Files and functions of the tables in a text, in order."""
    rows = re.findall(r"^\| `([\w/]+\.py)` \| (.+?) \| .+ \|$", text, re.MULTILINE)
    assert len(rows) == len(re.findall(r"^\| `", text, re.MULTILINE))
    return [(file, name) for file, functions in rows for name in re.findall(r"`([\w.]+)`", functions)]


def test_a_step_calls_the_functions_of_the_page(recipe: Recipe) -> None:
    page = (ROOT / "docs/explanation/one-batch.md").read_text()
    everything, step = named(page), named(page.partition("## The step")[2])
    assert len(everything) > 30 and len(step) > 12
    for file, name in everything:
        module = importlib.import_module(f"multicse.{file.removesuffix('.py').replace('/', '.')}")
        assert reduce(getattr, name.split("."), module).__module__ == module.__name__, name
    calls = dict[tuple[str, str], None]()

    def note(frame: FrameType, event: str, _: Any) -> None:
        code = frame.f_code
        if event == "call" and code.co_filename.startswith(str(PACKAGE)):
            file, name = code.co_filename.removeprefix(f"{PACKAGE}/"), code.co_qualname
            calls.setdefault((file, name))
            calls.setdefault((file, name.partition(".")[0]))  # the class

    threading.setprofile(note)
    sys.setprofile(note)
    try:
        run(text_only(recipe).replace("run.max_steps", 1))
    finally:
        sys.setprofile(None)
        threading.setprofile(None)
    here = {*calls}
    assert [pair for pair in everything if pair not in here and pair[1] not in ELSEWHERE | ON_GPUS] == []
    order = [*calls]
    assert sorted(places := [order.index(pair) for pair in step if pair in here]) == places
