"""SimCSE++ (EMNLP 2023): SimCSE with negatives without dropout noise, and a contrast of dimensions."""

from __future__ import annotations

import sys
from pathlib import Path

if not __package__:  # run as a file: this clone comes first, not an installed copy
    sys.path[0] = str(Path(__file__).resolve().parents[1])

from multicse.pipelines import parts
from multicse.pipelines.cli import main
from multicse.trainers.recipe import OptimConfig, Recipe
from multicse.trainers.simcsepp import SimCSEPPConfig


def bert_base() -> Recipe:
    """Train BERT-base with both parts: one epoch of one million sentences, batch 64, lr 3e-5."""
    return Recipe(
        name="simcsepp/bert-base",
        method=SimCSEPPConfig(),
        encoder=parts.BERT_BASE,
        streams={"text": parts.wiki(64)},
        optim={"text": OptimConfig(lr=3e-5)},
        evaluation=parts.STS,
        run=parts.paper_run("simcsepp/bert-base"),
    )


def demo() -> Recipe:
    """Train in minutes on a laptop, offline: Wikipedia sentences, this project's small encoder."""
    method, text = SimCSEPPConfig(head="none", temperature=0.2), parts.offline_text(64)
    return parts.demo("simcsepp", method, {"text": text}, {"text": parts.SMALL_OPTIM}, steps=200, every=50)


smoke = parts.smoke_of(demo)

RECIPES = {
    "demo": demo,
    "smoke": smoke,
    "bert-base": bert_base,
    "bert-base-plain-negatives": parts.row(
        bert_base,
        "bert-base-plain-negatives",
        {"method.dimension_weight": 0.0, "method.positive_scale": 0.9},
        "BERT-base, negatives without dropout only, with the positive's cosine multiplied by 0.9.",
    ),
    "bert-base-dimensions": parts.row(
        bert_base,
        "bert-base-dimensions",
        {"method.negatives": "dropout"},
        "BERT-base, contrast of dimensions only.",
    ),
}

if __name__ == "__main__":
    main(RECIPES, __doc__)
