"""TSDAE (Findings of EMNLP 2021): a denoising auto-encoder, for an existing encoder or from nothing but text."""

from __future__ import annotations

import sys
from pathlib import Path

if not __package__:  # run as a file: this clone comes first, not an installed copy
    sys.path[0] = str(Path(__file__).resolve().parents[1])

from multicse.models.fresh_bert import FreshEncoder
from multicse.pipelines import parts, pretrain
from multicse.pipelines.cli import main
from multicse.trainers.recipe import Recipe
from multicse.trainers.tsdae import TSDAEConfig


def bert_base() -> Recipe:
    """Train BERT-base on sentences of Wikipedia: 100,000 steps, batch 8, constant lr 3e-5."""
    changes = {
        "streams.text.batch_size": 8,
        "streams.text.max_length": 75,
        "optim.text.schedule": "constant",
        "evaluation.eval_steps": 1000,
        "run.max_steps": 100_000,
    }
    return parts.text_bert_base("tsdae", TSDAEConfig()).changed(changes)


def scratch() -> Recipe:
    """Train a new BERT with 2 layers, 192 dimensions and 8,000 word pieces; set --streams.text.shards."""
    changes = {"name": "tsdae/scratch", "run.output_dir": "runs/tsdae/scratch"}
    return pretrain.small().changed({**changes, "method": TSDAEConfig(fresh=FreshEncoder(layers=2))})


def demo() -> Recipe:
    """Train in minutes on a laptop, offline: Wikipedia sentences, this project's small encoder."""
    return parts.text_demo("tsdae", TSDAEConfig())


smoke = parts.smoke_of(demo)

RECIPES = {"demo": demo, "smoke": smoke, "bert-base": bert_base, "scratch": scratch}

if __name__ == "__main__":
    main(RECIPES, __doc__)
