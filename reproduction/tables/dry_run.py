"""What can be said of a row before its weights and its data are there, and before it is run: shapes, steps, memory."""

from __future__ import annotations

from functools import cache, partial
from pathlib import Path
from typing import Any, NamedTuple

import torch
from transformers import (
    AutoConfig,
    AutoModel,
    BertConfig,
    CLIPTextConfig,
    DebertaConfig,
    DistilBertConfig,
    PretrainedConfig,
    RobertaConfig,
    XLMRobertaConfig,
)

from multicse.data.errors import DataError
from multicse.data.streams.base import StreamConfig
from multicse.data.streams.text import TextStream
from multicse.models.config import EncoderConfig, WordEncoderConfig
from multicse.models.tower import TowerConfig
from multicse.trainers.engine.preflight import check_settings
from multicse.trainers.recipe import Recipe, RecipeError

LARGE: dict[str, Any] = {"hidden_size": 1024, "num_hidden_layers": 24, "num_attention_heads": 16, "intermediate_size": 4096}
ROBERTA: dict[str, Any] = {"vocab_size": 50265, "max_position_embeddings": 514, "type_vocab_size": 1}
MULTILINGUAL_ROBERTA: dict[str, Any] = {**ROBERTA, "vocab_size": 250002}
SHAPES: dict[str, partial[PretrainedConfig]] = {
    "google-bert/bert-base-uncased": partial(BertConfig),
    "google-bert/bert-base-cased": partial(BertConfig, vocab_size=28996),
    "google-bert/bert-large-uncased": partial(BertConfig, **LARGE),
    "google-bert/bert-base-multilingual-cased": partial(BertConfig, vocab_size=119547),
    "google-bert/bert-base-german-cased": partial(BertConfig, vocab_size=30000),
    "google-bert/bert-base-chinese": partial(BertConfig, vocab_size=21128),
    "dbmdz/bert-base-french-europeana-cased": partial(BertConfig, vocab_size=32000),
    "DeepPavlov/rubert-base-cased": partial(BertConfig, vocab_size=119547),
    "sentence-transformers/bert-base-nli-mean-tokens": partial(BertConfig),
    "sentence-transformers/bert-large-nli-mean-tokens": partial(BertConfig, **LARGE),
    "FacebookAI/roberta-base": partial(RobertaConfig, **ROBERTA),
    "FacebookAI/roberta-large": partial(RobertaConfig, **ROBERTA, **LARGE),
    "FacebookAI/xlm-roberta-base": partial(XLMRobertaConfig, **MULTILINGUAL_ROBERTA),
    "distilbert/distilbert-base-uncased": partial(DistilBertConfig),
    "microsoft/deberta-base": partial(DebertaConfig, vocab_size=50265, type_vocab_size=0, relative_attention=True),
    "openai/clip-vit-base-patch32": partial(CLIPTextConfig),
    "laion/CLIP-ViT-B-32-laion2B-s34B-b79K": partial(CLIPTextConfig),
}
"""Shapes of the published encoders that rows start from, by their names on the Hub."""

SAMPLES = {
    **dict.fromkeys(("wiki1m", "wiki1m-de", "wiki1m-zh", "wiki1m-fr", "wiki1m-ru"), 1_000_000),
    "bookcorpus": 74_000_000,
    "nli": 275_601,
    "stsb-sentences": 17_256,
    "wiki10k": 10_000,
    "wiki10k-translated": 10_000,
    "cc3m": 2_806_641,
    "clotho-train": 3_839,
    "audiocaps-train": 49_838,
    "musiccaps-train": 2_858,
}
"""Samples of the sets that rows are trained on, by the last part of their shards' names, where a paper says them."""

AdamW = 16
"""Bytes a parameter of fp32 weights, gradients and AdamW's two moments."""


