"""Try this project on a GPU and measure its throughput and bottlenecks, in about ten minutes; no Ray or MLflow needed.

    python -m benchmarks.speed.first_gpu_hour [PART ...] [--out FOLDER] [--data FOLDER]

The parts, in the order of their value; each runs in a process of its own and prints a table when it ends:

tests    Tests that compare CUDA with the CPU (``pytest -m gpu``).
text     SimCSE with BERT-base in bf16, and the model and loss of sentence-transformers, which skips padding if flash
         attention is installed.
pairs    CLIP ViT-B/32, and the published throughput of open_clip on an A100 (`workers.B32`).
image    VisualCSE: SimCSE and images of 224 x 224 through the same BERT-base.
compile  SimCSE with and without `run.compile`, with packed and with padded texts.
sharded  SimCSE with and without `run.sharded`, on one GPU.
train    SimCSE with the small encoder for 2,000 steps on sentences of Wikipedia, and its scores before and after. Takes the
         files ``text_unlabeled/wiki_combined.en.txt.gz`` and ``sts/STSB.*.raw.tsv`` of the folder --data.

Models have random weights, except in `train`. A step is measured on batches in memory, and then, where there are images, on
batches that processes decode meanwhile. Without a GPU, nothing is measured.
"""

from __future__ import annotations

import collections
import contextlib
import io
import itertools
import json
import math
import multiprocessing
import os
import subprocess
import sys
import tarfile
import tempfile
import time
import traceback
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from pathlib import Path
from typing import Any, Literal, NamedTuple
from unittest.mock import patch
from xml.etree import ElementTree

import numpy as np
import pyarrow as pa
import torch
import tyro
from PIL import Image
from torch import nn

from benchmarks.speed.engine import NOT_TRAINED, engine, preloaded, step_of
from benchmarks.speed.workers import B32
from benchmarks.timer import Call, clock, machine, random_bert
from multicse.commands import api
from multicse.data.offline.sentences import wiki_sentences
from multicse.data.stream import Reader
from multicse.data.streams.image import ImageStream
from multicse.data.streams.inputs import ImageInput
from multicse.data.window import Chunk, WindowReader
from multicse.models import packing
from multicse.models.towers import ViTTower
from multicse.pipelines import cyclip, parts, simcse, visualcse
from multicse.trainers.engine.loop import Engine
from multicse.trainers.nonling import ImageConfig
from multicse.trainers.recipe import EncoderConfig, Recipe

Row = dict[str, Any]
PEAKS = {
    **{"B200": 2250e12, "H200": 989e12, "GH200": 989e12, "H100 PCIe": 756e12, "H100 NVL": 835e12, "H100": 989e12},
    **{"A100": 312e12, "L40S": 362e12, "L40": 181e12, "L4": 121e12, "A10G": 70e12, "A10": 125e12, "RTX 4090": 165e12},
}
"""Dense bf16 operations per second by part of the card's name, from NVIDIA's data sheets (half of figures "with sparsity");
A10G from AWS, G5 instances."""
VIEWS, TOKENS = 2, 77
GPUS = min(1, torch.cuda.device_count())
ROOT = Path(__file__).resolve().parents[2]
SHARED = "/dev/shm" if os.path.isdir("/dev/shm") else None
LONG: dict[str, Any] = {"run.max_steps": 100_000, "run.epochs": 1e6}
"""More steps than are measured."""
HERE: dict[str, Any] = {"run.num_workers": 0, "run.gpus_per_worker": GPUS, "run.precision": "bf16", **NOT_TRAINED}


class Size(NamedTuple):
    """Sizes of the models and batches; the defaults are the papers' models."""

    layers: int = 12
    width: int = 768
    texts: int = 512
    caption_width: int = 512
    image: int = 224
    patch: int = 32
    pairs: int = 256
    images: int = 128
    image_patch: int = 16
    processes: int = max(1, (os.cpu_count() or 2) - 3)
    seconds: float = 12.0
    steps: int = 2000


def transformer(layers: int, width: int, lengths: Iterable[int]) -> float:
    """Return the operations of a training step (three forward passes) without embeddings."""
    return sum(3.0 * layers * (24 * length * width**2 + 4 * length**2 * width) for length in lengths)


