"""SimCSE++ (EMNLP 2023): SimCSE with negatives without dropout noise, and a contrast of dimensions."""

from __future__ import annotations

import sys
from pathlib import Path

if not __package__:  # run as a file: this clone comes first, not an installed copy
    sys.path[0] = str(Path(__file__).resolve().parents[1])

from multicse.pipelines import parts
from multicse.pipelines.cli import main
from multicse.trainers.recipe import Recipe
from multicse.trainers.simcsepp import SimCSEPPConfig

ROWS: parts.Rows = {
    "bert-base-plain-negatives": (
        "BERT-base, negatives without dropout only, with the positive's cosine multiplied by 0.9.",
        {"method.dimension_weight": 0.0, "method.positive_scale": 0.9},
    ),
    "bert-base-dimensions": ("BERT-base, contrast of dimensions only.", {"method.negatives": "dropout"}),
}


def bert_base() -> Recipe:
    """Train BERT-base with both parts: one epoch of one million sentences, batch 64, lr 3e-5."""
    return parts.text_bert_base("simcsepp", SimCSEPPConfig())


def demo() -> Recipe:
    """Train in minutes on a laptop, offline: Wikipedia sentences, this project's small encoder."""
    return parts.text_demo("simcsepp", SimCSEPPConfig(head="none", temperature=0.2))


smoke = parts.smoke_of(demo)

RECIPES = {
    "demo": demo,
    "smoke": smoke,
    "bert-base": bert_base,
    **parts.rows(bert_base, ROWS),
}

if __name__ == "__main__":
    main(RECIPES, __doc__)