class DryRun(NamedTuple):
    """What a row would take."""

    parameters: int | None
    """Of the encoder and the tower beside it; None: it is not known before its file is there (word vectors)."""
    steps: int | None
    """Optimizer steps; None: neither the recipe nor the paper says the number of samples."""
    gigabytes: float | None
    """At most, of the text turn with one worker: weights, gradients, moments, activations. None: texts are not all."""


def dry_run(recipe: Recipe) -> DryRun:
    """Check everything of a recipe that needs neither weights nor data; where these are there, sizes are theirs.

    Raises RecipeError, which names the setting, for settings that contradict each other or the encoder's shape, and for an
    encoder that is neither listed here nor a folder.
    """
    check_settings(recipe)
    encoder = recipe.encoder
    if isinstance(encoder, WordEncoderConfig):
        recipe.method.check(recipe, encoder)
        return DryRun(None, steps(recipe), None)
    assert isinstance(encoder, EncoderConfig)
    config = shape(encoder.path)
    tower: Any = getattr(recipe.method, "tower", None)
    if tower is not None:  # whose folder need not be there, nor the text encoder's with its projection
        recipe = recipe.replace("encoder.scratch", True)
    if getattr(tower, "path", None) is not None:
        recipe = recipe.replace("method.tower.path", None)
    if recipe.flat().get("method.image.path") == "auto":  # chosen by the encoder's width; no file is to be read
        recipe = recipe.replace("method.image.path", None)
    try:
        recipe.method.check(recipe, config)
    except ValueError as error:
        raise RecipeError(str(error)) from None
    parameters = count(encoder.path)
    if tower is not None:
        method: Any = recipe.method
        return DryRun(parameters + count_tower(method.tower, method.embed_dim), steps(recipe), None)
    return DryRun(parameters, steps(recipe), (parameters * AdamW + activations(recipe, config)) / 1e9)


@cache
def shape(path: str) -> PretrainedConfig:
    """Of a published encoder, or of the one in a folder. Raises RecipeError where it is neither."""
    if path in SHAPES:
        return SHAPES[path]()
    if not Path(path).is_dir():
        raise RecipeError(f"encoder.path={path!r} has no shape in reproduction/tables/dry_run.py; add its configuration")
    config: PretrainedConfig = AutoConfig.from_pretrained(path)
    return config


@cache
def count(path: str) -> int:
    """Parameters of an encoder."""
    with torch.device("meta"):  # nothing but shapes
        return sum(parameter.numel() for parameter in AutoModel.from_config(shape(path)).parameters())


@cache
def count_tower(tower: TowerConfig, embed_dim: int) -> int:
    """Parameters of a tower with fresh weights."""
    with torch.device("meta"):
        return sum(parameter.numel() for parameter in tower.build(embed_dim).parameters())


def steps(recipe: Recipe) -> int | None:
    """Steps of the run, where the shards, the recipe or the paper say how many samples there are."""
    known = samples(recipe.streams[recipe.lead])
    return recipe.run.max_steps if known is None else recipe.steps(known)


def samples(stream: StreamConfig) -> int | None:
    """Samples that a stream has."""
    try:
        return stream.open().samples
    except DataError:
        return stream.first or SAMPLES.get(stream.shards.rpartition("/")[2])


def activations(recipe: Recipe, config: PretrainedConfig) -> float:
    """Bytes that the text turn keeps for its backward, every text as long as it may be and read twice.

    A layer keeps 34 bytes a token and hidden unit, and 5 a token, head and attended token, in half precision (Korthikanti et
    al. 2022, eq. 1); twice that in single precision.
    """
    texts = [stream for stream in recipe.streams.values() if isinstance(stream, TextStream)]
    if not texts:
        return 0.0
    heads, layers, hidden = config.num_attention_heads, config.num_hidden_layers, config.hidden_size
    per_stream = (
        stream.batch_size
        * max(2, stream.n_texts)
        * stream.max_length
        * layers
        * (34 * hidden + 5 * heads * stream.max_length)
        for stream in texts
    )
    return max(per_stream) * (2 if recipe.run.precision == "fp32" else 1)
