"""Pretrain a small BERT and its WordPiece tokenizer on your own text (masked language model): for a language without one."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

if not __package__:  # run as a file: this clone comes first, not an installed copy
    sys.path[0] = str(Path(__file__).resolve().parents[1])

from data.shards import BadSample, ShardSet, read
from data.streams.decode import text
from models.fresh_bert import FreshEncoder, make_encoder
from pipelines import parts
from pipelines.cli import main
from trainers.pretrain import MaskedLMConfig
from trainers.recipe import EncoderConfig, EvaluationConfig, OptimConfig, Recipe, RunConfig


def small() -> Recipe:
    """A 2-layer BERT of 192 dimensions with 8,000 word pieces; give --streams.text.shards and perhaps word vectors."""
    return Recipe(
        name="pretrain/small",
        method=MaskedLMConfig(fresh=FreshEncoder(layers=2)),
        encoder=EncoderConfig(path="runs/pretrain/start", pooling="mean"),
        streams={"text": parts.offline_text(64).model_copy(update={"max_length": 64})},
        optim={"text": OptimConfig(lr=3e-4, weight_decay=0.01, warmup=0.1)},
        evaluation=EvaluationConfig(select=None, watch=("lee-dev",), final=("lee",), every=500),
        run=RunConfig(output="runs/pretrain/small", epochs=3, seed=1),
    )


def smoke() -> Recipe:
    """Eight steps of a tiny one: what tests run."""
    changes = {
        "method.fresh": FreshEncoder(vocab_size=500, width=32, layers=1, heads=2, intermediate=64, positions=64),
        "encoder.path": "runs/pretrain/smoke-start",
    }
    return parts.smoke(parts.changed(small(), changes))


RECIPES = {"small": small, "smoke": smoke}


def sentences(shards: str) -> Iterator[str]:
    """All texts of a shard set, in the order of the files."""
    for shard in ShardSet.open(shards).shards:
        for sample in read(shard, range(shard.samples)):
            if not isinstance(sample, BadSample):
                yield text(sample.fields, ("txt",), key=sample.key)[0]


def make_start(recipe: Recipe) -> None:
    """Make the encoder that the recipe starts from, unless it is there."""
    config = recipe.method
    assert isinstance(recipe.encoder, EncoderConfig)
    folder = Path(recipe.encoder.path)
    if isinstance(config, MaskedLMConfig) and config.fresh and not (folder / "config.json").exists():
        make_encoder(config.fresh, sentences(recipe.streams["text"].shards), folder, recipe.run.seed)


if __name__ == "__main__":
    main(RECIPES, __doc__, before=make_start)
