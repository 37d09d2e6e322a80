"""A CLIP step: ours, against a bare loop over transformers' CLIPModel; and what the cyclic and the sentence losses add.

    python -m benchmarks.speed.clip [--size small] [--rounds 7] [--precision fp32]

Both sides have the same sizes, weights, batches (captions padded to the longest), precision and fused AdamW, and the same
loss to 1e-4 before anything is timed. The texts of a sentence loss alone, forward and backward, are what it should cost.
"""

from __future__ import annotations

import contextlib
from types import SimpleNamespace
from typing import Any, Literal, NamedTuple

import numpy as np
import torch
import tyro
from torch import Tensor
from transformers import CLIPConfig as TheirConfig
from transformers import CLIPModel, CLIPTextConfig

from benchmarks.timer import Call, Target, device, peaks, race, ratios, show
from data.batch import Batch
from data.streams.inputs import ImageInput
from models.text_encoder import TextEncoder
from models.towers import ViTTower
from trainers.clip import CLIP, CLIPConfig
from trainers.engine.malloc import keep_freed_memory
from trainers.engine.optim import TurnOptimizer
from trainers.recipe import OptimConfig

OPTIM = OptimConfig(lr=1e-5, weight_decay=0.1, schedule="constant", clip=None)
LOSSES: dict[str, dict[str, float]] = {
    "contrastive": {},
    "+ cyclic": {"i_cyclic": 0.25, "c_cyclic": 0.25},
    "+ captions (s)": {"captions": 0.1},
    "+ nli (n)": {"nli": 0.1},
}


class Size(NamedTuple):
    """Of both towers and of a batch."""

    pixels: int
    patch: int
    vision: tuple[int, int, int]
    """Width, layers, heads."""
    text: tuple[int, int, int]
    vocabulary: int
    embed_dim: int
    batch: int


SIZES = {
    "small": Size(64, 16, (256, 4, 4), (128, 4, 4), 8000, 128, 64),
    "base": Size(224, 32, (768, 12, 12), (512, 12, 8), 49408, 512, 16),  # ViT-B/32
}


def transformer(shape: tuple[int, int, int]) -> dict[str, int]:
    """Width, layers and heads by transformers' names."""
    width, layers, heads = shape
    return {
        "hidden_size": width,
        "intermediate_size": 4 * width,
        "num_hidden_layers": layers,
        "num_attention_heads": heads,
    }


def text_config(size: Size) -> CLIPTextConfig:
    """CLIP's text transformer; the last two of the vocabulary begin and end a text."""
    end = size.vocabulary - 1
    return CLIPTextConfig(vocab_size=end + 1, bos_token_id=end - 1, eos_token_id=end, **transformer(size.text))


def their_model(size: Size) -> Any:
    """CLIPModel of random weights."""
    vision = {"image_size": size.pixels, "patch_size": size.patch, **transformer(size.vision)}
    text = text_config(size).to_dict()
    return CLIPModel(TheirConfig(text_config=text, vision_config=vision, projection_dim=size.embed_dim))


def our_method(size: Size, weights: dict[str, float]) -> CLIP:
    """The method with these weights of further losses, without dropout, which CLIPModel does not have."""
    width, layers, heads = size.vision
    tower = ViTTower(input=ImageInput(size=size.pixels), patch_size=size.patch, width=width, layers=layers, heads=heads)
    tokenizer = SimpleNamespace(model_max_length=77, padding_side="right")  # texts come as token ids
    text = TextEncoder.from_config(text_config(size), tokenizer, "eot")
    return CLIPConfig(tower=tower, embed_dim=size.embed_dim, **weights).build(text)


def batches(size: Size, on: torch.device) -> dict[str, Batch]:
    """Pairs, and NLI triples, as streams give them: texts of about 13 tokens with a long tail, padded to the longest."""
    rng, n, last = np.random.default_rng(0), size.batch, size.vocabulary - 1

    def tokens(texts: int) -> dict[str, Tensor]:
        lengths = np.exp(rng.normal(np.log(13), 0.35, n * texts)).round().clip(4, 77).astype(int)
        ids = rng.integers(3, last - 1, (n * texts, lengths.max()))
        mask = np.arange(ids.shape[1]) < lengths[:, None]
        ids[:, 0], ids[np.arange(len(ids)), lengths - 1] = last - 1, last
        rows = {"input_ids": np.where(mask, ids, 0), "attention_mask": mask.astype(int)}
        return {name: torch.from_numpy(array).unflatten(0, (n, texts)) for name, array in rows.items()}

    keys = [str(number) for number in range(n)]
    image = torch.from_numpy(rng.standard_normal((n, 1, 3, size.pixels, size.pixels), dtype=np.float32))
    return {"pairs": Batch({"image": image, **tokens(1)}, keys).to(on), "nli": Batch(tokens(3), keys).to(on)}


