"""What stopping early saves: the same random trials with ASHA and to the end, one sweep after the other.

    python -m benchmarks.speed.sweep [--pipeline visualcse] [--recipe demo] [--trials 16] [--searcher random]

Times are of the whole command, the best model's export included. Both sweeps have as many trials at a time and, where the
searcher is random, the same settings; both evaluate every `every` steps, since ASHA decides there.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import tyro

from benchmarks.timer import skip


def main(
    pipeline: str = "visualcse",
    recipe: str = "demo",
    trials: int = 16,
    searcher: str = "random",
    every: int | None = None,
    out: Path | None = None,
) -> None:
    """Print a row a sweep. Sixteen demos take about half an hour, so `out`, a new folder, has to be given for them."""
    if out is None and (recipe, trials) == ("demo", 16):
        skip("16 trials of a demo take half an hour: give --out DIR for them, or --recipe smoke --trials 2")
    folder = (out or Path(tempfile.mkdtemp())).resolve()
    print("| scheduler | s | until the last trial's end, s | steps | stopped | best |\n|---|---:|---:|---:|---:|---:|")
    for scheduler in ("asha", "none"):
        place = folder / scheduler
        place.mkdir(parents=True)
        command = [sys.executable, "-m", "pipelines.sweep", pipeline, "--recipe", recipe, "--trials", str(trials)]
        command += ["--searcher", searcher, "--scheduler", scheduler, "--output", str(place)]
        command += ["--run.tracking_uri", f"sqlite:///{place}/mlflow.db"]
        command += ["--evaluation.every", str(every)] if every else []
        began = time.time()
        with (place / "log.txt").open("w") as log:
            subprocess.run(command, stdout=log, stderr=subprocess.STDOUT, check=True)
        seconds = time.time() - began
        rows = json.loads((place / "trials.json").read_text())
        best = json.loads((place / "summary.json").read_text())["best"]
        last, steps = max(row["ended_at"] for row in rows) - began, sum(row["step"] for row in rows)
        stopped = sum(row["status"] == "stopped" for row in rows)
        print(f"| {scheduler} | {seconds:.0f} | {last:.0f} | {steps} | {stopped} | {best['score']:.2f} |", flush=True)


if __name__ == "__main__":
    tyro.cli(main, description=__doc__)
