"""Search spaces of NonLing-CSE: the grids of the paper and its scripts, and wider continuous spaces."""

from __future__ import annotations

from ray import tune

from multicse.trainers.tuning.space import SearchSpace

text: SearchSpace = {
    "streams.text.batch_size": tune.grid_search([64, 128, 256]),
    "optim.text.lr": tune.grid_search([1e-5, 2e-5, 3e-5]),
}


def paper(stream: str) -> SearchSpace:
    """Return the grid of appendix C and the released scripts for one stream in addition to text, ``image`` or ``audio``."""
    return {
        f"optim.{stream}.lr": tune.grid_search([5e-6, 3e-6, 2e-6, 1e-6, 5e-7, 3e-7, 2e-7, 1e-7]),
        f"method.{stream}.weight": tune.grid_search([0.5, 0.2, 0.1, 0.05, 0.02, 0.01]),
    }


def wide(stream: str) -> SearchSpace:
    """Return a wider space for one stream in addition to text."""
    return {
        f"optim.{stream}.lr": tune.loguniform(1e-7, 1e-4),
        "optim.text.lr": tune.loguniform(1e-6, 1e-3),
        f"method.{stream}.weight": tune.loguniform(0.01, 10.0),
        f"method.{stream}.temperature": tune.loguniform(0.02, 0.5),
        "method.text.temperature": tune.loguniform(0.02, 0.5),
        f"method.{stream}.loss": tune.choice(["supcon", "simclr"]),
    }


SPACES: dict[str, dict[str, SearchSpace]] = {
    "visualcse": {"paper": paper("image"), "text": text, "wide": wide("image")},
    "audiocse": {"paper": paper("audio"), "text": text, "wide": wide("audio")},
    "nonlingcse": {
        "image": paper("image"),
        "audio": paper("audio"),
        "text": text,
        "paper": {**paper("image"), **paper("audio")},  # 2,304 points: for random search, not for a full grid
        "wide": {**wide("image"), **wide("audio")},
    },
}
