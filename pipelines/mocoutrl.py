"""MoCoUTRL (Connection Science 2023): one word replaced by a synonym and by an antonym, and a slow dictionary of words."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

from data.streams.triplets import TripletTextStream
from pipelines import parts
from pipelines.cli import OFFLINE, main
from trainers.mocoutrl import MoCoUTRLConfig
from trainers.recipe import EncoderConfig, OptimConfig, Recipe

ENCODERS = {
    "deberta-base": "microsoft/deberta-base",
    "roberta-base": "FacebookAI/roberta-base",
    "bert-base": "google-bert/bert-base-uncased",
}
SHARDS = "shards/bookcorpus"
WOS = ("wos/wos7.tsv", "wos/wos134.tsv")
"""Web of Science with the 7 classes of the paper and with all 134; how to make them: `classification.py`."""

LOSSES: dict[str, dict[str, Any]] = {  # Table 3: what each row changes of both losses with the perturbation
    "both": {},
    "both-plain": {"method.perturbation": False},
    "long": {"method.balance": 1.0},
    "token": {"method.balance": 0.0},
    "token-plain": {"method.balance": 0.0, "method.perturbation": False},
}
"""The long-span loss alone has no target that could be perturbed."""


def paper() -> Recipe:
    """The paper's settings, repaired: DeBERTa-base, BookCorpus, 32 at 1e-6, one pass."""
    return Recipe(
        name="mocoutrl/paper",
        method=MoCoUTRLConfig(),
        encoder=EncoderConfig(path=ENCODERS["deberta-base"], pooling="mean"),
        streams={"text": TripletTextStream(shards=SHARDS, batch_size=32, max_length=200)},
        optim={"text": OptimConfig(lr=1e-6, schedule="cosine")},
        evaluation=parts.STS.model_copy(update={"every": 1000}),
        run=parts.paper_run("mocoutrl/paper"),
    )


def printed() -> Recipe:
    """The formulas as printed: equation 6 without its positive below, a token loss without a bound."""
    return _with("printed", {"method.variant": "paper"})


def released() -> Recipe:
    """As the released code runs, its selection aside: adjectives, no projectors, padding in the mean, 8 at 1e-6."""
    changes = {
        "method.variant": "released",
        "streams.text.choose": "adjective",
        "streams.text.batch_size": 8,
        "streams.text.shuffle": False,
        "optim.text.schedule": "constant",
        "optim.text.clip": None,
        "run.precision": "fp32",
        "run.epochs": 5,
    }
    return _with("released", changes)


def wos() -> Recipe:
    """Table 2: accuracy, macro precision, recall and F1 on Web of Science, of the paper's classifier on frozen vectors."""
    return _with(
        "wos", {"evaluation.final": (*(f"classify:{file}?head=three-layers" for file in WOS), f"geometry:{WOS[0]}")}
    )


def demo() -> Recipe:
    """Minutes on a laptop, offline: sentences of Wikipedia, this project's encoder and its own table of 200 words."""
    return Recipe(
        name="mocoutrl/demo",
        method=MoCoUTRLConfig(),
        encoder=parts.SMALL,
        streams={"text": TripletTextStream(shards=f"{OFFLINE}/text", batch_size=32, lexicon="small")},
        optim={"text": OptimConfig(lr=5e-4, warmup=0.1, schedule="cosine")},
        evaluation=parts.offline_evaluation(every=25),
        run=parts.small_run("runs/mocoutrl/demo", max_steps=150),
    )


def smoke() -> Recipe:
    """Eight steps: what tests run."""
    return parts.smoke(demo(), "mocoutrl")


def _with(name: str, changes: dict[str, Any]) -> Recipe:
    named = {"name": f"mocoutrl/{name}", "run.output": f"runs/mocoutrl/{name}"}
    return parts.changed(paper(), {**named, **changes})


def _row(encoder: str, losses: str) -> Recipe:
    return _with(f"{encoder}-{losses}", {"encoder.path": ENCODERS[encoder], **LOSSES[losses]})


def _described(make: partial[Recipe], text: str) -> Callable[[], Recipe]:
    make.__doc__ = text
    return make


TITLES = {
    "both": "both losses, with the perturbation",
    "both-plain": "both losses, without the perturbation",
    "long": "the long-span loss alone",
    "token": "the token loss alone, with the perturbation",
    "token-plain": "the token loss alone, without the perturbation",
}
TABLE_3: dict[str, Callable[[], Recipe]] = {
    f"{encoder}-{row}": _described(partial(_row, encoder, row), f"Table 3: {path}, {TITLES[row]}.")
    for encoder, path in ENCODERS.items()
    for row in LOSSES
    if (encoder, row) != ("deberta-base", "both")  # `paper`
}
RECIPES: dict[str, Callable[[], Recipe]] = {
    "demo": demo,
    "smoke": smoke,
    "paper": paper,
    "printed": printed,
    "released": released,
    **TABLE_3,
    "wos": wos,
}

if __name__ == "__main__":
    main(RECIPES, __doc__)
