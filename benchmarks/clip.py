"""Pairs per second of a CLIP step: ours against a bare loop over transformers' CLIPModel, and what each loss adds.

    python benchmarks/clip.py [--sizes small base] [--rounds 9] [--threads 1] [--precision fp32]

Both sides have the same sizes, weights, batches (captions padded to the longest of the batch), precision and fused AdamW,
and the same loss to 1e-4 before anything is timed. They take turns, a block each; of every round the ratio is taken, and of
the rounds the median. On a CPU processor time counts, since others may use the machine, on a GPU the clock. Bounds: ours at
least as fast; the cyclic losses at most 5 % of a step; a sentence loss at most 1.1 times what its rows cost the text tower
by themselves, forward and backward. The exit status is 1 when one is missed.
"""

from __future__ import annotations

import contextlib
import statistics
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any, Literal

import numpy as np
import torch
import tyro
from torch import Tensor
from transformers import CLIPConfig as TheirConfig
from transformers import CLIPModel, CLIPTextConfig

from data.batch import Batch
from data.streams.inputs import ImageInput
from models.text_encoder import TextEncoder
from models.towers import ViTTower
from trainers.clip import CLIP, CLIPConfig
from trainers.engine.malloc import keep_freed_memory
from trainers.engine.optim import TurnOptimizer
from trainers.recipe import OptimConfig

OPTIM = OptimConfig(lr=1e-5, weight_decay=0.1, schedule="constant", clip=None)
CYCLIC = {"i_cyclic": 0.25, "c_cyclic": 0.25}
DROPOUT = 0.1  # of the text tower where sentence losses are measured, as in the recipes
FASTER, CYCLIC_COST, ROW_COST = 1.0, 1.05, 1.1  # the bounds


@dataclass(frozen=True)
class Size:
    """Of both towers and of a batch."""

    image: tuple[int, int, int, int, int]
    """Pixels of a side and of a patch, width, layers, heads."""
    text: tuple[int, int, int, int]
    """Width, layers, heads, vocabulary."""
    embed_dim: int
    batch: int
    steps: int
    """Of a block."""


SIZES = {
    "small": Size((64, 16, 256, 4, 4), (128, 4, 4, 8000), 128, 64, 4),
    "base": Size((224, 32, 768, 12, 12), (512, 12, 8, 49408), 512, 16, 1),  # ViT-B/32
}


@dataclass
class Arguments:
    """What is measured."""

    sizes: tuple[Literal["small", "base"], ...] = ("small", "base")
    rounds: int = 9
    """Blocks of each side."""
    batch: int | None = None
    """Pairs of a batch, and triples of the NLI loss, in place of the size's own."""
    precision: Literal["fp32", "bf16"] = "fp32"
    threads: int = 1
    seed: int = 0


# ---------------------------------------------------------------------------------------------------------------- batches


def tokens(rows: int, mean: float, vocabulary: int, rng: np.random.Generator) -> tuple[Tensor, Tensor]:
    """Ids and mask (rows, L) of captions of about `mean` tokens with a long tail, padded to the longest."""
    lengths = np.exp(rng.normal(np.log(mean), 0.35, rows)).round().clip(4, 77).astype(int)
    ids = rng.integers(3, vocabulary - 2, (rows, lengths.max()))
    mask = np.arange(ids.shape[1]) < lengths[:, None]
    ids[:, 0], ids[np.arange(rows), lengths - 1] = vocabulary - 2, vocabulary - 1
    return torch.from_numpy(np.where(mask, ids, 0)), torch.from_numpy(mask).long()


def batches(size: Size, on: torch.device, rng: np.random.Generator) -> dict[str, Batch]:
    """Pairs, and NLI triples, as a stream gives them."""
    pixels, n = size.image[0], size.batch
    vocabulary = size.text[3]
    keys = [str(number) for number in range(n)]
    ids, mask = tokens(n, 13, vocabulary, rng)
    image = torch.from_numpy(rng.standard_normal((n, 1, 3, pixels, pixels), dtype=np.float32))
    pairs = {"image": image, "input_ids": ids[:, None], "attention_mask": mask[:, None]}
    ids, mask = tokens(3 * n, 13, vocabulary, rng)
    triples = {"input_ids": ids.unflatten(0, (n, 3)), "attention_mask": mask.unflatten(0, (n, 3))}
    return {"pairs": Batch(pairs, keys).to(on), "nli": Batch(triples, keys).to(on)}


