"""The main claim of each paper, and of MultiCSE: five seeds, one budget of compute, settings chosen alike, a verdict.

For every trained row the same few learning rates are tried on the development task. Steps are counted so that all rows of a
table cost as much as the plain contrast of text does in `STEPS` (CLIP's: as CLIP; GCLSR's: as GCLSR).
"""

from __future__ import annotations

from typing import Any

from multicse.pipelines import multicse, nonlingcse, parts, sgbert
from multicse.reproduction.tables import small
from multicse.reproduction.tables.offline import Offline
from multicse.trainers.multicse import MultiCSEConfig
from multicse.trainers.nonling import NonLingSettings
from multicse.trainers.recipe import Recipe
from multicse.trainers.sgbert import SGBERTConfig
from multicse.trainers.simcsepp import SimCSEPPConfig
from multicse.trainers.uml import UMLConfig

STEPS = 200
"""Of the plain contrast at the small scale."""
EVALUATIONS = 6
"""Of a run."""
CAPTION = 16
"""Tokens of one, about; SimCSE on captions reads them twice."""


def mini(recipe: Recipe, offline: Offline) -> Recipe:
    """The row on the small encoder and the data at hand, at equal compute."""
    if recipe.paper == "cyclip":
        own = small.clip(recipe, offline)
        method: Any = own.method
        items = (method.tower.input.size // method.tower.patch_size) ** 2
        share = (CAPTION + items) / (2 * CAPTION + items) if method.captions else 1.0
        return own.replace("run.max_steps", round((own.run.max_steps or 0) * share))
    if recipe.paper == "mocoutrl":
        own = small.row("mocoutrl", recipe, offline)
        return own.changed(length(STEPS))
    if recipe.paper == "gclsr":  # without augmentation one view serves as both
        own = small.gclsr(recipe, offline)
        steps = STEPS if own.flat()["method.augmentation"] == "none" else STEPS // 2
        more = {"encoder.vectors": offline.vectors(None, 300, 20)} | length(steps)
        return own.changed({"streams.text.shards": offline.wikipedia(), "streams.text.batch_size": 256} | more)
    if recipe.paper == "multicse":
        base = small.nonlingcse(nonlingcse.bert_base(), offline)
        own = multicse.composed(base, recipe.name.partition("/bert-base-")[2], "small")
        own = own.changed({"name": "multicse/mini", "export": recipe.export})
    elif recipe.streams["text"].shards == "shards/stsb-sentences":
        own = small.row("sgbert", recipe if recipe.paper == "sgbert" else sgbert.bert_base(), offline)
        if recipe.paper == "simcse":
            own = own.changed({"name": "simcse/mini", "method": parts.SMALL_TEXT})
    else:
        own = small.nonlingcse(recipe, offline)
    steps = round(STEPS * share_of_contrast(own))
    return own.changed(length(steps))


def length(steps: int) -> dict[str, int]:
    """What a run of so many steps sets."""
    return {"run.max_steps": steps, "run.epochs": 1000, "evaluation.eval_steps": steps // EVALUATIONS}


def share_of_contrast(recipe: Recipe) -> float:
    """What two passes over the texts cost, forward and back, in all that a step of the recipe costs; counted in tokens.

    A backward costs two forwards (Kaplan et al. 2020), and all positions as much as the longest text may have.
    """
    text: Any = recipe.streams["text"]
    method, tokens = recipe.method, text.batch_size * text.max_length
    guided = isinstance(method, MultiCSEConfig) and method.guidance > 0
    plain = isinstance(method, SimCSEPPConfig) and method.negatives == "plain"
    passes = 3 + 1 if isinstance(method, SGBERTConfig) else 3 * (max(2, text.n_texts) + plain) + guided
    cost = passes * tokens
    if isinstance(method, NonLingSettings):
        for name, config in method.nonling.items():
            cost += 6 * recipe.streams[name].batch_size * config.tokens(method.variant)
    if isinstance(method, UMLConfig):
        image: Any = recipe.streams["image"]
        cost += 3 * image.n_views * image.batch_size * (method.image.patches + 1)
    return 6 * tokens / cost
