"""What evaluation costs a run at the papers' interval: every 125 steps of 64 sentences, STS-B dev.

    python benchmarks/evaluation_share.py --data SentEval/data/downstream --text shards/wiki [--steps 250]

A SimCSE run of the shipped encoder, in this process; the share of the loop's time that went into evaluation. The ratio is
that of one model's forward on the development set to its training steps, so it carries over to larger ones. Exits with 1
when the share is above 5 %.
"""

from __future__ import annotations

import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

import tyro

if __name__ == "__main__":  # the repository before what is installed, so that a clone measures itself
    sys.path[0] = str(Path(__file__).resolve().parents[1])

from pipelines import parts, simcse
from trainers.engine.launch import fit

BOUND = 5.0  # percent of the loop's time, at most


@dataclass
class Arguments:
    """What is read and for how long."""

    data: str
    """SentEval downstream folder or raw TSVs."""
    text: str
    """Shards of sentences."""
    steps: int = 250


def missed(seconds: float, loop: float) -> list[str]:
    """The bound, if it is missed, by the seconds of evaluation and of the whole loop."""
    share = 100 * seconds / loop
    return [] if share <= BOUND else [f"evaluation took {share:.1f} % of the loop, {BOUND:.0f} % are allowed"]


def main(arguments: Arguments) -> None:
    """Train, evaluate every 125 steps, print the share."""
    recipe = simcse.demo().replace("evaluation", parts.STS.model_dump()).replace("evaluation.data", arguments.data)
    with tempfile.TemporaryDirectory() as place:
        changes = {
            "streams.text.shards": arguments.text,
            "streams.text.batch_size": 64,
            "evaluation.final": (),
            "evaluation.watch": (),
            "run.output": f"{place}/run",
            "run.tracking_uri": f"sqlite:///{place}/mlflow.db",
            "run.workers": 0,
            "run.max_steps": arguments.steps,
        }
        for path, value in changes.items():
            recipe = recipe.replace(path, value)
        summary = fit(recipe)
    seconds, loop = summary["evaluation_seconds"], summary["train_seconds"]
    rounds = summary["steps"] // recipe.evaluation.every
    print(f"{summary['steps']} steps of 64, {rounds} evaluations on {recipe.evaluation.select}")
    print(f"loop {loop:.1f} s, of which evaluation {seconds:.1f} s: {100 * seconds / loop:.1f} %")
    if lines := missed(seconds, loop):
        sys.exit("bounds missed:\n" + "\n".join(lines))


if __name__ == "__main__":
    main(tyro.cli(Arguments))
