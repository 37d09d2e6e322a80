"""SimCSE (EMNLP 2021), unsupervised and supervised: the baseline of all tables."""

from __future__ import annotations

import sys
from pathlib import Path

if not __package__:  # run as a file: this clone comes first, not an installed copy
    sys.path[0] = str(Path(__file__).resolve().parents[1])

from multicse.pipelines import parts
from multicse.pipelines.cli import main
from multicse.trainers.recipe import OptimConfig, Recipe
from multicse.trainers.simcse import MixedSimCSEConfig, SimCSEConfig

RELEASED = {"evaluation.choose_untrained": False}
"""The first evaluation of the released script is after 125 steps."""
ROBERTA_BASE = {"encoder": parts.ROBERTA_BASE, "streams.text.batch_size": 512, "optim.text.lr": 1e-5}
ROBERTA_LARGE = {"encoder": parts.ROBERTA_LARGE, "streams.text.batch_size": 512, "optim.text.lr": 3e-5}
SUPERVISED = {
    "encoder.pooling": "cls",
    "method.supervised": True,
    "streams.text": parts.nli(512),
    "optim.text.lr": 5e-5,
    "run.epochs": 3,
}


def bert_base() -> Recipe:
    """Train BERT-base, unsupervised: one epoch of one million sentences, batch 64, lr 3e-5."""
    return Recipe(
        name="simcse/bert-base",
        method=SimCSEConfig(),
        encoder=parts.BERT_BASE,
        streams={"text": parts.wiki(64)},
        optim={"text": OptimConfig(lr=3e-5)},
        evaluation=parts.STS,
        run=parts.paper_run("simcse/bert-base"),
    )


def mixed() -> Recipe:
    """Train BERT-base on NLI triples and Wikipedia sentences together (no paper): 3 epochs of NLI, batch 256 + 256."""
    return Recipe(
        name="simcse/mixed",
        method=MixedSimCSEConfig(),
        encoder=parts.BERT_BASE.model_copy(update={"pooling": "cls"}),
        streams={"nli": parts.nli(256), "text": parts.wiki(256)},
        optim={"nli+text": OptimConfig(lr=5e-5)},
        lead="nli",
        evaluation=parts.STS,
        run=parts.paper_run("simcse/mixed", epochs=3),
    )


def demo() -> Recipe:
    """Train in minutes on a laptop, offline: Wikipedia sentences, this project's small encoder."""
    text = parts.offline_text(64)
    return parts.demo("simcse", parts.SMALL_TEXT, {"text": text}, {"text": parts.SMALL_OPTIM}, steps=200, every=50)


smoke = parts.smoke_of(demo)

RECIPES = {
    "demo": demo,
    "smoke": smoke,
    "bert-base": bert_base,
    "roberta-base": parts.row(bert_base, "roberta-base", ROBERTA_BASE, "RoBERTa-base, unsupervised: 512, lr 1e-5."),
    "roberta-large": parts.row(bert_base, "roberta-large", ROBERTA_LARGE, "RoBERTa-large, unsupervised: 512, lr 3e-5."),
    "supervised-bert-base": parts.row(
        bert_base,
        "supervised-bert-base",
        SUPERVISED,
        "BERT-base on NLI triples: 3 epochs, batch 512, lr 5e-5; the export contains the head.",
    ),
    "mixed": mixed,
}

if __name__ == "__main__":
    main(RECIPES, __doc__)