# ------------------------------------------------------------------------------------------------------------------ sides


def their_model(size: Size) -> Any:
    """CLIPModel of random weights."""
    pixels, patch, width, layers, heads = size.image
    vision = {
        "image_size": pixels,
        "patch_size": patch,
        "hidden_size": width,
        "intermediate_size": 4 * width,
        "num_hidden_layers": layers,
        "num_attention_heads": heads,
    }
    text = text_config(size).to_dict()
    return CLIPModel(TheirConfig(text_config=text, vision_config=vision, projection_dim=size.embed_dim))


def text_config(size: Size) -> CLIPTextConfig:
    """CLIP's text transformer; the last two of the vocabulary begin and end a text."""
    width, layers, heads, vocabulary = size.text
    return CLIPTextConfig(
        vocab_size=vocabulary,
        hidden_size=width,
        intermediate_size=4 * width,
        num_hidden_layers=layers,
        num_attention_heads=heads,
        bos_token_id=vocabulary - 2,
        eos_token_id=vocabulary - 1,
    )


def our_method(size: Size, dropout: float = 0.0, **weights: float) -> CLIP:
    """The method, with dropout in the text tower and weights of further losses."""
    from models.clip_layers import add_dropout

    pixels, patch, width, layers, heads = size.image
    tower = ViTTower(input=ImageInput(size=pixels), patch_size=patch, width=width, layers=layers, heads=heads)
    tokenizer = SimpleNamespace(model_max_length=77, padding_side="right")  # texts come as token ids
    config = text_config(size)
    config.attention_dropout = dropout
    text = TextEncoder.from_config(config, tokenizer, "eot")
    add_dropout(text.model, dropout)
    return CLIPConfig(tower=tower, embed_dim=size.embed_dim, **weights).build(text)


def take_weights(method: CLIP, model: Any) -> None:
    """Of a CLIPModel of the same sizes."""
    encoder: Any = method.sentence_encoder
    parts = (
        (encoder.text.model, model.text_model),
        (encoder.tower.model, model.vision_model),
        (encoder.text_projection, model.text_projection),
        (encoder.tower_projection, model.visual_projection),
    )
    for ours, theirs in parts:
        ours.load_state_dict(theirs.state_dict())
    encoder.logit_scale.data.copy_(model.logit_scale.data)


def our_loss(method: CLIP, content: dict[str, Batch]) -> Tensor:
    """The weighted sum of the losses, formed and checked as the engine does."""
    output = method({name: content[name] for name in method.turns[0]})
    loss = torch.stack([method.loss_weights[name] * value.float() for name, value in output.losses.items()]).sum()
    if not bool(torch.isfinite(loss)):
        raise ArithmeticError("the loss is not finite")
    return loss


Step = Callable[[dict[str, Batch]], object]


def our_step(method: CLIP, autocast: Callable[[], Any]) -> Step:
    """Losses, backward and the optimizer of the turn."""
    optimizer = TurnOptimizer(method.train(), "pairs", OPTIM, 10**6, "fp32")

    def step(content: dict[str, Batch]) -> None:
        with autocast():
            loss = our_loss(method, content)
        optimizer.backward(loss)
        optimizer.step()
        method.after_step(0)

    return step


def their_loss(model: Any, content: dict[str, Batch]) -> Tensor:
    pairs = content["pairs"]
    ids, mask = pairs["input_ids"][:, 0], pairs["attention_mask"][:, 0]
    return model(input_ids=ids, attention_mask=mask, pixel_values=pairs["image"][:, 0], return_loss=True).loss


def their_step(model: Any, autocast: Callable[[], Any]) -> Step:
    """What a user writes."""
    optimizer = torch.optim.AdamW(model.train().parameters(), lr=OPTIM.lr, weight_decay=OPTIM.weight_decay, fused=True)

    def step(content: dict[str, Batch]) -> None:
        with autocast():
            loss = their_loss(model, content)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)

    return step


