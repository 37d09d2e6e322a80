"""What stopping early saves: the same sweep with ASHA and with every trial to its end, one after the other.

    python benchmarks/sweep.py --recipe demo --trials 16 --out runs/sweep-benchmark

Wall times are of the whole command, the best model's export included; both sweeps are evaluated equally often and have the
same number of trials at a time. With --searcher random they have the same configurations, with optuna (the default, as for
the command) the first ones. The folder must be new.
"""

from __future__ import annotations

import json
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import tyro

ROOT = Path(__file__).resolve().parents[1]


@dataclass(frozen=True, kw_only=True)
class Arguments:
    """What is measured."""

    pipeline: str = "visualcse"
    recipe: str = "demo"
    trials: int = 16
    searcher: str = "optuna"
    out: Path = Path("runs/sweep-benchmark")


def measured(arguments: Arguments, scheduler: str, *more: str) -> dict[str, Any]:
    """One sweep in a process of its own: seconds of the command, steps of all trials, and what it found."""
    folder = (arguments.out / scheduler).resolve()
    folder.mkdir(parents=True, exist_ok=True)
    options = {
        "--recipe": arguments.recipe,
        "--trials": str(arguments.trials),
        "--searcher": arguments.searcher,
        "--scheduler": scheduler,
        "--output": str(folder),
        "--run.tracking_uri": f"sqlite:///{folder}/mlflow.db",
    }
    words = [part for option in options.items() for part in option]
    began = time.monotonic()
    subprocess.run(
        [sys.executable, str(ROOT / "pipelines" / "sweep.py"), arguments.pipeline, *words, *more], cwd=folder, check=True
    )
    summary = json.loads((folder / "summary.json").read_text())
    trials = json.loads((folder / "trials.json").read_text())
    return {
        "scheduler": scheduler,
        "seconds": time.monotonic() - began,
        "steps": sum(trial["step"] for trial in trials),
        "stopped": summary["trials"]["stopped"],
        **{name: summary[name] for name in ("best", "as_it_stands", "held_out")},
    }


def main() -> None:
    """Measure, print, write ``sweep.json``."""
    arguments = tyro.cli(Arguments, description=__doc__)
    asha = measured(arguments, "asha")
    often = json.loads((arguments.out / "asha" / "best.json").read_text())["evaluation"]["every"]
    whole = measured(arguments, "none", "--evaluation.every", str(often))  # else it would be evaluated less often
    (arguments.out / "sweep.json").write_text(json.dumps([asha, whole], indent=2) + "\n")
    for row in (asha, whole):
        best = f"best {row['best']['score']:.2f}"
        print(f"{row['scheduler']}: {row['seconds']:.0f} s, {row['steps']} steps, {row['stopped']} stopped, {best}")
    print(f"wall time with ASHA: {asha['seconds'] / whole['seconds']:.2f} of running all to the end")


if __name__ == "__main__":
    main()
