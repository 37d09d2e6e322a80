"""Search spaces of MultiCSE: the parts, their weights and the learning rate, one space per set of streams."""

from __future__ import annotations

from typing import Any

from ray import tune

from multicse.trainers.tuning.space import SearchSpace


def space(*kinds: str) -> SearchSpace:
    """Return the space of recipes with text and these streams, ``image`` and ``audio``. A weight of 0 disables a part."""
    found: dict[str, Any] = {
        f"optim.{'+'.join((*kinds, 'text'))}.lr": tune.loguniform(1e-5, 3e-3),
        "method.text.temperature": tune.loguniform(0.02, 0.5),
        "method.guidance": tune.choice([0.0, 0.1, 1.0]),
        "method.grouped": tune.choice([0.0, 0.03, 0.1, 0.3]),
        "method.shrinkage": tune.choice([None, 0.1, 0.5, 1.0]),
    }
    if kinds:
        found["method.schedule"] = tune.choice(["constant", "linear", "cosine"])
        found["method.cyclic"] = tune.choice([0.0, 0.1, 1.0, 10.0])
    for kind in kinds:
        found[f"method.{kind}.weight"] = tune.loguniform(0.003, 1.0)
        found[f"method.{kind}.loss"] = tune.choice(["supcon", "simclr"])
    return found


SPACES: dict[str, dict[str, SearchSpace]] = {
    "multicse": {
        "wide": space("image"),
        "audio": space("audio"),
        "images-audio": space("image", "audio"),
        "text": space(),
        "synonyms": {**space(), "method.antonyms": tune.choice([True, False])},
    }
}
