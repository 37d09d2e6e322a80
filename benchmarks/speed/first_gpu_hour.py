"""Measure the throughput on a GPU and its bottlenecks, in about five minutes.

    python -m benchmarks.speed.first_gpu_hour [--out FOLDER]

SimCSE with BERT-base (random weights, bf16) is compared with the model and loss of sentence-transformers, which skips
padding if flash attention is installed; CLIP ViT-B/32 with the published throughput of open_clip on an A100 (`workers.B32`).
Batches are in memory. Prints a table and writes it to FOLDER as JSON and Markdown. Without a GPU, nothing is measured.
"""

from __future__ import annotations

import io
import json
import math
import tarfile
import tempfile
from collections import Counter
from collections.abc import Iterable
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
import tyro
from PIL import Image
from torch import nn

from benchmarks.speed.engine import NOT_TRAINED, engine, loops
from benchmarks.speed.workers import B32
from benchmarks.timer import Call, clock, machine, random_bert
from multicse.data.offline.sentences import wiki_sentences
from multicse.data.streams.inputs import ImageInput
from multicse.models.towers import ViTTower
from multicse.pipelines import cyclip, parts, simcse
from multicse.pipelines.api import prepare
from multicse.trainers.engine.loop import Engine
from multicse.trainers.recipe import EncoderConfig

PEAKS = {
    **{"B200": 2250e12, "H200": 989e12, "GH200": 989e12, "H100 PCIe": 756e12, "H100 NVL": 835e12, "H100": 989e12},
    **{"A100": 312e12, "L40S": 362e12, "L40": 181e12, "L4": 121e12, "A10G": 70e12, "A10": 125e12, "RTX 4090": 165e12},
}
"""Dense bf16 operations per second by part of the card's name, from NVIDIA's data sheets (half of figures "with sparsity");
A10G from AWS, G5 instances."""
VIEWS, TOKENS = 2, 77
GPUS = min(1, torch.cuda.device_count())
HERE = {"run.num_workers": 0, "run.gpus_per_worker": GPUS, "run.precision": "bf16", **NOT_TRAINED}


class Size(NamedTuple):
    """Sizes of both models; the defaults are the papers' sizes."""

    layers: int = 12
    width: int = 768
    texts: int = 512
    caption_width: int = 512
    image: int = 224
    patch: int = 32
    pairs: int = 256
    seconds: float = 20.0


def transformer(layers: int, width: int, lengths: Iterable[int]) -> float:
    """Return the operations of a training step (three forward passes) without embeddings."""
    return sum(3.0 * layers * (24 * length * width**2 + 4 * length**2 * width) for length in lengths)


