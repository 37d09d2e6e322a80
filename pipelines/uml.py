"""UML (arXiv 2025): text and unpaired images alternate through the same layers, each with its own objective."""

from __future__ import annotations

import sys
from pathlib import Path

if not __package__:  # run as a file: this clone comes first, not an installed copy
    sys.path[0] = str(Path(__file__).resolve().parents[1])

from multicse.data.streams.image import ImageStream
from multicse.pipelines import parts
from multicse.pipelines.cli import main
from multicse.trainers.recipe import OptimConfig, Recipe
from multicse.trainers.uml import UMLConfig, UMLImageConfig

SUMMED = {"method.summed": True, "optim": {"image+text": OptimConfig(lr=3e-5)}}


def bert_base() -> Recipe:
    """Train BERT-base on one million sentences, batch 64, lr 3e-5, and images of 60 classes, batch 48, lr 1e-6."""
    return Recipe(
        name="uml/bert-base",
        method=UMLConfig(image=UMLImageConfig(path="auto")),
        encoder=parts.BERT_BASE,
        streams={
            "text": parts.wiki(64),
            "image": ImageStream(shards="shards/imagenet60", batch_size=48, n_views=1, label=None),
        },
        optim={"text": OptimConfig(lr=3e-5), "image": OptimConfig(lr=1e-6, schedule="cosine")},
        evaluation=parts.STS,
        run=parts.paper_run("uml/bert-base"),
    )


def demo() -> Recipe:
    """Train in minutes on a laptop, offline: Wikipedia sentences and scanned digits."""
    return parts.demo(
        "uml",
        UMLConfig(text=parts.SMALL_TEXT, image=UMLImageConfig(image_size=32, patch_size=8)),
        {"text": parts.offline_text(64), "image": parts.offline_digits(n_views=1, label=None)},
        {"text": parts.SMALL_OPTIM, "image": OptimConfig(lr=1.5e-5, schedule="cosine")},
        steps=200,
        every=50,
    )


smoke = parts.smoke_of(demo)

RECIPES = {
    "demo": demo,
    "smoke": smoke,
    "bert-base": bert_base,
    **parts.rows(bert_base, {"bert-base-summed": ("BERT-base with one update on the sum of both losses.", SUMMED)}),
}

if __name__ == "__main__":
    main(RECIPES, __doc__)