def our_loss(method: CLIP, content: dict[str, Batch]) -> Tensor:
    """The weighted sum of the losses, formed and checked as the engine does."""
    output = method({name: content[name] for name in method.turns[0]})
    loss = torch.stack([method.loss_weights[name] * value.float() for name, value in output.losses.items()]).sum()
    if not bool(torch.isfinite(loss)):
        raise ArithmeticError("the loss is not finite")
    return loss


def our_step(method: CLIP, content: dict[str, Batch], autocast: Any) -> Call:
    """Losses, backward and the optimizer of the turn."""
    (turn,) = ("+".join(streams) for streams in method.turns)
    optimizer = TurnOptimizer(method.train(), turn, OPTIM, 10**6, "fp32")

    def step() -> None:
        with autocast:
            loss = our_loss(method, content)
        optimizer.backward(loss)
        optimizer.step()
        method.after_step(0)

    return step


def their_loss(model: Any, content: dict[str, Batch]) -> Tensor:
    pairs = content["pairs"]
    ids, mask = pairs["input_ids"][:, 0], pairs["attention_mask"][:, 0]
    return model(input_ids=ids, attention_mask=mask, pixel_values=pairs["image"][:, 0], return_loss=True).loss


def their_step(model: Any, content: dict[str, Batch], autocast: Any) -> Call:
    """What a user writes."""
    optimizer = torch.optim.AdamW(model.train().parameters(), lr=OPTIM.lr, weight_decay=OPTIM.weight_decay, fused=True)

    def step() -> None:
        with autocast:
            loss = their_loss(model, content)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)

    return step


def text_rows(method: CLIP, batch: Batch, autocast: Any) -> Call:
    """The text tower alone, forward and backward, on all texts of a batch."""
    ids, mask = (batch[name].flatten(0, 1) for name in ("input_ids", "attention_mask"))

    def step() -> None:
        with autocast:
            vectors = method.sentence_encoder.texts(ids, mask)
        vectors.float().sum().backward()

    return step


def main(size: Literal["small", "base"] = "small", rounds: int = 7, precision: Literal["fp32", "bf16"] = "fp32") -> None:
    """Print two tables and a row."""
    on, shape = device(), SIZES[size]
    keep_freed_memory()  # as the engine does; both sides have it
    autocast: Any = torch.autocast(on.type, torch.bfloat16) if precision == "bf16" else contextlib.nullcontext()
    torch.manual_seed(0)
    content = batches(shape, on)
    model, method = their_model(shape).to(on), our_method(shape, {}).to(on)
    encoder: Any = method.sentence_encoder
    encoder.text.model.load_state_dict(model.text_model.state_dict())
    encoder.tower.model.load_state_dict(model.vision_model.state_dict())
    encoder.text_projection.load_state_dict(model.text_projection.state_dict())
    encoder.tower_projection.load_state_dict(model.visual_projection.state_dict())
    encoder.logit_scale.data.copy_(model.logit_scale.data)
    with torch.no_grad():
        losses = float(their_loss(model.eval(), content)), float(our_loss(method.eval(), content))
    if abs(losses[0] - losses[1]) > 1e-4:
        raise SystemExit(f"the two sides do not compute the same: loss {losses[0]} and {losses[1]}")
    sides = {"ours": our_step(method, content, autocast), "loop over CLIPModel": their_step(model, content, autocast)}
    took = race(sides, rounds)
    show(f"pairs, {size}, batch {shape.batch}, {precision}, {on}", took, shape.batch)
    what = f"CLIP, {size}, batch {shape.batch}, {precision}: ours / a loop over transformers' CLIPModel, steps per second"
    found = ratios(took["loop over CLIPModel"], took["ours"])
    Target(area="papers", what=what, at_least=1, measured=found, peak_mb=peaks(took)).report()

    steps = {name: our_step(our_method(shape, own).to(on), content, autocast) for name, own in LOSSES.items()}
    steps |= {f"texts of {name} alone": text_rows(method, content[name], autocast) for name in ("pairs", "nli")}
    show("what each loss adds", race(steps, rounds), shape.batch, ours="contrastive")


if __name__ == "__main__":
    tyro.cli(main, description=__doc__)