def vision(size: Size, patch: int) -> float:
    """Return the operations of a training step of a vision transformer for one image."""
    patches = (size.image // patch) ** 2
    return transformer(size.layers, size.width, [patches + 1]) + 6.0 * patches * 3 * patch**2 * size.width


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
    with made.streams as readers:
        next(readers[stream])
        return timed(partial(next, readers[stream]), batches) / batches


_READER: WindowReader


def _open(reader: WindowReader, folder: str) -> None:
    global _READER
    _READER, tempfile.tempdir = reader, folder
    torch.set_num_threads(1)


def _read(task: Any) -> list[str]:
    """Write the chunks of a task to files in shared memory and return their names."""
    files = []
    for chunk in _READER.chunks(task):
        block = chunk.to_block()
        with tempfile.NamedTemporaryFile(delete=False) as file, pa.ipc.new_file(file, block.schema) as writer:
            writer.write_table(block)
        files.append(file.name)
    return files


def decoded(reader: Reader, plan: Iterator[Any], processes: int) -> Iterator[Chunk]:
    """Yield the chunks of an endless plan, as Ray Data's tasks do: in order, ahead, through shared memory."""
    with (
        tempfile.TemporaryDirectory(dir=SHARED) as folder,
        multiprocessing.get_context("spawn").Pool(processes, _open, (reader._reader, folder)) as pool,
    ):
        running: collections.deque[Any] = collections.deque()
        for task in plan:
            running.append(pool.apply_async(_read, (task,)))
            if len(running) > 2 * processes:
                for name in running.popleft().get():
                    yield Chunk.from_block(pa.ipc.open_file(pa.memory_map(name)).read_all())
                    os.unlink(name)


def fed(made: Engine, samples: int, size: Size) -> Row:
    """Return the samples per second of steps whose batches processes decode, and the share of the time spent waiting."""
    made.host.inline = False
    with patch.object(Reader, "_through_ray", partial_method(decoded, size.processes)), made.streams as readers:
        made.host.inline = True
        step = step_of(made, readers)
        timed(step, 3)
        before = sum(reader.wait_seconds for reader in readers.values())
        steps = max(3, math.ceil(size.seconds / max(timed(step, 2) / 2, 1e-3)))
        wall = timed(step, steps)
        waited = sum(reader.wait_seconds for reader in readers.values()) - before
    return {f"fed by {size.processes} processes, samples/s": samples * steps / wall, "waiting": waited / wall}


def partial_method(function: Callable[..., Any], *last: Any) -> Callable[..., Any]:
    """Return a function that, as a method, adds arguments at the end."""
    return lambda self, *args: function(self, *args, *last)


def measured(made: Engine, samples: int, operations: float, size: Size) -> Row:
    """Return the row of a model: samples per second, operations per second, and how the GPU spends its time."""
    step = step_of(made, preloaded(made))
    ours = rate(step, samples, size.seconds)
    where, longest = profiled(step)
    top = peak(card())
    row: Row = {"samples/s": ours, "TFLOP/s": ours * operations / 1e12}
    row |= {"share of the peak": top and ours * operations / top, **where, "memory, GB": memory()}
    return row | {"longest kernels": longest}


def card() -> str:
    """Return the name of the GPU."""
    return torch.cuda.get_device_name() if GPUS else "no GPU"


def memory() -> float:
    """Return the largest memory of tensors on the GPU in gigabytes."""
    return torch.cuda.max_memory_allocated() / 1e9 if GPUS else 0.0


def per_text(made: Engine) -> float:
    """Return the operations of a training step of SimCSE for one sentence, without padding."""
    rows = made.method.sentence_encoder.tokenize(wiki_sentences()[:4096], max_length=32)["attention_mask"]
    config: Any = made.recipe.encoder.read()
    return VIEWS * transformer(config.num_hidden_layers, config.hidden_size, map(int, rows.sum(1))) / len(rows)


def text_recipe(place: Path, size: Size) -> Recipe:
    """Return the recipe of SimCSE on sentences of Wikipedia."""
    bert = EncoderConfig(path=random_bert(f"{size.layers}x{size.width}", str(place / "bert")), pooling="pooler")
    changes = {"encoder": bert, "streams.text.batch_size": size.texts, "run.output_dir": f"{place}/text"}
    return api.write_inputs(simcse.demo().changed({**changes, **HERE}))


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


def noise(folder: Path, side: int, count: int, members: Callable[[int], dict[str, bytes]]) -> None:
    """Write a shard of JPEG images of noise, with the other members of a sample."""
    rng = np.random.default_rng(0)
    folder.mkdir()
    with tarfile.open(folder / "train-000000.tar", "w") as tar:
        for sample in range(count):
            image = io.BytesIO()
            Image.fromarray(rng.integers(0, 256, (side, side, 3), np.uint8)).save(image, "JPEG")
            for ending, data in {"jpg": image.getvalue(), **members(sample)}.items():
                entry = tarfile.TarInfo(f"{sample:06}.{ending}")
                entry.size = len(data)
                tar.addfile(entry, io.BytesIO(data))


def pairs_recipe(place: Path, size: Size) -> Recipe:
    """Return the recipe of CLIP on images of noise, with captions of the maximum length."""
    from transformers import AutoTokenizer, CLIPTextConfig

    folder, shards = place / "clip", place / "pairs"
    (tokenizer := AutoTokenizer.from_pretrained(parts.SMALL_ENCODER)).save_pretrained(folder)
    text = {"hidden_size": size.caption_width, "intermediate_size": 4 * size.caption_width, "num_hidden_layers": size.layers}
    text |= {"num_attention_heads": max(1, size.caption_width // 64), "vocab_size": 49408, "max_position_embeddings": TOKENS}
    text |= {"bos_token_id": tokenizer.cls_token_id, "eos_token_id": tokenizer.sep_token_id}
    CLIPTextConfig(**text, pad_token_id=tokenizer.pad_token_id).save_pretrained(folder)
    noise(shards, size.image, 2 * size.pairs, lambda sample: {"txt": f"{sample} {'and so on ' * (TOKENS // 3)}".encode()})
    given, heads = ImageInput(size=size.image), max(1, size.width // 64)
    tower = ViTTower(input=given, patch_size=size.patch, width=size.width, layers=size.layers, heads=heads)
    changes = {"method.tower": tower, "method.embed_dim": size.caption_width, "streams.pairs.input": given}
    changes |= {
        "encoder": EncoderConfig(path=str(folder), scratch=True, pooling="lasttoken"),
        "streams.pairs.shards": str(shards),
    }
    changes |= {"streams.pairs.batch_size": size.pairs, **LONG, "evaluation.data": None}
    return api.write_inputs(cyclip.model("clip").changed({**changes, "run.output_dir": f"{place}/images", **HERE}))


def image_recipe(place: Path, size: Size) -> Recipe:
    """Return the recipe of VisualCSE with images of noise in ten classes."""
    noise(place / "noise", size.image, 2 * size.images, lambda sample: {"cls": str(sample % 10).encode()})
    stream = ImageStream(shards=str(place / "noise"), batch_size=size.images, size=size.image, label="cls")
    text = text_recipe(place, size)
    return api.write_inputs(
        visualcse.demo().changed(
            {
                **{"encoder": text.encoder, "streams.text": text.streams["text"], "streams.image": stream},
                **{"method.image": ImageConfig(image_size=size.image, patch_size=size.image_patch), **LONG},
                **{"run.output_dir": f"{place}/visual", **HERE},
            }
        )
    )


def measure_text(place: Path, size: Size, data: Path | None) -> Iterator[Row]:
    """SimCSE, and sentence-transformers with the same BERT."""
    from transformers.utils import is_flash_attn_2_available

    made = engine(text_recipe(place, size))
    attention = "flash_attention_2" if is_flash_attn_2_available() else "sdpa"
    reader = reading(made, "text")
    row: Row = {"model": "SimCSE, BERT-base", "batch": size.texts} | measured(made, size.texts, per_text(made), size)
    row["one reader / step"] = reader * row["samples/s"] / size.texts
    other = rate(theirs(place, size, attention), size.texts, size.seconds)
    row |= {"against": f"sentence-transformers, {attention}", "theirs, samples/s": other}
    yield row | {"ratio": row["samples/s"] / other}


def measure_pairs(place: Path, size: Size, data: Path | None) -> Iterator[Row]:
    """CLIP ViT-B/32, and the published throughput of open_clip."""
    made = engine(pairs_recipe(place, size))
    operations = vision(size, size.patch) + transformer(size.layers, size.caption_width, [TOKENS])
    reader, other = reading(made, "pairs"), B32.samples / B32.seconds
    row: Row = {"model": "CLIP ViT-B/32", "batch": size.pairs} | measured(made, size.pairs, operations, size)
    row["one reader / step"] = reader * row["samples/s"] / size.pairs
    row |= {"against": f"open_clip, published: {B32.model}", "theirs, samples/s": other, "ratio": row["samples/s"] / other}
    yield row | fed(made, size.pairs, size)


def measure_image(place: Path, size: Size, data: Path | None) -> Iterator[Row]:
    """VisualCSE: a sample is a sentence or an image, and an image has two views."""
    made = engine(image_recipe(place, size))
    samples = size.texts + size.images
    operations = (size.texts * per_text(made) + size.images * VIEWS * vision(size, size.image_patch)) / samples
    reader = reading(made, "image")
    row: Row = {"model": "VisualCSE, BERT-base", "batch": f"{size.texts} + {size.images}"}
    row |= measured(made, samples, operations, size)
    row["one reader / step"] = reader * row["samples/s"] / samples
    yield row | fed(made, samples, size)


def measure_compile(place: Path, size: Size, data: Path | None) -> Iterator[Row]:
    """SimCSE compiled or not, on texts that are packed, or padded as in models that cannot be packed."""
    recipe = text_recipe(place, size)
    for compiled, packed in itertools.product((False, True), repeat=2):
        torch.compiler.reset()
        made = engine(recipe.replace("run.compile", compiled))
        configs: list[Any] = [getattr(part, "config", None) for part in made.method.modules()]
        for config in configs:
            if not packed and getattr(config, "_attn_implementation", None) == packing.NAME:
                config._attn_implementation = "sdpa"
        step = step_of(made, preloaded(made))
        first = timed(step, 8)
        row: Row = {"run.compile": compiled, "texts": "packed" if packed else "padded", "first 8 steps, s": first}
        yield row | {"samples/s": rate(step, size.texts, size.seconds / 2)}


def measure_sharded(place: Path, size: Size, data: Path | None) -> Iterator[Row]:
    """SimCSE with plain and with sharded layers, in a process group of one rank."""
    backend, store = "nccl" if GPUS else "gloo", f"file://{place}/group"
    torch.distributed.init_process_group(backend, init_method=store, rank=0, world_size=1)
    recipe = text_recipe(place, size)
    for sharded in (False, True):
        if GPUS:
            torch.cuda.reset_peak_memory_stats()
        made = engine(recipe.replace("run.sharded", sharded))
        step = step_of(made, preloaded(made))
        yield {"run.sharded": sharded, "samples/s": rate(step, size.texts, size.seconds / 2), "memory, GB": memory()}
        del made, step
    torch.distributed.destroy_process_group()


def measure_train(place: Path, size: Size, data: Path | None) -> Iterator[Row]:
    """A whole run by the Python interface, on the CPU or GPU: sentences and STS-B from the folder `data`."""
    if data is None:
        yield {"skipped": "the folder of sentences and STS files was not given: --data"}
        return
    changes: dict[str, Any] = {"streams.text.shards": str(data / "text_unlabeled/wiki_combined.en.txt.gz")}
    changes |= {"evaluation.data": str(data / "sts"), "evaluation.select": "stsb-dev", "evaluation.final": ("stsb-test",)}
    changes |= {"evaluation.eval_steps": max(1, size.steps // 8), "run.max_steps": size.steps, "run.logging_steps": 100}
    changes |= {"run.epochs": 100, "run.report_to": "none"}
    for precision in ("fp32", "bf16"):
        recipe = simcse.demo().changed({**HERE, **changes, "run.precision": precision})
        result = api.train(recipe.replace("run.output_dir", f"{place}/{precision}"))
        (task,) = result.scores
        found = {when: scores[task]["spearman"] for when, scores in (("before", result.before), ("after", result.scores))}
        took = result.summary["train_seconds"] - result.summary["evaluation_seconds"]
        row = {"precision": precision, "steps": result.summary["steps"], "task": task, **found}
        yield row | {"best step": result.summary["best_step"], "steps/s": result.summary["steps"] / took}


def run_tests(place: Path, size: Size, data: Path | None) -> Iterator[Row]:
    """Run the tests that compare CUDA with the CPU; what they print goes to the log."""
    command = [sys.executable, "-m", "pytest", "-q", "-m", "gpu", "-n", "4", "--tb=short", "--durations=10", "tests/gpu"]
    subprocess.run([*command, f"--junitxml={place}/tests.xml"], cwd=ROOT)
    suite = ElementTree.parse(place / "tests.xml").getroot()[0]
    row: Row = {name: int(suite.attrib[name]) for name in ("tests", "failures", "errors", "skipped")}
    yield row | {"which failed": ", ".join(c.attrib["name"] for c in suite if c.find("failure") is not None)}


Measure = Callable[[Path, Size, Path | None], Iterator[Row]]
PARTS: dict[str, tuple[Measure, float]] = {
    "tests": (run_tests, 150),
    "text": (measure_text, 90),
    "pairs": (measure_pairs, 120),
    "image": (measure_image, 120),
    "compile": (measure_compile, 200),
    "sharded": (measure_sharded, 60),
    "train": (measure_train, 200),
}
"""Function and most seconds of each part."""
Part = Literal["tests", "text", "pairs", "image", "compile", "sharded", "train"]


def run_part(name: str, size: Size, data: Path | None, file: Path) -> None:
    """Run a part in this process, and write its rows to a file as JSON, after each of them; the last may be an error."""
    rows: list[Row] = []
    with tempfile.TemporaryDirectory() as place, contextlib.chdir(place):
        try:
            for row in PARTS[name][0](Path(place), size, data):
                rows.append(row)
                file.write_text(json.dumps(rows))
        except Exception as error:
            traceback.print_exc()
            file.write_text(json.dumps([*rows, {"error": f"{type(error).__name__}: {error}"[:500]}]))


def table(rows: list[Row]) -> str:
    """Return rows as a table in Markdown."""
    columns = list(dict.fromkeys(name for row in rows for name in row))
    lines = [f"| {' | '.join(columns)} |", "|---" * len(columns) + "|"]
    for row in rows:
        values = (row.get(name, "") for name in columns)
        cells = (f"{value:.3g}" if isinstance(value, float) and value < 1000 else value for value in values)
        lines.append(f"| {' | '.join(f'{cell:,.0f}' if isinstance(cell, float) else str(cell) for cell in cells)} |")
    return "\n".join(lines)


def measure(chosen: Iterable[str], size: Size, out: Path, data: Path | None = None) -> dict[str, Any]:
    """Run parts one after the other, each in a process, and write the results after each of them.

    Args:
        chosen: Names in `PARTS`.
        size: Sizes.
        out: Folder for ``first_gpu_hour.json``, ``first_gpu_hour.md`` and a log per part.
        data: Folder with sentences and STS files for `train`.
    """
    out.mkdir(parents=True, exist_ok=True)
    found: dict[str, Any] = {"machine": machine(), "card": card(), "parts": {}}
    print(found["machine"], flush=True)
    for name in chosen:
        file, log = out.absolute() / f"{name}.json", out / f"{name}.log"
        code = "from benchmarks.speed.first_gpu_hour import *; run_part(sys.argv[1], Size(*json.loads(sys.argv[2])), "
        code += "Path(sys.argv[3]) if sys.argv[3] else None, Path(sys.argv[4]))"
        given = [name, json.dumps(size), str(data.absolute()) if data else "", str(file)]
        paths = os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH", "")]))
        start = time.monotonic()
        with open(log, "w") as to, contextlib.suppress(subprocess.TimeoutExpired):
            subprocess.run(
                [sys.executable, "-c", code, *given],
                env={**os.environ, "PYTHONPATH": paths},
                stdout=to,
                stderr=subprocess.STDOUT,
                timeout=PARTS[name][1],
            )
        rows = json.loads(file.read_text()) if file.exists() else [{"error": f"no result; its last words are in {log}"}]
        file.unlink(missing_ok=True)
        found["parts"][name] = {"seconds": time.monotonic() - start, "rows": rows}
        text = f"{name} ({time.monotonic() - start:.0f} s)\n\n{table(rows)}\n"
        print(f"\n{text}", flush=True)
        (out / "first_gpu_hour.json").write_text(json.dumps(found, indent=2))
        with open(out / "first_gpu_hour.md", "w" if len(found["parts"]) == 1 else "a") as page:
            page.write(f"{found['machine']}\n\n{text}\n" if len(found["parts"]) == 1 else f"{text}\n")
    return found


def main(
    parts: tyro.conf.Positional[tuple[Part, ...]] = (),
    out: Path = Path("runs/first-gpu-hour"),
    data: Path | None = None,
) -> None:
    """Run all parts, or those given, and write ``first_gpu_hour.json``, ``first_gpu_hour.md`` and logs to a folder."""
    if GPUS:
        measure(parts or PARTS, Size(), out, data)
    else:
        print("No GPU found by torch; nothing is measured. Run this on a machine with a GPU and a CUDA build of torch")


if __name__ == "__main__":
    tyro.cli(main, description=__doc__)
