"""Compare `embed` with `SentenceTransformer.encode`, from a file of sentences and a folder of a model to a file of vectors.

    python -m benchmarks.speed.embed [--rows 5000 20000] [--rounds 3] [--model models/small-bert-en]
    python -m benchmarks.speed.embed --workers 2 --rows 50000 --rounds 1      # whole commands, through Ray, by the clock

The sentences are the demo's, repeated with their number if there are fewer. Seconds are processor time on a CPU, since other
programs may use the machine. Memory is the peak of the process beyond its memory before, in an untimed call.
"""

from __future__ import annotations

import contextlib
import io
import itertools
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import tyro

from benchmarks.timer import Call, forget_peak, machine, race, ratios, resident, spread
from multicse.commands.embed import embed
from multicse.data.offline.sentences import wiki_sentences
from multicse.pipelines.parts import SMALL_ENCODER

ROOT = Path(__file__).resolve().parents[2]
HEAD = (
    "| rows | embed, sentences/s | sentence-transformers | ratio | embed, MB | sentence-transformers, MB |\n"
    "|---:|---:|---:|---:|---:|---:|"
)

SCRIPT = """
import sys
import numpy as np
from sentence_transformers import SentenceTransformer

texts = open(sys.argv[2]).read().splitlines()
np.save(sys.argv[2] + ".npy", SentenceTransformer(sys.argv[1]).encode(texts, show_progress_bar=False))
"""
"""Program that encodes these texts with sentence-transformers alone."""


def sentences(rows: int) -> Iterator[str]:
    """Yield as many different sentences, whose lengths are in no order."""
    known = list(wiki_sentences())
    for number in itertools.islice(itertools.count(), rows):
        again, place = divmod(number, len(known))
        yield f"{known[place]} {again}" if again else known[place]


def memory(call: Call) -> float:
    """Return the megabytes that a call needs beyond those before it."""
    before = resident("VmRSS")
    forget_peak()
    call()
    return resident("VmHWM") - before


def row(model: str, rows: int, rounds: int, folder: Path) -> str:
    """Return the row of a number of sentences; both sides must give the same vectors."""
    file, out = folder / f"{rows}.txt", folder / f"{rows}"
    file.write_text("".join(f"{text}\n" for text in sentences(rows)))

    def ours() -> None:
        with contextlib.redirect_stdout(io.StringIO()):
            embed(model, file, out, num_workers=0, overwrite=True)

    def theirs() -> None:
        from sentence_transformers import SentenceTransformer

        texts = file.read_text().splitlines()
        np.save(folder / "vectors.npy", SentenceTransformer(model).encode(texts, show_progress_bar=False))

    sides = {"ours": ours, "theirs": theirs}
    peaks = [memory(side) for side in sides.values()]
    import pyarrow.parquet as pq

    made = np.concatenate([np.stack(pq.read_table(one)["vector"].to_numpy()) for one in sorted(out.glob("*.parquet"))])
    assert np.allclose(made, np.load(folder / "vectors.npy"), atol=1e-5)
    took = race(sides, rounds)
    speeds = [rows / statistics.median(took[side]) for side in sides]
    found = ratios(took["theirs"], took["ours"])
    cells = [f"{rows:,}", *(f"{speed:,.0f}" for speed in speeds), f"{statistics.median(found):.2f} ± {spread(found):.0f} %"]
    return f"| {' | '.join([*cells, *(f'{peak:,.0f}' for peak in peaks)])} |"


def commands_row(model: str, rows: int, rounds: int, workers: int, folder: Path) -> str:
    """Return the row of whole commands, by the clock: `embed` through Ray, and a script with sentence-transformers."""
    file, out = folder / f"{rows}.txt", folder / f"{rows}"
    file.write_text("".join(f"{text}\n" for text in sentences(rows)))
    through_ray = [str(ROOT / "pipelines" / "embed.py"), model, str(file), "--out", str(out), "--overwrite"]
    sides = {"ours": [*through_ray, "--num_workers", str(workers)], "theirs": ["-c", SCRIPT, model, str(file)]}
    took: dict[str, list[float]] = {side: [] for side in sides}
    for _ in range(rounds):
        for side, words in sides.items():
            start = time.perf_counter()
            subprocess.run([sys.executable, *words], check=True, stdout=subprocess.DEVNULL)
            took[side].append(time.perf_counter() - start)
    ours, theirs = (statistics.median(took[side]) for side in sides)
    return (
        f"| {rows:,} | {rows / ours:,.0f} | {rows / theirs:,.0f} | {theirs / ours:.2f} ({theirs:.0f} s / {ours:.0f} s) | | |"
    )


def main(rows: tuple[int, ...] = (5_000, 20_000), rounds: int = 3, model: str = SMALL_ENCODER, workers: int = 0) -> None:
    """Print a table with a row per number of sentences.

    Args:
        rows: Numbers of sentences.
        rounds: Repetitions, of which the median counts.
        model: Folder of a model.
        workers: Workers on Ray, with which whole commands are timed; 0: `embed` in this process.
    """
    print(f"{machine()}\n{HEAD}", flush=True)
    with tempfile.TemporaryDirectory() as folder:
        if workers:
            for number in rows:
                print(commands_row(model, number, rounds, workers, Path(folder)), flush=True)
            return
        row(model, 100, 1, Path(folder))  # imports
        for number in rows:
            print(row(model, number, rounds, Path(folder)), flush=True)


if __name__ == "__main__":
    tyro.cli(main, description=__doc__)
