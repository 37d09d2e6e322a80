"""Test the main claim of each paper, and of MultiCSE, with five seeds, equal compute and equal tuning for all rows.

All trained rows are tuned alike, see `protocol.py`. The number of steps is chosen so that each row of a table costs as much
as `STEPS` steps of SimCSE (for CLIP and GCLSR: of the plain method).
"""

from __future__ import annotations

from typing import Any

from transformers import AutoConfig

from multicse.pipelines import multicse, nonlingcse, parts, sgbert
from multicse.reproduction.tables import small
from multicse.reproduction.tables.offline import Offline
from multicse.trainers.multicse import MultiCSEConfig
from multicse.trainers.nonling import NonLingSettings
from multicse.trainers.recipe import Recipe
from multicse.trainers.sgbert import SGBERTConfig

STEPS = 200
"""Steps of SimCSE at the small scale."""
EVALUATIONS = 12
"""Evaluations per run that is not lengthened: enough that the best is neither the first nor the last."""
SOON = {"evaluation.eval_steps": 4, "evaluation.patience": 20}
"""Evaluations of MoCoUTRL, which is at its best after few steps and worse than the untrained encoder soon after."""
TUNED, TUNED_STEPS = "sentence-transformers/all-MiniLM-L6-v2", 24
"""Encoder that was tuned before, and the steps of SimCSE in tables about it: 24 take as long as 200 of the small encoder."""
PRETRAINED = "distilbert/distilbert-base-cased"
"""Encoder of the table that keeps the paper's settings."""
CAPTION = 16
"""Approximate number of tokens of a caption; SimCSE on captions encodes them twice."""


def mini(recipe: Recipe, offline: Offline) -> Recipe:
    """Return the recipe of a row at the small scale, with equal compute.

    Args:
        recipe: Recipe of the row at the paper's scale.
        offline: Local data.
    """
    if recipe.flat().get("encoder.path") == PRETRAINED:  # only the data is replaced
        own = recipe.changed(small.changes("evidence", recipe, offline))
        return own.changed({"name": f"{recipe.paper}/distilbert", "method.head_width": recipe.flat()["method.head_width"]})
    if recipe.flat().get("encoder.path") == TUNED:
        own = recipe.changed(small.changes("evidence", recipe, offline))
        return own.changed(length(round(TUNED_STEPS * share_of_contrast(own))))
    if recipe.paper == "cyclip":
        own = small.clip(recipe, offline)
        method: Any = own.method
        items = (method.tower.input.size // method.tower.patch_size) ** 2
        share = (CAPTION + items) / (2 * CAPTION + items) if method.captions else 1.0
        if (recipe.evaluation.select or "").startswith("contrastive:"):  # the paper's rule
            own = own.replace("evaluation.select", f"contrastive:{offline.shards}/emoji-val?batch=64")
        return own.changed(length(round((own.run.max_steps or 0) * share)))
    if recipe.paper == "mocoutrl":
        own = small.row("mocoutrl", recipe, offline)
        return own.changed(length(STEPS) | SOON)
    if recipe.paper == "gclsr":  # without augmentation one view serves as both
        own = small.gclsr(recipe, offline)
        steps = STEPS if own.flat()["method.augmentation"] == "none" else STEPS // 2
        more = {"encoder.vectors": offline.vectors(None, 300, 20)} | length(steps)
        return own.changed({"streams.text.shards": offline.wikipedia(), "streams.text.batch_size": 256} | more)
    if recipe.paper == "multicse":
        base = small.nonlingcse(nonlingcse.bert_base(), offline)
        own = multicse.composed(base, recipe.name.partition("/bert-base-")[2], "small")
        own = own.changed({"name": "multicse/mini", "export": recipe.export})
    elif recipe.streams["text"].shards.startswith("shards/stsb-"):
        own = small.row("sgbert", recipe if recipe.paper == "sgbert" else sgbert.bert_base(), offline)
        if recipe.paper == "simcse":
            own = own.changed({"name": "simcse/mini", "method": parts.SMALL_TEXT})
    else:
        own = small.nonlingcse(recipe, offline)
    steps = round(STEPS * share_of_contrast(own))
    return own.changed(length(steps))


def length(steps: int) -> dict[str, int]:
    """Return the settings of a run of `steps` steps."""
    return {"run.max_steps": steps, "run.epochs": 1000, "evaluation.eval_steps": round(steps / EVALUATIONS)}


def share_of_contrast(recipe: Recipe) -> float:
    """Return the cost of a SimCSE step on the same texts as a fraction of the cost of a step of the recipe, in tokens.

    A backward pass costs two forward passes (Kaplan et al. 2020). Every text is counted with the maximum length.
    """
    text: Any = recipe.streams["text"]
    method: Any = recipe.method
    tokens = text.batch_size * text.max_length
    guided = isinstance(method, MultiCSEConfig) and method.guidance > 0
    plain = method.name == "simcsepp" and method.negatives == "plain"
    passes: float = 3 + 1 if isinstance(method, SGBERTConfig) else 3 * (max(2, text.n_texts) + plain) + guided
    if method.name == "tsdae":  # an encoder of the words that are left, a decoder of all, a softmax over all pieces
        shape = AutoConfig.from_pretrained(recipe.flat()["encoder.path"])
        layers = shape.num_hidden_layers * (4 * shape.hidden_size + 2 * shape.intermediate_size)  # times the hidden size
        passes = 3 * ((1 - method.deletion) + 1 + shape.vocab_size / layers)
    cost = passes * tokens
    if isinstance(method, NonLingSettings):
        for name, config in method.nonling.items():
            cost += 6 * recipe.streams[name].batch_size * config.tokens(method.variant)
    if method.name == "uml":
        image: Any = recipe.streams["image"]
        cost += 3 * image.n_views * image.batch_size * method.image.tokens(method.variant)
    return 6 * tokens / cost