def vision(size: Size) -> float:
    """Return the operations of a training step of the vision transformer for one image."""
    patches = (size.image // size.patch) ** 2
    return transformer(size.layers, size.width, [patches + 1]) + 6.0 * patches * 3 * size.patch**2 * size.width


def peak(card: str) -> float | None:
    """Return the dense bf16 operations per second of a card by the longest matching name in `PEAKS`, or None."""
    return next((PEAKS[name] for name in sorted(PEAKS, key=len, reverse=True) if name in card), None)


def timed(step: Call, steps: int) -> float:
    """Return the seconds of `steps` steps."""
    start = clock()
    for _ in range(steps):
        step()
    return clock() - start


def rate(step: Call, samples: int, seconds: float) -> float:
    """Return samples per second, after five warm-up steps."""
    timed(step, 5)
    steps = max(3, math.ceil(seconds / max(timed(step, 1), 1e-3)))
    return samples * steps / timed(step, steps)


def covered(spans: Iterable[tuple[float, float]]) -> float:
    """Return the length of the union of intervals."""
    total, reached = 0.0, -math.inf
    for start, end in sorted(spans):
        total, reached = total + max(0.0, end - max(start, reached)), max(reached, end)
    return total


def shares(spans: Iterable[tuple[str, float, float]], wall: float) -> dict[str, float]:
    """Return fractions of the time: kernels, copies that do not overlap kernels, and idle."""
    spans = list(spans)
    kernels = covered((start, end) for name, start, end in spans if not name.startswith("Mem"))
    busy = covered((start, end) for _, start, end in spans)
    return {"kernels": kernels / wall, "copies": (busy - kernels) / wall, "idle": 1 - busy / wall}


def profiled(step: Call, steps: int = 5) -> tuple[dict[str, float], str]:
    """Return `shares` of a few steps, and the five longest activities with their fraction of the GPU's time."""
    with torch.profiler.profile() as profile:
        wall = 1e6 * timed(step, steps)
    gpu = torch.autograd.DeviceType.CUDA
    on_gpu = [one for one in profile.events() if one.device_type == gpu and not one.is_user_annotation]
    took: Counter[str] = Counter()
    for event in on_gpu:
        took[event.name] += event.time_range.elapsed_us()
    longest = "; ".join(f"{name[:60]} {time / took.total():.0%}" for name, time in took.most_common(5))
    return shares([(event.name, event.time_range.start, event.time_range.end) for event in on_gpu], wall), longest


def reading(made: Engine, stream: str, batches: int = 4) -> float:
    """Return the seconds that this process needs to read one batch, without the first."""
    readers = made._readers()
    next(readers[stream])
    took = timed(partial(next, readers[stream]), batches) / batches
    for reader in readers.values():
        reader.close()
    return took


def ours_text(place: Path, size: Size) -> Engine:
    """Return the engine of SimCSE on sentences of Wikipedia."""
    bert = EncoderConfig(path=random_bert(f"{size.layers}x{size.width}", str(place / "bert")), pooling="cls")
    changes = {"encoder": bert, "streams.text.batch_size": size.texts, "run.output_dir": f"{place}/text"}
    recipe = simcse.demo().changed({**changes, **HERE})
    return engine(prepare(recipe))


def theirs(place: Path, size: Size, attention: str) -> Call:
    """Return a step of sentence-transformers with the same BERT and number of sentences, tokenized in advance."""
    from sentence_transformers import SentenceTransformer
    from sentence_transformers.sentence_transformer.losses import MultipleNegativesRankingLoss
    from sentence_transformers.sentence_transformer.modules import Pooling, Transformer

    module = Transformer(str(place / "bert"), max_seq_length=32, model_kwargs={"attn_implementation": attention})
    model = SentenceTransformer(modules=[module, Pooling(size.width, "cls")]).train()
    loss, device = MultipleNegativesRankingLoss(model, scale=20.0), model.device
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-6, fused=True)
    features = model.preprocess(wiki_sentences()[: size.texts])
    features = {name: value.to(device) if torch.is_tensor(value) else value for name, value in features.items()}

    def step() -> None:
        with torch.autocast(device.type, torch.bfloat16):
            value = loss([dict(features) for _ in range(VIEWS)], None)
        value.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)

    return step