def text_rows(method: CLIP, stream: str, autocast: Callable[[], Any]) -> Step:
    """The text tower alone, forward and backward, on all texts of a stream, to be run within `gradients`."""

    def step(content: dict[str, Batch]) -> None:
        ids, mask = (content[stream][name].flatten(0, 1) for name in ("input_ids", "attention_mask"))
        with autocast():
            vectors = method.sentence_encoder.texts(ids, mask)
        vectors.float().sum().backward()

    method.train()
    return step


@contextlib.contextmanager
def gradients(method: CLIP) -> Iterator[None]:
    """Gradients of the texts are there to be added to, as in a step that has other rows, and gone afterwards, so that the
    next side does not inherit them."""
    encoder = method.sentence_encoder
    for parameter in (*encoder.text.parameters(), *encoder.text_projection.parameters()):
        parameter.grad = torch.zeros_like(parameter)
    yield
    method.zero_grad(set_to_none=True)


# ------------------------------------------------------------------------------------------------------------------- race


Around = Callable[[], contextlib.AbstractContextManager[None]]


def race(
    sides: dict[str, Step],
    size: Size,
    a: Arguments,
    on: torch.device,
    rng: np.random.Generator,
    around: Mapping[str, Around] | None = None,
) -> dict[str, list[float]]:
    """Seconds of a step, one a round, of every side; the sides take turns, every second round the other way round. What is
    `around` a side's block is not timed."""
    content = [batches(size, on, rng) for _ in range(size.steps)]
    took: dict[str, list[float]] = {name: [] for name in sides}
    outer = {name: (around or {}).get(name, contextlib.nullcontext) for name in sides}
    for name, step in sides.items():
        with outer[name]():
            step(content[0])
    for turn in range(a.rounds):
        for name in list(sides)[:: 1 if turn % 2 else -1]:
            with outer[name]():
                began = clock(on)
                for batch in content:
                    sides[name](batch)
                took[name].append((clock(on) - began) / size.steps)
    return took


def clock(on: torch.device) -> float:
    """Seconds of processor time, of a GPU on the clock once it has done what it was given."""
    if on.type == "cuda":
        torch.cuda.synchronize(on)
        return time.perf_counter()
    return time.process_time()


def median_ratio(above: list[float], below: list[float]) -> float:
    """Median over rounds of the ratio within a round."""
    return statistics.median(a / b for a, b in zip(above, below, strict=True))


# ------------------------------------------------------------------------------------------------------------------- main


@dataclass(frozen=True)
class Line:
    """One bound and what was found."""

    what: str
    milliseconds: tuple[float, float]
    """Of a step, before and after, or of theirs and ours."""
    value: float
    bound: float
    at_least: bool = False

    @property
    def holds(self) -> bool:
        return self.value >= self.bound if self.at_least else self.value <= self.bound

    def __str__(self) -> str:
        first, second = self.milliseconds
        sign = ">=" if self.at_least else "<="
        return (
            f"| {self.what:<48} | {first:>9.1f} | {second:>9.1f} | {self.value:>6.3f} | {sign} {self.bound:.2f} | "
            f"{'yes' if self.holds else 'NO'} |"
        )


def measure(name: str, a: Arguments, on: torch.device, autocast: Callable[[], Any]) -> list[Line]:
    """All bounds at one size."""
    size = SIZES[name] if a.batch is None else Size(**{**vars(SIZES[name]), "batch": a.batch})
    rng = np.random.default_rng(a.seed)
    return [
        *against_transformers(size, a, on, autocast, rng),
        *cost_of_losses(size, a, on, autocast, rng),
    ]


