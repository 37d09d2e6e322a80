"""Pretrain a small BERT and its WordPiece tokenizer on your own text (masked language model): for a language without one."""

from __future__ import annotations

import sys
from pathlib import Path

if not __package__:  # run as a file: this clone comes first, not an installed copy
    sys.path[0] = str(Path(__file__).resolve().parents[1])

from multicse.models.fresh_bert import FreshEncoder
from multicse.pipelines import parts
from multicse.pipelines.cli import main
from multicse.trainers.pretrain import MaskedLMConfig
from multicse.trainers.recipe import EncoderConfig, EvaluationConfig, OptimConfig, Recipe, RunConfig


def small() -> Recipe:
    """A new BERT of 2 layers and 192 dimensions with 8,000 word pieces; give --streams.text.shards.

    Rate and length are those of the encoder that this project ships (docs/dev/log.md): high rates cost lexical signal.
    """
    return Recipe(
        name="pretrain/small",
        method=MaskedLMConfig(fresh=FreshEncoder(layers=2)),
        encoder=EncoderConfig(path="runs/pretrain/starts", pooling="mean"),
        streams={"text": parts.offline_text(64).model_copy(update={"max_length": 64})},
        optim={"text": OptimConfig(lr=1e-4, weight_decay=0.01, warmup=0.1)},
        evaluation=EvaluationConfig(select=None, watch=("lee-dev",), final=("lee",), eval_steps=500),
        run=RunConfig(output_dir="runs/pretrain/small", epochs=1, seed=1),
    )


def further() -> Recipe:
    """Goes on with an encoder that there is, on your text: --encoder.path, --streams.text.shards."""
    changes = {"name": "pretrain/further", "method.fresh": None, "run.output_dir": "runs/pretrain/further"}
    return small().changed({**changes, "encoder.path": parts.SMALL_ENCODER})


def smoke() -> Recipe:
    """Eight steps of a tiny one: what tests run."""
    tiny = FreshEncoder(vocab_size=500, width=32, layers=1, heads=2, intermediate=64, positions=64, lowercase=True)
    return parts.smoke(small().changed({"method.fresh": tiny, "optim.text.lr": 3e-4}))


RECIPES = {"small": small, "further": further, "smoke": smoke}


if __name__ == "__main__":
    main(RECIPES, __doc__)
