"""CLIP and CyCLIP with sentence-embedding training (paper 002): pictures with captions, and SimCSE on captions or NLI."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

from data.config import TextStream
from data.inputs import ImageInput
from data.pairs import ImageTextStream
from pipelines import parts
from pipelines.cli import OFFLINE, main
from trainers.clip import CLIPConfig
from trainers.recipe import EncoderConfig, EvaluationConfig, OptimConfig, Recipe, RunConfig
from trainers.towers import ResNetTower, ViTTower

CLIP_FOLDER = "openai/clip-vit-base-patch32"
TEXT = EncoderConfig(path=CLIP_FOLDER, scratch=True, hidden_dropout=0.1, attention_dropout=0.1)
"""CLIP's text transformer (512 wide, 12 layers, 8 heads, 49,408 pieces of words) with random weights; CyCLIP's own has no
dropout, and without any the two views of a caption would be one."""

CYCLIC = {"i_cyclic": 0.25, "c_cyclic": 0.25}
SENTENCES: dict[str, dict[str, float]] = {"": {}, "-s": {"captions": 0.1}, "-n": {"nli": 0.1}, "-e": {"nli_sentences": 0.1}}
"""What the paper's letters add: SimCSE on captions, supervised on NLI triples, SimCSE on single NLI sentences."""
MODELS = {f"{name}{letter}": {**base, **own} for name, base in (("clip", {}), ("cyclip", CYCLIC)) for letter, own in SENTENCES.items()}
"""A model of the paper is these weights of losses, and the streams that they ask for."""

STEPS_OF_AN_EPOCH = 35_083
"""Of CC3M's 2,806,641 pairs in batches of 80."""

NAMES = "prompts/imagenet.json"
"""OpenAI's 1,000 class names of ImageNet and their 80 templates, ``{"classes": [...], "templates": [...]}``."""
ZERO_SHOT = (  # shards whose classes are ImageNet's 1,000 in their order, and shards that name their classes
    *(f"zero-shot:shards/{name}?classes={NAMES}" for name in ("imagenet", "imagenet-v2", "imagenet-sketch")),
    *(f"zero-shot:shards/{name}?templates={NAMES}" for name in ("cifar10", "cifar100", "imagenet-o", "imagenet-a", "imagenet-r")),
)
COCO, FLICKR = "retrieval:shards/coco", "retrieval:shards/flickr30k"


def model(row: str, name: str = "", changes: dict[str, Any] | None = None) -> Recipe:
    """One of `MODELS` with the paper's settings: CC3M from scratch, 64 epochs; `changes` by dotted path."""
    weights, name = MODELS[row], name or row
    recipe = Recipe(
        name=f"cyclip/{name}",
        method=CLIPConfig(tower=ResNetTower(), embed_dim=1024, **weights),
        encoder=TEXT,
        streams={"pairs": ImageTextStream(shards="shards/cc3m", batch_size=80), **nli_streams(weights, 80)},
        optim={turn(weights): OptimConfig(lr=5e-4, weight_decay=0.1, schedule="cosine", warmup=10_000, clip=None)},
        lead="pairs",
        evaluation=EvaluationConfig(
            data=parts.STS.data,
            select="contrastive:shards/cc3m-val?batch=80",
            final=(COCO, *([] if "nli" in weights else [FLICKR]), *ZERO_SHOT, *parts.STS.final),
            every=STEPS_OF_AN_EPOCH,
        ),
        run=RunConfig(output=f"runs/cyclip/{name}", epochs=64, gpus_per_worker=1, checkpoint_every=5000),
    )
    for path, value in (changes or {}).items():
        recipe = recipe.replace(path, value)
    return recipe


def demo() -> Recipe:
    """Minutes on a laptop, offline: CyCLIPs on named icons, a small ViT, the small encoder of this project."""
    icons = ImageInput(size=64)
    return Recipe(
        name="cyclip/demo",
        method=CLIPConfig(
            tower=ViTTower(input=icons, patch_size=8, width=128, layers=4, heads=4), embed_dim=128, **MODELS["cyclip-s"]
        ),
        encoder=parts.SMALL,
        streams={"pairs": parts.offline_emoji(64)},
        optim={"pairs": OptimConfig(lr=1e-3, weight_decay=0.1, schedule="cosine", warmup=0.1)},
        lead="pairs",
        evaluation=EvaluationConfig(
            select=f"retrieval:{OFFLINE}/emoji-val",
            final=(f"retrieval:{OFFLINE}/emoji-test", f"geometry:{OFFLINE}/emoji-test"),
            every=100,
        ),
        run=parts.small_run("runs/cyclip/demo", max_steps=600),
    )


def smoke() -> Recipe:
    """Eight steps: what tests run."""
    return parts.smoke(demo(), "cyclip")


def turn(weights: dict[str, float]) -> str:
    return "+".join(("pairs", *(name for name in ("nli", "nli_sentences") if name in weights)))


def nli_streams(weights: dict[str, float], batch_size: int) -> dict[str, TextStream]:
    streams = {"nli": parts.nli(batch_size), "nli_sentences": TextStream(shards="shards/nli-sentences", batch_size=batch_size)}
    return {name: stream for name, stream in streams.items() if name in weights}


RECIPES: dict[str, Callable[[], Recipe]] = {"demo": demo, "smoke": smoke}

if __name__ == "__main__":
    main(RECIPES, __doc__)
