"""NonLing-CSE (NeurIPS 2022): SimCSE on text, alternating with contrastive losses on unpaired images and audio."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

if not __package__ and __name__ != "__mp_main__":  # run as a file
    import _clone  # noqa: F401

from multicse.commands.cli import main
from multicse.data.offline import OFFLINE
from multicse.data.streams.audio import AudioStream
from multicse.data.streams.base import StreamConfig
from multicse.data.streams.image import ImageStream
from multicse.pipelines import parts
from multicse.trainers.method import Variant
from multicse.trainers.nonling import (
    AudioConfig,
    AudioCSEConfig,
    ImageConfig,
    NonLingCSEConfig,
    NonLingSettings,
    VisualCSEConfig,
)
from multicse.trainers.recipe import EncoderConfig, OptimConfig, Recipe
from multicse.trainers.simcse import SimCSEConfig


class Row(NamedTuple):
    """Settings of a row of the paper's tables. The batch size of images and audio is 48 in all rows."""

    encoder: EncoderConfig
    text: tuple[int, float]
    """Batch size and learning rate."""
    image: tuple[float, float]
    """Learning rate and weight of the loss."""
    audio: tuple[float, float]
    """Learning rate and weight of the loss."""
    supervised: bool = False
    released_image_rate: float | None = None
    """Learning rate of images in the released scripts, if it differs from the paper [errata 2.7]."""


CLS = parts.BERT_BASE.model_copy(update={"pooling": "pooler"})
ROWS = {  # batch sizes, learning rates: Table C.1; weights: released scripts, for RoBERTa-large those for RoBERTa-base
    "bert-base": Row(parts.BERT_BASE, text=(64, 3e-5), image=(1e-6, 0.05), audio=(2e-7, 0.01)),
    "roberta-base": Row(
        parts.ROBERTA_BASE, text=(128, 2e-5), image=(5e-7, 0.2), audio=(2e-7, 0.02), released_image_rate=1e-7
    ),
    "roberta-large": Row(parts.ROBERTA_LARGE, text=(256, 1e-5), image=(5e-7, 0.2), audio=(5e-6, 0.02)),
    # All from the released script; the paper does not report settings.
    "supervised-bert-base": Row(CLS, text=(128, 3e-5), image=(1e-7, 100.0), audio=(1e-7, 100.0), supervised=True),
}
PAPERS: dict[str, tuple[type[NonLingSettings], tuple[str, ...]]] = {
    "visualcse": (VisualCSEConfig, ("image",)),
    "audiocse": (AudioCSEConfig, ("audio",)),
    "nonlingcse": (NonLingCSEConfig, ("audio", "image")),
}
"""Configuration of each method, and its streams in addition to the text."""

RELEASED_AUDIO = {"mixup_probability": 0.5, "mask_bins": 48, "mask_frames": 192}


def _changes(recipe: Recipe, variant: Variant) -> dict[str, Any]:
    """Return the changes that make a repaired recipe another variant."""
    changes: dict[str, Any] = {"method.variant": variant}
    if variant == "paper":  # section 3.3: always 0.07; the supervised script uses 0.05
        changes |= {f"method.{kind}.temperature": 0.07 for kind in recipe.streams if kind != "text"}
    if variant == "released":
        changes["evaluation.choose_untrained"] = False
        if "audio" in recipe.streams:  # [errata 2.9]
            changes |= {f"streams.audio.{setting}": value for setting, value in RELEASED_AUDIO.items()}
    return changes


HOW: dict[Variant, tuple[str, str]] = {
    "fixed": ("", ""),
    "paper": ("-paper", "As printed. "),
    "released": ("-released", "As released. "),
}
"""Suffix of the recipe's name and prefix of its help, by variant."""


def _row(paper: str, name: str, variant: Variant = "fixed") -> Recipe:
    """Return the recipe of one of `ROWS` for one of `PAPERS`."""
    config, kinds = PAPERS[paper]
    row = ROWS[name]
    temperature = 0.05 if row.supervised else 0.07
    settings = {
        "image": ImageConfig(weight=row.image[1], temperature=temperature, path="auto"),
        "audio": AudioConfig(weight=row.audio[1], temperature=temperature),
    }
    streams: dict[str, StreamConfig] = {
        "image": ImageStream(shards="shards/imagenet60", batch_size=48),
        "audio": AudioStream(shards="shards/librispeech50", batch_size=48),
    }
    rates = {"image": row.image[0], "audio": row.audio[0]}
    if variant == "released":
        rates["image"] = row.released_image_rate or rates["image"]
    batch, lr = row.text
    full_name = f"{paper}/{name}{HOW[variant][0]}"
    recipe = Recipe(
        name=full_name,
        method=config(text=SimCSEConfig(supervised=row.supervised), **{kind: settings[kind] for kind in kinds}),
        encoder=row.encoder,
        streams={
            "text": parts.nli(batch) if row.supervised else parts.wiki(batch),
            **{kind: streams[kind] for kind in kinds},
        },
        optim={"text": OptimConfig(lr=lr), **{kind: OptimConfig(lr=rates[kind], schedule="cosine") for kind in kinds}},
        evaluation=parts.STS,
        run=parts.paper_run(full_name, epochs=3 if row.supervised else 1),
    )
    return recipe.changed(_changes(recipe, variant))


def rows(paper: str, table: str) -> dict[str, Callable[[], Recipe]]:
    """Return the recipes of all `ROWS` in every variant.

    Args:
        paper: ``visualcse`` or ``audiocse``.
        table: Table of the unsupervised results, for the help.
    """
    made: dict[str, Callable[[], Recipe]] = {}
    for name, settings in ROWS.items():
        batch, lr = settings.text
        where = "Table 6, NLI triples" if settings.supervised else table
        for variant, (ending, how) in HOW.items():
            make = partial(_row, paper, name, variant)
            make.__doc__ = f"{how}{where}: {settings.encoder.path}, text batch {batch}, lr {lr}."
            made[f"{name}{ending}"] = make
    return made


def offline(paper: str) -> Recipe:
    """Return the demo of one of `PAPERS`: Wikipedia sentences, scanned digits, synthesised audio."""
    config, kinds = PAPERS[paper]
    settings = {
        "image": ImageConfig(weight=1.0, image_size=32, patch_size=8),
        "audio": AudioConfig(weight=1.0, frames=96, bins=32, mean=-8.0, std=4.0),
    }
    streams: dict[str, StreamConfig] = {
        "image": parts.offline_digits(),
        "audio": AudioStream(shards=f"{OFFLINE}/audio", batch_size=48, rate=8000, bins=32, frames=96),
    }
    rates = {"image": 1.5e-5, "audio": 3.5e-6}
    return parts.demo(
        paper,
        config(text=parts.SMALL_TEXT, **{kind: settings[kind] for kind in kinds}),
        streams={"text": parts.offline_text(64), **{kind: streams[kind] for kind in kinds}},
        optim={
            "text": parts.SMALL_OPTIM,
            **{kind: OptimConfig(lr=rates[kind], schedule="cosine") for kind in kinds},
        },
        steps=200,
        every=50,
    )


def bert_base() -> Recipe:
    """Train BERT-base with the learning rates and loss weights of Tables 1 and 2."""
    return _row("nonlingcse", "bert-base")


def demo() -> Recipe:
    """Train in minutes on a laptop, offline: Wikipedia sentences, scanned digits, synthesised audio."""
    return offline("nonlingcse")


smoke = parts.smoke_of(demo)

RECIPES = {"demo": demo, "smoke": smoke, "bert-base": bert_base}

if __name__ == "__main__":
    main(RECIPES, __doc__)
