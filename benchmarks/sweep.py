"""What stopping early saves: the same random trials with ASHA and to the end, one sweep after the other.

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


def measured(arguments: Arguments, scheduler: str) -> dict[str, object]:
    """One sweep in a process of its own; seconds of the command and until its last trial's end, and what it found."""
    folder = (arguments.out / scheduler).resolve()
    command = [sys.executable, str(ROOT / "pipelines" / "sweep.py"), arguments.pipeline, "--recipe", arguments.recipe]
    command += ["--trials", str(arguments.trials), "--searcher", arguments.searcher, "--scheduler", scheduler]
    command += ["--output", str(folder), "--run.tracking_uri", f"sqlite:///{folder}/mlflow.db"]
    # Both evaluate equally often: ASHA needs it, and what is compared is what stopping saves.
    folder.mkdir(parents=True, exist_ok=True)
    began = time.time()
    subprocess.run(command + every(arguments), cwd=folder, check=True)
    seconds = time.time() - began
    summary = json.loads((folder / "summary.json").read_text())
    trials = json.loads((folder / "trials.json").read_text())
    steps = sum(trial["step"] for trial in trials)
    return {
        "scheduler": scheduler,
        "seconds": seconds,
        "trial_seconds": max(trial["ended_at"] for trial in trials) - began,
        "steps": steps,
        "stopped": sum(trial["status"] == "stopped" for trial in trials),
        "best": summary["best"],
        "as_it_stands": summary["as_it_stands"],
        "held_out": summary["held_out"],
    }


def every(arguments: Arguments) -> list[str]:
    """The evaluation interval that ASHA would choose, for both sweeps."""
    sys.path.insert(0, str(ROOT))
    import importlib

    from pipelines.cli import prepare
    from trainers.tuning.sweep import prepared

    recipe = importlib.import_module(f"pipelines.{arguments.pipeline}").RECIPES[arguments.recipe]()
    prepare(recipe)
    return ["--evaluation.every", str(prepared(recipe, "asha", recipe.run.seed).evaluation.every)]


def main() -> None:
    """Measure, print, write ``sweep.json``."""
    arguments = tyro.cli(Arguments, description=__doc__)
    rows = [measured(arguments, scheduler) for scheduler in ("asha", "none")]
    (arguments.out / "sweep.json").write_text(json.dumps(rows, indent=2) + "\n")
    print(f"{'scheduler':<12}{'seconds':>9}{'until last':>12}{'steps':>8}{'stopped':>9}{'best':>8}")
    for row in rows:
        best = row["best"]
        assert isinstance(best, dict)
        print(
            f"{row['scheduler']:<12}{row['seconds']:>9.0f}{row['trial_seconds']:>12.0f}"
            f"{row['steps']:>8}{row['stopped']:>9}{best['score']:>8.2f}"
        )
    asha, none = rows
    print(f"wall time with ASHA: {float(str(asha['seconds'])) / float(str(none['seconds'])):.2f} of running all to the end")


if __name__ == "__main__":
    main()
