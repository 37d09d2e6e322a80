"""What evaluation costs a run at the papers' interval: STS-B dev every 125 steps of 64 sentences, in a run of SimCSE.

    python -m benchmarks.speed.evaluation_share [--steps 250]

The share is a forward of the development set against training steps of the same model, so it carries over to larger ones.
"""

from __future__ import annotations

import tempfile

import tyro

from benchmarks.timer import datasets
from pipelines import parts, simcse
from pipelines.cli import prepare
from trainers.engine.launch import fit


def main(steps: int = 250) -> None:
    """Train and print the share of the loop's time that went into evaluation."""
    data = str(datasets("sts"))
    with tempfile.TemporaryDirectory() as place:
        changes = {
            "streams.text.batch_size": 64,
            "evaluation": parts.STS.model_copy(update={"data": data, "watch": (), "final": ()}).model_dump(),
            "run.output": f"{place}/run",
            "run.tracking_uri": f"sqlite:///{place}/mlflow.db",
            "run.workers": 0,
            "run.max_steps": steps,
        }
        recipe = parts.changed(simcse.demo(), changes)
        prepare(recipe)
        summary = fit(recipe)
    seconds, loop = summary["evaluation_seconds"], summary["train_seconds"]
    print(f"{summary['steps']} steps of 64, STS-B dev every {recipe.evaluation.every}")
    print(f"loop {loop:.1f} s, of which evaluation {seconds:.1f} s: {100 * seconds / loop:.1f} %")


if __name__ == "__main__":
    tyro.cli(main, description=__doc__)
