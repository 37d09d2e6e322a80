"""Pretrain a small BERT and its WordPiece tokenizer on your own text (masked language model): for a language without one."""

from __future__ import annotations

import hashlib
import re
import sys
import tempfile
from pathlib import Path

if not __package__:  # run as a file: this clone comes first, not an installed copy
    sys.path[0] = str(Path(__file__).resolve().parents[1])

from multicse.data.shards import ShardSet, size_and_sha256
from multicse.models.fresh_bert import FreshEncoder, make_encoder
from multicse.pipelines import parts
from multicse.pipelines.cli import main
from multicse.trainers.engine.text_fit import sentences
from multicse.trainers.pretrain import MaskedLMConfig
from multicse.trainers.recipe import EncoderConfig, EvaluationConfig, OptimConfig, Recipe, RecipeError, RunConfig

KEY = 10
"""Hex digits of a start's name."""


def small() -> Recipe:
    """A new BERT of 2 layers and 192 dimensions with 8,000 word pieces; give --streams.text.shards.

    Rate and length are those of the encoder that this project ships (docs/log.md): high rates cost lexical signal.
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


def make_start(recipe: Recipe) -> Recipe:
    """The recipe with the new encoder that it starts from as its path; made in a folder there, unless it is there already.

    The folder is called by what decides the encoder, so that another text or vocabulary makes another one. Raises
    RecipeError for a path at which another encoder is.
    """
    config = recipe.method
    assert isinstance(recipe.encoder, EncoderConfig)
    if not isinstance(config, MaskedLMConfig) or config.fresh is None:
        return recipe
    path, shards = Path(recipe.encoder.path), recipe.shards("text")
    if re.fullmatch(rf"[0-9a-f]{{{KEY}}}", path.name):  # of a run's recipe.json
        path = path.parent
    if (path / "config.json").exists():
        raise RecipeError(
            f"encoder.path={recipe.encoder.path!r} holds an encoder, and this recipe makes a new one (method.fresh): the "
            "recipe 'further' goes on with one that there is; else name a folder for new ones, or leave it out"
        )
    folder = path / _key(config.fresh, shards, recipe.run.seed)
    if not folder.exists():
        path.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=path, prefix=".new-") as place:
            made = Path(place) / "start"
            make_encoder(config.fresh, sentences(recipe), made, recipe.run.seed)
            made.rename(folder)
    return recipe.replace("encoder.path", str(folder))


def _key(fresh: FreshEncoder, shards: ShardSet, seed: int) -> str:
    """What decides a new encoder: its settings and seed, and the text."""
    files = [shard.sha256 or size_and_sha256(shard.url)[1] for shard in shards.shards]
    content = fresh.model_dump_json()
    first = "" if shards.first is None else f" {shards.first}"
    return hashlib.sha256(f"{content} {seed} {files}{first}".encode()).hexdigest()[:KEY]


if __name__ == "__main__":
    main(RECIPES, __doc__, before=make_start)
