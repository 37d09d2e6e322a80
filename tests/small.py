"""A tiny random encoder and tiny shards: what can be trained on in seconds."""

from __future__ import annotations

import io
import json
import tarfile
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from PIL import Image

if TYPE_CHECKING:
    from trainers.recipe import Recipe

WORDS = ["the", "a", "cat", "dog", "house", "tree", "river", "runs", "sees", "likes", "old", "new", "red", "green", "near"]


def add(tar: tarfile.TarFile, name: str, data: bytes) -> None:
    info = tarfile.TarInfo(name)
    info.size = len(data)
    tar.addfile(info, io.BytesIO(data))


def write_text(folder: Path, counts: tuple[int, ...] = (50, 30)) -> str:
    folder.mkdir(parents=True, exist_ok=True)
    rng = np.random.default_rng(0)
    for number, count in enumerate(counts):
        with tarfile.open(folder / f"text-train-{number:06d}.tar", "w") as tar:
            for i in range(count):
                add(tar, f"{number}-{i:04d}.txt", " ".join(rng.choice(WORDS, 8)).encode())
    return str(folder)


def write_images(folder: Path, count: int = 48) -> str:
    folder.mkdir(parents=True, exist_ok=True)
    rng = np.random.default_rng(1)
    with tarfile.open(folder / "image-train-000000.tar", "w") as tar:
        for i in range(count):
            data = io.BytesIO()
            Image.fromarray(rng.integers(0, 255, (20, 20, 3), dtype=np.uint8)).save(data, "PNG")
            add(tar, f"{i:04d}.png", data.getvalue())
            add(tar, f"{i:04d}.cls", str(i % 4).encode())
    return str(folder)


def write_sounds(folder: Path, count: int = 32) -> str:
    import soundfile

    folder.mkdir(parents=True, exist_ok=True)
    rng = np.random.default_rng(2)
    with tarfile.open(folder / "audio-train-000000.tar", "w") as tar:
        for i in range(count):
            data = io.BytesIO()
            soundfile.write(data, rng.normal(0, 0.1, 2000).astype("float32"), 8000, format="WAV")
            add(tar, f"{i:04d}.wav", data.getvalue())
            add(tar, f"{i:04d}.cls", str(i % 4).encode())
    return str(folder)


def write_encoder(folder: Path) -> str:
    from transformers import BertConfig, BertModel, PreTrainedTokenizerFast

    from models.fresh_bert import train_wordpiece

    tokenizer: PreTrainedTokenizerFast = train_wordpiece([" ".join(WORDS)] * 5, vocab_size=120, lowercase=True)
    import torch

    torch.manual_seed(0)
    config = BertConfig(
        vocab_size=len(tokenizer),
        hidden_size=16,
        num_hidden_layers=2,
        num_attention_heads=2,
        intermediate_size=32,
        max_position_embeddings=64,
    )
    BertModel(config, add_pooling_layer=False).save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return str(folder)


def in_processes(worker: Callable[..., None], *arguments: object, count: int = 2) -> None:
    """Run ``worker(rank, *arguments)`` in processes forked from one that has imported torch, which takes seconds."""
    import torch.multiprocessing as mp

    mp.get_context("forkserver").set_forkserver_preload(["tests.conftest"])
    mp.start_processes(worker, arguments, nprocs=count, start_method="forkserver")


def journal(run: Path) -> list[dict[str, object]]:
    """Lines of a run's journal."""
    return [json.loads(line) for line in (run / "journal.jsonl").read_text().splitlines()]


def text_only(recipe: Recipe) -> Recipe:
    """The text of `conftest.recipe` alone, as SimCSE takes it, with nothing evaluated."""
    from trainers.simcse import SimCSEConfig

    content = recipe.model_dump() | {"method": SimCSEConfig(head="none")}
    content["streams"], content["optim"] = ({"text": content[part]["text"]} for part in ("streams", "optim"))
    content["evaluation"] |= {"select": None, "final": ()}
    return type(recipe).model_validate(content)