def against_transformers(
    size: Size, a: Arguments, on: torch.device, autocast: Callable[[], Any], rng: np.random.Generator
) -> list[Line]:
    """Pairs per second of both."""
    torch.manual_seed(a.seed)
    model, method = their_model(size).to(on), our_method(size).to(on)
    take_weights(method, model)
    content = batches(size, on, rng)
    with torch.no_grad():
        theirs, ours = float(their_loss(model.eval(), content)), float(our_loss(method.eval(), content))
    if abs(theirs - ours) > 1e-4:
        raise SystemExit(f"the two sides do not compute the same: loss {theirs} and {ours}")
    took = race({"theirs": their_step(model, autocast), "ours": our_step(method, autocast)}, size, a, on, rng)
    first, second = (statistics.median(took[side]) for side in ("theirs", "ours"))
    speeds = [f"{size.batch / seconds:.1f}" for seconds in (second, first)]
    print(f"  pairs/s: ours {speeds[0]}, bare loop {speeds[1]} (images and captions alike)")
    ratio = median_ratio(took["theirs"], took["ours"])
    return [Line("speed, ours : bare loop over CLIPModel", (1e3 * first, 1e3 * second), ratio, FASTER, True)]


def cost_of_losses(
    size: Size, a: Arguments, on: torch.device, autocast: Callable[[], Any], rng: np.random.Generator
) -> list[Line]:
    """What the cyclic and the sentence losses add to a step."""
    method = our_method(size, DROPOUT, captions=0.1, nli=0.1, **CYCLIC).to(on)
    weights = {"contrastive": 1.0}
    variants = {
        "plain": weights,
        "cyclic": weights | CYCLIC,
        "captions": weights | {"captions": 0.1},
        "nli": weights | {"nli": 0.1},
    }
    optimized = our_step(method, autocast)  # one model and one optimizer for all, so that only the losses differ

    def with_weights(values: dict[str, float]) -> Step:
        config = CLIPConfig(tower=method.config.tower, embed_dim=size.embed_dim, **values)

        def step(content: dict[str, Batch]) -> None:
            method.config, method.turns = config, config.streams()
            optimized(content)

        return step

    sides = {name: with_weights(values) for name, values in variants.items()}
    rows = {f"{stream} rows": text_rows(method, stream, autocast) for stream in ("pairs", "nli")}
    took = race(sides | rows, size, a, on, rng, dict.fromkeys(rows, lambda: gradients(method)))
    ms = {name: 1e3 * statistics.median(values) for name, values in took.items()}
    lines = [
        Line(
            "cyclic losses, step with : without",
            (ms["plain"], ms["cyclic"]),
            median_ratio(took["cyclic"], took["plain"]),
            CYCLIC_COST,
        )
    ]
    for loss, stream in (("captions", "pairs"), ("nli", "nli")):
        extra, alone = ms[loss] - ms["plain"], ms[f"{stream} rows"]
        title = f"{loss}: what it adds : its {size.batch * (1 if stream == 'pairs' else 3)} text rows alone"
        lines.append(Line(title, (alone, extra), extra / alone, ROW_COST))
    return lines


def main(a: Arguments) -> int:
    """Print a table for every size; 1 when a bound is missed."""
    torch.set_num_threads(a.threads)
    keep_freed_memory()  # as the engine does; both sides have it
    on = torch.device("cuda" if torch.cuda.is_available() else "cpu")

    def autocast() -> Any:
        return torch.autocast(on.type, torch.bfloat16) if a.precision == "bf16" else contextlib.nullcontext()

    good = True
    for name in a.sizes:
        size = SIZES[name]
        (pixels, patch, width, layers, _), batch = size.image, a.batch or size.batch
        print(
            f"\n{name}: ViT {width} x {layers} at {pixels} px (patch {patch}), text {size.text[0]} x {size.text[1]}, ",
            end="",
        )
        print(f"batch {batch}; {on}, {a.threads} threads, {a.precision}, medians of {a.rounds} rounds")
        lines = measure(name, a, on, autocast)
        print(f"| {'what':<48} | {'ms before':>9} | {'ms after':>9} | {'ratio':>6} | bound   | met |")
        print(f"|{'-' * 50}|{'-' * 11}|{'-' * 11}|{'-' * 8}|{'-' * 9}|{'-' * 5}|")
        for line in lines:
            print(line)
        good &= all(line.holds for line in lines)
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main(tyro.cli(Arguments, description=__doc__)))
