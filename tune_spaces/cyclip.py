"""What a sweep over CLIP and CyCLIP varies: the weights of paper 002's grid, and wider continuous spaces."""

from __future__ import annotations

from ray import tune

from tune_spaces.space import SearchSpace

GRID = [0.1, 0.25, 0.5]
"""The paper's values of every lambda (Tables 9 and 10)."""


def spaces(turn: str = "pairs") -> dict[str, SearchSpace]:
    """The spaces of a recipe whose only turn has that name."""
    cyclic: SearchSpace = {f"method.{name}": tune.grid_search(GRID) for name in ("i_cyclic", "c_cyclic")}
    paper: SearchSpace = {**cyclic, "method.captions": tune.grid_search(GRID)}
    wide: SearchSpace = {
        f"optim.{turn}.lr": tune.loguniform(1e-5, 3e-3),
        f"optim.{turn}.weight_decay": tune.loguniform(1e-3, 0.5),
        "method.i_cyclic": tune.loguniform(0.01, 2.0),
        "method.c_cyclic": tune.loguniform(0.01, 2.0),
        "method.captions": tune.loguniform(0.01, 2.0),
        "method.temperature": tune.loguniform(0.02, 0.5),
        "streams.pairs.batch_size": tune.choice([64, 80, 128, 256]),
    }
    return {"paper": paper, "cyclic": cyclic, "captions": {"method.captions": tune.grid_search(GRID)}, "wide": wide}


# A weight brings its stream and its turn along, so these fit the recipes that have both.
NLI_SPACES: dict[str, SearchSpace] = {"nli": {"method.nli": tune.grid_search(GRID)}}
NLI_SENTENCES_SPACES: dict[str, SearchSpace] = {"nli_sentences": {"method.nli_sentences": tune.grid_search(GRID)}}
SPACES = spaces()
