"""What a sweep over CLIP, CyCLIP and CLAP varies: Zhao et al. 2023's grid of loss weights, and a wider continuous space."""

from __future__ import annotations

from typing import Literal

from ray import tune

from trainers.tuning.space import SearchSpace

GRID = [0.1, 0.25, 0.5]
"""Of lambda_I, lambda_C and lambda_s or lambda_n (Zhao et al. 2023, Tables 9 and 10)."""


def spaces(sentences: Literal["captions", "nli", "nli_sentences"]) -> dict[str, SearchSpace]:
    """The spaces of the recipes with this sentence loss; NLI brings a stream into the turn, which names the optimizer."""
    turn = "pairs" if sentences == "captions" else f"pairs+{sentences}"
    weights = ("i_cyclic", "c_cyclic", sentences)
    wide: SearchSpace = {
        f"optim.{turn}.lr": tune.loguniform(1e-6, 3e-3),
        f"optim.{turn}.weight_decay": tune.loguniform(1e-3, 0.5),
        **{f"method.{weight}": tune.loguniform(0.01, 2.0) for weight in weights},
        "method.temperature": tune.loguniform(0.02, 0.5),
        "streams.pairs.batch_size": tune.choice([64, 80, 128, 256]),
    }
    return {"paper": {f"method.{weight}": tune.grid_search(GRID) for weight in weights}, "wide": wide}


every = {
    **spaces("captions"),
    **{f"nli-{name}": space for name, space in spaces("nli").items()},  # the n models
    **{f"nli-sentences-{name}": space for name, space in spaces("nli_sentences").items()},  # the e models
}
SPACES = {"cyclip": every, "clap": spaces("captions")}  # of sounds the paper printed no winners
