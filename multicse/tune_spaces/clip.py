"""Search spaces of CLIP, CyCLIP and CLAP: loss weights on the grid of Zhao et al. 2023, and a wider continuous space."""

from __future__ import annotations

from typing import Literal

from ray import tune

from multicse.trainers.tuning.space import SearchSpace

GRID = [0.1, 0.25, 0.5]
"""Values of lambda_I, lambda_C and lambda_s for audio (Zhao et al. 2023, section 4.2). For images the paper has no
search."""


def spaces(sentences: Literal["captions", "nli", "nli_sentences"]) -> dict[str, SearchSpace]:
    """Return the spaces of recipes with this sentence loss. NLI losses add a stream, and so change the optimizer's name."""
    update = "pairs" if sentences == "captions" else f"pairs+{sentences}"
    weights = ("i_cyclic", "c_cyclic", sentences)
    wide: SearchSpace = {
        f"optim.{update}.lr": tune.loguniform(1e-6, 3e-3),
        f"optim.{update}.weight_decay": tune.loguniform(1e-3, 0.5),
        **{f"method.{weight}": tune.loguniform(0.01, 2.0) for weight in weights},
        "method.temperature": tune.loguniform(0.02, 0.5),
        "streams.pairs.batch_size": tune.choice([64, 80, 128, 256]),
    }
    return {"weights": grid(*weights), "wide": wide}


def grid(*weights: str) -> SearchSpace:
    """Return the paper's grid over these loss weights."""
    return {f"method.{weight}": tune.grid_search(GRID) for weight in weights}


images = {
    **spaces("captions"),
    **{f"nli-{name}": space for name, space in spaces("nli").items()},  # the n models
    **{f"nli-sentences-{name}": space for name, space in spaces("nli_sentences").items()},  # the e models
}
audio = {  # the paper does not report the best values
    "paper": grid("i_cyclic", "c_cyclic", "captions"),  # CyCLAPs
    "paper-clap-s": grid("captions"),
    "paper-cyclap": grid("i_cyclic", "c_cyclic"),
    "wide": spaces("captions")["wide"],
}
SPACES = {"cyclip": images, "clap": audio}
