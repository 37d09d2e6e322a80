"""MoCoUTRL (Connection Science 2023): one word replaced by a synonym and an antonym, a momentum dictionary."""

from __future__ import annotations

if not __package__ and __name__ != "__mp_main__":  # run as a file
    import _clone  # noqa: F401

from multicse.commands.cli import main
from multicse.data.offline import OFFLINE
from multicse.data.streams.triplets import TripletTextStream
from multicse.pipelines import parts
from multicse.trainers.mocoutrl import MoCoUTRLConfig
from multicse.trainers.recipe import EncoderConfig, OptimConfig, Recipe

PRINTED = {"method.variant": "paper"}
RELEASED = {
    "method.variant": "released",
    "encoder.hidden_dropout": 0.0,
    "encoder.attention_dropout": 0.0,
    "streams.text.choose": "adjective",
    "streams.text.antonym": "any",
    "streams.text.words": (25, 500),
    "streams.text.max_skipped_share": 0.99,
    "streams.text.batch_size": 8,
    "streams.text.shuffle": False,
    "optim.text.schedule": "constant",
    "optim.text.max_grad_norm": None,
    "run.precision": "fp32",
    "run.epochs": 5,
}


def deberta_base() -> Recipe:
    """Train with the paper's settings, repaired: DeBERTa-base, BookCorpus, batch 32, lr 1e-6, one epoch."""
    return Recipe(
        name="mocoutrl/deberta-base",
        method=MoCoUTRLConfig(),
        encoder=EncoderConfig(path="microsoft/deberta-base", pooling="mean"),
        streams={"text": TripletTextStream(shards="shards/bookcorpus", batch_size=32, max_length=200)},
        optim={"text": OptimConfig(lr=1e-6, schedule="cosine")},
        evaluation=parts.STS.model_copy(update={"eval_steps": 1000}),
        run=parts.paper_run("mocoutrl/deberta-base"),
    )


def demo() -> Recipe:
    """Train in minutes on a laptop, offline: Wikipedia sentences, this project's small encoder and table of 200 words."""
    return parts.demo(
        "mocoutrl",
        MoCoUTRLConfig(),
        {"text": TripletTextStream(shards=f"{OFFLINE}/text", batch_size=32, lexicon="small")},
        {"text": OptimConfig(lr=5e-4, warmup=0.1, schedule="cosine")},
        steps=150,
        every=25,
    )


smoke = parts.smoke_of(demo)

ROWS: parts.Rows = {
    "roberta-base": ("Table 3: deberta-base with RoBERTa-base.", {"encoder.path": parts.ROBERTA_BASE.path}),
    "bert-base": ("Table 3, with BERT-base.", {"encoder.path": parts.BERT_BASE.path}),
    "paper": ("As printed: equation 6 without the positive in its denominator, and an unbounded token loss.", PRINTED),
    "released": (
        "As released, except for checkpoint selection: adjectives of long sentences, no projectors or dropout, batch 8.",
        RELEASED,
    ),
}
RECIPES = {"demo": demo, "smoke": smoke, "deberta-base": deberta_base, **parts.rows(deberta_base, ROWS)}

if __name__ == "__main__":
    main(RECIPES, __doc__)
