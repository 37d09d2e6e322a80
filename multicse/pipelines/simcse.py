"""SimCSE (EMNLP 2021), unsupervised and supervised: the baseline of all tables."""

from __future__ import annotations

if not __package__ and __name__ != "__mp_main__":  # run as a file
    import _clone  # noqa: F401

from multicse.commands.cli import main
from multicse.pipelines import parts
from multicse.trainers.recipe import OptimConfig, Recipe
from multicse.trainers.simcse import MixedSimCSEConfig, SimCSEConfig

RELEASED = {"evaluation.choose_untrained": False}
"""The first evaluation of the released script is after 125 steps."""
ROBERTA_BASE = {"encoder": parts.ROBERTA_BASE, "streams.text.batch_size": 512, "optim.text.lr": 1e-5}
SUPERVISED = {
    "encoder.pooling": "pooler",
    "method.supervised": True,
    "streams.text": parts.nli(512),
    "optim.text.lr": 5e-5,
    "run.epochs": 3,
}
ROWS: parts.Rows = {
    "roberta-base": ("RoBERTa-base, unsupervised: 512, lr 1e-5.", ROBERTA_BASE),
    "roberta-large": (
        "RoBERTa-large, unsupervised: 512, lr 3e-5.",
        {**ROBERTA_BASE, "encoder": parts.ROBERTA_LARGE, "optim.text.lr": 3e-5},
    ),
    "supervised-bert-base": (
        "BERT-base on NLI triples: 3 epochs, batch 512, lr 5e-5; the export contains the head.",
        SUPERVISED,
    ),
}


def bert_base() -> Recipe:
    """Train BERT-base, unsupervised: one epoch of one million sentences, batch 64, lr 3e-5."""
    return parts.text_bert_base("simcse", SimCSEConfig())


def mixed() -> Recipe:
    """Train BERT-base on NLI triples and Wikipedia sentences together (no paper): 3 epochs of NLI, batch 256 + 256."""
    return Recipe(
        name="simcse/mixed",
        method=MixedSimCSEConfig(),
        encoder=parts.BERT_BASE.model_copy(update={"pooling": "pooler"}),
        streams={"nli": parts.nli(256), "text": parts.wiki(256)},
        optim={"nli+text": OptimConfig(lr=5e-5)},
        lead="nli",
        evaluation=parts.STS,
        run=parts.paper_run("simcse/mixed", epochs=3),
    )


def demo() -> Recipe:
    """Train in minutes on a laptop, offline: Wikipedia sentences, this project's small encoder."""
    return parts.text_demo("simcse", parts.SMALL_TEXT)


smoke = parts.smoke_of(demo)

RECIPES = {
    "demo": demo,
    "smoke": smoke,
    "bert-base": bert_base,
    **parts.rows(bert_base, ROWS),
    "mixed": mixed,
}

if __name__ == "__main__":
    main(RECIPES, __doc__)
