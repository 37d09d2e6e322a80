"""What a sweep over NonLing-CSE varies: the paper's grids and those of its scripts, and a wider continuous space."""

from __future__ import annotations

from ray import tune

from trainers.tuning.space import SearchSpace


def spaces(stream: str) -> dict[str, SearchSpace]:
    """The spaces for one stream beside the text, ``image`` or ``audio``."""
    paper: SearchSpace = {  # appendix C and the released scripts
        f"optim.{stream}.lr": tune.grid_search([5e-6, 3e-6, 2e-6, 1e-6, 5e-7, 3e-7, 2e-7, 1e-7]),
        f"method.{stream}.weight": tune.grid_search([0.5, 0.2, 0.1, 0.05, 0.02, 0.01]),
    }
    text: SearchSpace = {
        "streams.text.batch_size": tune.grid_search([64, 128, 256]),
        "optim.text.lr": tune.grid_search([1e-5, 2e-5, 3e-5]),
    }
    wide: SearchSpace = {
        f"optim.{stream}.lr": tune.loguniform(1e-7, 1e-4),
        "optim.text.lr": tune.loguniform(1e-6, 1e-3),
        f"method.{stream}.weight": tune.loguniform(0.01, 10.0),
        f"method.{stream}.temperature": tune.loguniform(0.02, 0.5),
        "method.text.temperature": tune.loguniform(0.02, 0.5),
        f"method.{stream}.loss": tune.choice(["supcon", "simclr"]),
    }
    return {"paper": paper, "text": text, "wide": wide}