def ours_pairs(place: Path, size: Size) -> Engine:
    """Return the engine of CLIP on images of noise, with captions of the maximum length."""
    from transformers import AutoTokenizer, CLIPTextConfig

    folder, shards, noise = place / "clip", place / "pairs", np.random.default_rng(0)
    (tokenizer := AutoTokenizer.from_pretrained(parts.SMALL_ENCODER)).save_pretrained(folder)
    text = {"hidden_size": size.caption_width, "intermediate_size": 4 * size.caption_width, "num_hidden_layers": size.layers}
    text |= {"num_attention_heads": max(1, size.caption_width // 64), "vocab_size": 49408, "max_position_embeddings": TOKENS}
    text |= {"bos_token_id": tokenizer.cls_token_id, "eos_token_id": tokenizer.sep_token_id}
    CLIPTextConfig(**text, pad_token_id=tokenizer.pad_token_id).save_pretrained(folder)
    shards.mkdir()
    with tarfile.open(shards / "train-000000.tar", "w") as tar:
        for sample in range(2 * size.pairs):
            image = io.BytesIO()
            Image.fromarray(noise.integers(0, 256, (size.image, size.image, 3), np.uint8)).save(image, "JPEG")
            for ending, data in (("jpg", image.getvalue()), ("txt", f"{sample} {'and so on ' * TOKENS}".encode())):
                entry = tarfile.TarInfo(f"{sample:06}.{ending}")
                entry.size = len(data)
                tar.addfile(entry, io.BytesIO(data))
    given, heads = ImageInput(size=size.image), max(1, size.width // 64)
    tower = ViTTower(input=given, patch_size=size.patch, width=size.width, layers=size.layers, heads=heads)
    changes = {"method.tower": tower, "method.embed_dim": size.caption_width, "streams.pairs.input": given}
    changes |= {"encoder": EncoderConfig(path=str(folder), scratch=True, pooling="eot"), "streams.pairs.shards": str(shards)}
    changes |= {"streams.pairs.batch_size": size.pairs, "run.max_steps": 100, "evaluation.data": None}
    recipe = cyclip.model("clip").changed({**changes, "run.output_dir": f"{place}/images", **HERE})
    return engine(prepare(recipe))


def measure(size: Size) -> dict[str, Any]:
    """Return the measurements. Also runs on a CPU, for tests with small sizes."""
    from transformers.utils import is_flash_attn_2_available

    card = torch.cuda.get_device_name() if GPUS else "no GPU"
    attention = "flash_attention_2" if is_flash_attn_2_available() else "sdpa"
    found: dict[str, Any] = {"machine": machine(), "card": card, "peak": peak(card), "rows": []}
    with tempfile.TemporaryDirectory() as name:
        place = Path(name)
        for stream, samples in (("text", size.texts), ("pairs", size.pairs)):
            made = ours_text(place, size) if stream == "text" else ours_pairs(place, size)
            made.method.train()
            reader, step = reading(made, stream), loops(made)["engine"]
            ours = rate(step, samples, size.seconds)
            where, longest = profiled(step)
            if stream == "text":
                rows = made.method.sentence_encoder.tokenize(wiki_sentences()[:4096], max_length=32)["attention_mask"]
                operations = VIEWS * transformer(size.layers, size.width, map(int, rows.sum(1))) / len(rows)
                model, against = "SimCSE, BERT-base", f"sentence-transformers, {attention}"
                other = rate(theirs(place, size, attention), samples, size.seconds)
            else:
                operations = vision(size) + transformer(size.layers, size.caption_width, [TOKENS])
                model, against, other = "CLIP ViT-B/32", f"open_clip, published: {B32.model}", B32.samples / B32.seconds
            row = {"model": model, "batch": samples, "samples/s": ours, "against": against, "theirs, samples/s": other}
            row |= {"ratio": ours / other, "TFLOP/s": ours * operations / 1e12}
            row |= {"share of the peak": found["peak"] and ours * operations / found["peak"], **where}
            row |= {"one reader / step": reader * ours / samples, "longest kernels": longest}
            found["rows"].append(row)
    return found


def write(found: dict[str, Any], out: Path) -> None:
    """Write the measurements as JSON and Markdown, and print the table."""
    columns = [*found["rows"][0]]
    lines = [found["machine"], "", f"| {' | '.join(columns)} |", "|---" * len(columns) + "|"]
    for row in found["rows"]:
        cells = [f"{value:.3g}" if isinstance(value, float) else str(value) for value in row.values()]
        lines.append(f"| {' | '.join(cells)} |")
    out.mkdir(parents=True, exist_ok=True)
    (out / "first_gpu_hour.json").write_text(json.dumps(found, indent=2))
    (out / "first_gpu_hour.md").write_text("\n".join(lines) + "\n")
    print("\n".join(lines))


def main(out: Path = Path("runs/first-gpu-hour")) -> None:
    """Measure, and write ``first_gpu_hour.json`` and ``first_gpu_hour.md`` to the folder `out`."""
    if GPUS:
        write(measure(Size()), out)
    else:
        print("No GPU found by torch; nothing is measured. Run this on a machine with a GPU and a CUDA build of torch")


if __name__ == "__main__":
    tyro.cli(main, description=__doc__)
