"""Damages thousands of inputs and counts what comes of each. Ends with 1 where something crashed, hung, was silent or huge.

    python -m benchmarks.fuzz [--runs 3000] [--first 0]

told        an error that names the file
skipped     bad samples were counted, the others are as they were
same        nothing is missing, nothing has changed
unknowable  the content is another, and neither the format nor a manifest has a checksum of it (a letter in a text)
silent      samples or words are gone, or weights are random, and nobody was told; or a checksum would have told
crash       another exception, an error that names no file, or the end of the process
hang        more than two minutes, the first of a process among them, which makes the inputs
memory      more than 1 GiB above what the process had
"""

from __future__ import annotations

import logging
import multiprocessing
import os
import shutil
import sys
import tempfile
import warnings
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from multiprocessing.connection import Connection
from pathlib import Path

import numpy as np
import tyro

from benchmarks.damage import pick
from benchmarks.fuzz_targets import TARGETS, Found, Target
from benchmarks.timer import forget_peak, resident
from multicse.trainers.engine.cluster import quiet

SECONDS, MEGABYTES = 120, 1024
BAD = ("silent", "crash", "hang", "memory")


@dataclass(frozen=True)
class Outcome:
    """What came of a damaged input."""

    number: int
    target: str
    damage: str
    kind: str
    text: str = ""


def attempt(number: int, place: Path) -> Outcome:
    """The case of this number; always the same one. `place` is a folder for what is made."""
    rng = np.random.default_rng([7, number])
    target = TARGETS[number % len(TARGETS)]
    whole, before = _whole(target, place)
    folder = place / f"case-{number}"
    shutil.copytree(whole, folder)
    pattern, damages = target.damage[int(rng.integers(len(target.damage)))]
    files = sorted(file for file in folder.glob(pattern) if file.is_file())
    file, damage = files[int(rng.integers(len(files)))], pick(rng, damages)
    file.write_bytes(damage(file.read_bytes(), rng))
    try:
        kind, text = _judged(target, folder, before)
    finally:
        shutil.rmtree(folder)
    return Outcome(number, target.name, f"{damage.__name__} {file.name}", kind, text)


_made: dict[tuple[str, Path], tuple[Path, Found]] = {}


def _whole(target: Target, place: Path) -> tuple[Path, Found]:
    """The input before it is damaged, made once, and what is read of it."""
    key = (target.name, place)
    if key not in _made:
        folder = place / target.name.replace(" ", "-").replace(",", "")
        folder.mkdir()
        target.make(folder)
        _made[key] = folder, target.read(folder)
    return _made[key]


def _judged(target: Target, folder: Path, before: Found) -> tuple[str, str]:
    forget_peak()
    start = resident("VmRSS")
    try:
        kind, text = _compared(target, before, target.read(folder))
    except ValueError as error:
        text = str(error)
        named = folder.name in text or target.name == "recipe"
        kind = "told" if named and not isinstance(error, UnicodeError) else "crash"
    except Exception as error:
        kind, text = "crash", f"{type(error).__name__}: {error}"
    grown = resident("VmHWM") - start
    return ("memory", f"{grown:.0f} MB") if grown > MEGABYTES else (kind, text)


def _compared(target: Target, before: Found, after: Found) -> tuple[str, str]:
    if after.wrong:
        return "silent", after.wrong
    if after.bad:
        return "skipped", str(after.bad)
    gone = sorted(set(before.items) - set(after.items))
    changed = sorted(name for name, value in before.items.items() if after.items.get(name) not in (value, None))
    new = sorted(set(after.items) - set(before.items))
    if not gone and not changed and not new:
        return "same", ""
    open_ended = ("word vectors, txt", "table, jsonl", "table, csv", "checkpoint")  # nothing in them says how many there are
    whole_form = target.checksum or (gone and target.name not in open_ended)
    return ("silent" if whole_form else "unknowable"), f"gone {gone[:2]}, changed {changed[:2]}, new {new[:2]}"


# ---- many


def _child(numbers: Iterable[int], out: Connection) -> None:
    os.environ["TQDM_DISABLE"] = "1"
    logging.disable(logging.WARNING)
    warnings.simplefilter("ignore")
    quiet()
    with tempfile.TemporaryDirectory() as place:
        os.environ["MULTICSE_CACHE"] = f"{place}/cache"
        for number in numbers:
            out.send(attempt(number, Path(place)))


def outcomes(first: int, runs: int) -> Iterator[Outcome]:
    """Each in a child process, which is begun again where it dies or does not answer."""
    number, end = first, first + runs
    while number < end:
        receive, send = multiprocessing.Pipe(duplex=False)
        child = multiprocessing.get_context("spawn").Process(target=_child, args=(range(number, end), send), daemon=True)
        child.start()
        send.close()
        while number < end:
            lost = Outcome(number, TARGETS[number % len(TARGETS)].name, "", "hang", "the process was ended")
            try:
                outcome = receive.recv() if receive.poll(SECONDS) else lost
            except EOFError:
                outcome = lost = replace(lost, kind="crash", text="the process ended")
            number += 1
            yield outcome
            if outcome is lost:
                break
        child.kill()
        child.join()


def main(runs: int = 3000, first: int = 0) -> int:
    """Print a table of outcomes by target, and what must not be."""
    kinds = ["told", "skipped", "same", "unknowable", *BAD]
    table: dict[str, Counter[str]] = {target.name: Counter() for target in TARGETS}
    for outcome in outcomes(first, runs):
        table[outcome.target][outcome.kind] += 1
        if outcome.kind in BAD:
            print(f"{outcome.kind}: {outcome.number}, {outcome.target}, {outcome.damage}: {outcome.text[:300]}", flush=True)
    print(f"\n| input | runs | {' | '.join(kinds)} |\n|---|{'---:|' * (len(kinds) + 1)}")
    table["all"] = sum(table.values(), Counter())
    for name, counts in table.items():
        print(f"| {name} | {counts.total()} | {' | '.join(str(counts[kind]) for kind in kinds)} |")
    failed = sum(table["all"][kind] for kind in BAD)
    print(f"\n{table['all'].total()} damaged inputs, {failed} of them crashed, hung, were silent or took too much memory")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(tyro.cli(main, description=__doc__))
