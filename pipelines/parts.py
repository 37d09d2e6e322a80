"""Parts that recipes share: encoders, streams, evaluations, run settings."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from data.streams.audio import AudioStream
from data.streams.image import ImageStream
from data.streams.inputs import AudioInput, ImageInput
from data.streams.pairs import AudioTextStream, ImageTextStream
from data.streams.text import TextStream
from pipelines.cli import OFFLINE
from trainers.recipe import EncoderConfig, EvaluationConfig, OptimConfig, Recipe, RunConfig
from trainers.simcse import SimCSEConfig

SMALL_ENCODER = str(Path(__file__).resolve().parents[1] / "models" / "small-bert-en")
"""The encoder that this project pretrained itself (`pipelines/pretrain.py`)."""

BERT_BASE = EncoderConfig(path="google-bert/bert-base-uncased", pooling="cls_before_pooler")
ROBERTA_BASE = EncoderConfig(path="FacebookAI/roberta-base", pooling="cls_before_pooler")
ROBERTA_LARGE = EncoderConfig(path="FacebookAI/roberta-large", pooling="cls_before_pooler")
SMALL = EncoderConfig(path=SMALL_ENCODER, pooling="mean")

SMALL_TEXT = SimCSEConfig(head="none", temperature=0.2)
SMALL_OPTIM = OptimConfig(lr=5e-4, warmup=0.1)

STS = EvaluationConfig(
    data="SentEval/data/downstream",
    select="stsb-dev",
    watch=("sickr-dev", "stsb-dev-geometry"),
    final=("sts12", "sts13", "sts14", "sts15", "sts16", "stsb-test", "sickr"),
    every=125,
)


def wiki(batch_size: int) -> TextStream:
    """A million sentences of English Wikipedia, one a line, packed as ``shards/wiki1m``."""
    return TextStream(shards="shards/wiki1m", batch_size=batch_size)


def nli(batch_size: int) -> TextStream:
    """Premise, entailment, contradiction (275,601 triples), packed as ``shards/nli``."""
    return TextStream(shards="shards/nli", batch_size=batch_size, columns=("sent0", "sent1", "hard_neg"))


def imagenet60(batch_size: int) -> ImageStream:
    """60 classes x 500 images of ImageNet, packed as ``shards/imagenet60``."""
    return ImageStream(shards="shards/imagenet60", batch_size=batch_size)


def librispeech50(batch_size: int) -> AudioStream:
    """The 50 speakers of LibriSpeech train-clean-100 with the most utterances, packed as ``shards/librispeech50``."""
    return AudioStream(shards="shards/librispeech50", batch_size=batch_size)


def paper_run(name: str) -> RunConfig:
    """One GPU, mixed precision; checkpoints every 1,000 steps."""
    return RunConfig(output=f"runs/{name}", precision="fp16", gpus_per_worker=1, checkpoint_every=1000)


CYCLIC = {"i_cyclic": 0.25, "c_cyclic": 0.25}
"""Weights of the two cyclic losses (Zhao et al. 2023; CyCLIP's own)."""


def losses(weights: Mapping[str, float]) -> str:
    """``{"captions": 0.1}`` as "contrastive + 0.1 captions"."""
    return " + ".join(["contrastive", *(f"{weight} {name}" for name, weight in weights.items())])


def changed(recipe: Recipe, changes: Mapping[str, Any] | None) -> Recipe:
    """The recipe with the fields at dotted paths changed, in their order. Raises RecipeError as `Recipe.replace` does."""
    for path, value in (changes or {}).items():
        recipe = recipe.replace(path, value)
    return recipe


def with_encoder(
    recipe: Recipe, row: str, encoder: EncoderConfig, text: tuple[int, float], other: float, weight: float
) -> Recipe:
    """The recipe's row for another encoder: text (batch, rate), rate and weight of the images or sounds."""
    (stream,) = (name for name in recipe.streams if name != "text")
    batch, lr = text
    changes = {
        "name": f"{recipe.paper}/{row}",
        "encoder": encoder.model_dump(),
        "streams.text.batch_size": batch,
        "optim.text.lr": lr,
        f"optim.{stream}.lr": other,
        f"method.{stream}.weight": weight,
        "run.output": f"runs/{recipe.paper}/{row}",
    }
    return changed(recipe, changes)


def supervised(recipe: Recipe, stream: str) -> Recipe:
    """The released script of the supervised row: text 128 at 3e-5, the other at 1e-7 with weight 100 and temperature .05."""
    changes = {
        "name": f"{recipe.paper}/supervised-bert-base",
        "encoder.pooling": "cls",
        "method.text.supervised": True,
        "streams.text": nli(128).model_dump(),
        "optim.text.lr": 3e-5,
        f"optim.{stream}.lr": 1e-7,
        f"method.{stream}.weight": 100.0,
        f"method.{stream}.temperature": 0.05,
        "run.epochs": 3,
        "run.output": f"runs/{recipe.paper}/supervised-bert-base",
    }
    return changed(recipe, changes)


# ---------------------------------------------------------------- offline: demo and smoke


def offline_text(batch_size: int) -> TextStream:
    """Sentences of the Wikipedia excerpt that gensim brings along."""
    return TextStream(shards=f"{OFFLINE}/text", batch_size=batch_size)


def offline_images(batch_size: int) -> ImageStream:
    """Handwritten digits of scikit-learn, at 32 pixels. Digits have no colour and a left and a right."""
    return ImageStream(
        shards=f"{OFFLINE}/image",
        batch_size=batch_size,
        size=32,
        flip=0.0,
        jitter=(0.4, 0.4, 0.0, 0.0),
        grayscale_probability=0,
    )


def offline_sounds(batch_size: int) -> AudioStream:
    """Synthesised sounds of our own: 1 s at 8 kHz."""
    return AudioStream(shards=f"{OFFLINE}/audio", batch_size=batch_size, rate=8000, bins=32, frames=96)


OFFLINE_SOUND = AudioInput(rate=8000, seconds=1.0, bins=32, n_fft=256, hop=80, low_hz=50.0, high_hz=4000.0)
"""What towers take of the synthesised sounds: 101 frames of 32 bins."""


def offline_emoji(batch_size: int, size: int = 64) -> ImageTextStream:
    """Named pictures of OpenMoji's font (extra `demo`)."""
    return ImageTextStream(shards=f"{OFFLINE}/emoji-train", batch_size=batch_size, input=ImageInput(size=size))


def offline_captioned_sounds(batch_size: int) -> AudioTextStream:
    """Synthesised sounds of our own with captions that say what is heard: 1 s at 8 kHz."""
    return AudioTextStream(shards=f"{OFFLINE}/sounds-train", batch_size=batch_size, input=OFFLINE_SOUND)


def offline_evaluation(every: int) -> EvaluationConfig:
    """Chosen on 20 documents of the Lee corpus, reported on the other 30."""
    return EvaluationConfig(select="lee-dev", watch=("lee-dev-geometry",), final=("lee", "lee-all"), every=every)


def small_run(output: str, max_steps: int) -> RunConfig:
    """One CPU worker."""
    return RunConfig(output=output, max_steps=max_steps, epochs=100, seed=1)


def smoke(recipe: Recipe, paper: str) -> Recipe:
    """Eight steps of the demo with small batches."""
    changes = {
        "name": f"{paper}/smoke",
        "run.output": f"runs/{paper}/smoke",
        "run.max_steps": 8,
        "run.log_every": 2,
        "evaluation.every": 4,
        **{f"streams.{name}.batch_size": 16 for name in recipe.streams},
    }
    return changed(recipe, changes)
