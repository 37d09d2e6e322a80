"""A tiny random encoder and tiny shards: what can be trained on in seconds."""

from __future__ import annotations

import io
import json
import tarfile
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any
from unittest import mock

import numpy as np
from PIL import Image

if TYPE_CHECKING:
    from multicse.trainers.recipe import Recipe

EXAMPLES = Path(__file__).resolve().parents[1] / "examples"
WORDS = ["the", "a", "cat", "dog", "house", "tree", "river", "runs", "sees", "likes", "old", "new", "red", "green", "near"]


def example(name: str) -> Any:
    """Return the module of a file of examples/, whose methods are registered."""
    from multicse.plugins import own_module

    return own_module(EXAMPLES / f"{name}.py")


def add(tar: tarfile.TarFile, name: str, data: bytes) -> None:
    info = tarfile.TarInfo(name)
    info.size = len(data)
    tar.addfile(info, io.BytesIO(data))


def write_tar(file: Path, members: Iterable[tuple[str, bytes]]) -> str:
    """A shard with these members, in a folder that is made; the folder."""
    file.parent.mkdir(parents=True, exist_ok=True)
    with tarfile.open(file, "w") as tar:
        for name, data in members:
            add(tar, name, data)
    return str(file.parent)


def write_text(folder: Path, counts: tuple[int, ...] = (50, 30)) -> str:
    rng = np.random.default_rng(0)
    for number, count in enumerate(counts):
        texts = ((f"{number}-{i:04d}.txt", " ".join(rng.choice(WORDS, 8)).encode()) for i in range(count))
        write_tar(folder / f"text-train-{number:06d}.tar", texts)
    return str(folder)


def labelled(kind: str, contents: Iterable[bytes]) -> Iterator[tuple[str, bytes]]:
    """Members with these contents, each of one of four classes in turn."""
    for i, content in enumerate(contents):
        yield from ((f"{i:04d}.{kind}", content), (f"{i:04d}.cls", str(i % 4).encode()))


def png(pixels: np.ndarray) -> bytes:
    data = io.BytesIO()
    Image.fromarray(pixels).save(data, "PNG")
    return data.getvalue()


def write_images(folder: Path, count: int = 48) -> str:
    rng = np.random.default_rng(1)
    pictures = (png(rng.integers(0, 255, (20, 20, 3), dtype=np.uint8)) for _ in range(count))
    return write_tar(folder / "image-train-000000.tar", labelled("png", pictures))


def sound(wave: np.ndarray, rate: int = 8000, kind: str = "wav", **options: Any) -> bytes:
    import soundfile

    data = io.BytesIO()
    soundfile.write(data, wave, rate, format=kind.upper(), **options)
    return data.getvalue()


def write_sounds(folder: Path, count: int = 32) -> str:
    rng = np.random.default_rng(2)
    sounds = (sound(rng.normal(0, 0.1, 2000).astype("float32")) for _ in range(count))
    return write_tar(folder / "audio-train-000000.tar", labelled("wav", sounds))


def write_encoder(folder: Path) -> str:
    from transformers import BertConfig, BertModel, PreTrainedTokenizerFast

    from multicse.models.fresh_bert import train_wordpiece

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


def in_processes(worker: Callable[..., None], folder: Path, *arguments: object, count: int = 2) -> None:
    """Run ``worker(rank, folder, *arguments)`` in processes of one gloo group that meets in the folder.

    They are forked from one that has imported torch, which takes seconds.
    """
    import torch.multiprocessing as mp

    mp.get_context("forkserver").set_forkserver_preload(["tests.conftest"])
    mp.start_processes(_member, (worker, str(folder), count, arguments), nprocs=count, start_method="forkserver")


def _member(rank: int, worker: Callable[..., None], folder: str, count: int, arguments: tuple[object, ...]) -> None:
    import torch
    import torch.distributed as dist

    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{folder}/store", rank=rank, world_size=count)
    worker(rank, folder, *arguments)
    dist.destroy_process_group()


class _Parsing(BaseException):
    """Raised in place of parsing."""


def call_of_tyro(call: Callable[[], object]) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Return the arguments with which a script calls tyro."""

    def parse(*arguments: Any, **settings: Any) -> None:
        raise _Parsing(arguments, settings)

    with mock.patch("tyro.cli", parse):
        try:
            call()
        except _Parsing as end:
            arguments, settings = end.args
            return arguments, settings
    raise AssertionError("nothing is parsed")


def journal(run: Path) -> list[dict[str, object]]:
    """Lines of a run's journal."""
    return [json.loads(line) for line in (run / "journal.jsonl").read_text().splitlines()]


def history(uri: str, run_id: str, key: str) -> list[tuple[int, float]]:
    """Step and value of a run's metric in MLflow."""
    from mlflow import MlflowClient

    return sorted((metric.step, metric.value) for metric in MlflowClient(uri).get_metric_history(run_id, key))


def four_steps(recipe: Recipe, folder: Path, changes: Mapping[str, Any]) -> Recipe:
    """Four steps of a recipe in this process on one thread, evaluated every second, with its output below a folder."""
    run = {"num_workers": 0, "threads": 1, "gpus_per_worker": 0, "logging_steps": 1, "epochs": 100.0, "max_steps": 4}
    settings = {f"run.{name}": value for name, value in run.items()}
    return recipe.changed({**settings, "run.output_dir": str(folder / "run"), "evaluation.eval_steps": 2, **changes})


def text_only(recipe: Recipe) -> Recipe:
    """The text of `conftest.recipe` alone, as SimCSE takes it, with nothing evaluated."""
    from multicse.trainers.simcse import SimCSEConfig

    content = recipe.model_dump() | {"method": SimCSEConfig(head="none")}
    content["streams"], content["optim"] = ({"text": content[part]["text"]} for part in ("streams", "optim"))
    content["evaluation"] |= {"select": None, "final": ()}
    return type(recipe).model_validate(content)
