"""Tiny worlds: an encoder of random weights, shards, recipes and engines, which train in seconds."""

from __future__ import annotations

import io
import json
import tarfile
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import pytest
import torch
from PIL import Image

from multicse.commands.registry import NAMES, load
from multicse.data.streams.inputs import ImageInput
from multicse.models.towers import ViTTower
from multicse.trainers.engine.hosts import Host
from multicse.trainers.engine.loop import Engine
from multicse.trainers.engine.run import store_of
from multicse.trainers.nonling import AudioConfig, ImageConfig
from multicse.trainers.recipe import Recipe

EXAMPLES = Path(__file__).resolve().parents[1] / "examples"
WORDS = ["the", "a", "cat", "dog", "house", "tree", "river", "runs", "sees", "likes", "old", "new", "red", "green", "near"]

IMAGE = ImageConfig(image_size=8, patch_size=4)
AUDIO = AudioConfig(frames=12, bins=8, patch_size=4)
TOWER = ViTTower(input=ImageInput(size=8), patch_size=4, width=8, layers=2, heads=2)
"""Patches and a tower for the batches of `tests.models.tiny_encoder`."""


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


def in_processes(worker: Callable[..., Any], folder: Path, *arguments: object, count: int = 2) -> list[Any]:
    """Run ``worker(rank, folder, *arguments)`` in processes of one gloo group, which are its hosts' ranks, too.

    They are forked from one that has imported torch, which takes seconds. Returns what each of them returns, as JSON.
    """
    import torch.multiprocessing as mp

    mp.get_context("forkserver").set_forkserver_preload(["tests.conftest"])
    (folder / "store").unlink(missing_ok=True)  # in which they meet
    mp.start_processes(_member, (worker, str(folder), count, arguments), nprocs=count, start_method="forkserver")
    return [json.loads((folder / f"found-{rank}.json").read_text()) for rank in range(count)]


def _member(rank: int, worker: Callable[..., Any], folder: str, count: int, arguments: tuple[object, ...]) -> None:
    import torch.distributed as dist

    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{folder}/store", rank=rank, world_size=count)
    Host.rank, Host.world_size = rank, count
    Path(folder, f"found-{rank}.json").write_text(json.dumps(worker(rank, folder, *arguments)))
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


FIRST = ("simcse", "visualcse", "audiocse", "sgbert", "mocoutrl", "gclsr")
"""Recipes with the fastest steps, which test what they share with others."""


def recipes(folder: Path, *examples: str) -> dict[str, Recipe]:
    """The smoke recipes of all papers, and of these examples, on tiny models and shards; three steps in this process."""
    write_encoder(folder / "encoder")
    write_text(folder / "text")
    write_images(folder / "image")
    write_sounds(folder / "audio")
    rng = np.random.default_rng(3)
    captions = [" ".join(rng.choice(WORDS, 6)) for _ in range(32)]
    pictures = [png(rng.integers(0, 255, (40, 40, 3), dtype=np.uint8)) for _ in captions]
    clips = [sound(rng.normal(0, 0.1, 16000).astype("float32"), 16000) for _ in captions]
    for kind, items in (("png", pictures), ("wav", clips)):
        members = (
            (f"{n:04d}.{extension}", content)
            for n, (item, text) in enumerate(zip(items, captions, strict=True))
            for extension, content in ((kind, item), ("txt", text.encode()), ("cls", str(n % 3).encode()))
        )
        write_tar(folder / kind / "pairs-000000.tar", members)
    rows = [f"{a}\t{b}\t{n}" for n, (a, b) in enumerate(zip(captions[::2], captions[1::2], strict=True))]
    (folder / "dev.tsv").write_text("\n".join(["sentence1\tsentence2\tscore", *rows]))
    vectors = [" ".join([word, *map(str, rng.normal(size=8).round(3))]) for word in WORDS]
    (folder / "words.vec").write_text("\n".join(vectors))
    names = [*FIRST, *(name for name in NAMES if name not in FIRST)]
    modules = {**{name: load(name) for name in names}, **{name: example(name) for name in examples}}
    return {name: _small(made.RECIPES["smoke"](), folder) for name, made in modules.items() if "smoke" in made.RECIPES}


def _small(recipe: Recipe, folder: Path) -> Recipe:
    kinds = {"image_text": "png", "audio_text": "wav", "image": "image", "audio": "audio"}
    changes: dict[str, Any] = {
        **{f"run.{name}": 1 for name in ("threads", "logging_steps")},
        **{"run.num_workers": 0, "run.max_steps": 3, "run.output_dir": str(folder / "run")},
        **{"run.tracking_uri": f"sqlite:///{folder}/mlflow.db"},
        **{"evaluation.final": (), "evaluation.watch": (), "evaluation.eval_steps": 2},
        "evaluation.select": f"pairs:{folder}/dev.tsv",
    }
    for name, stream in recipe.streams.items():
        shards = folder / kinds.get(stream.kind, "text")
        small: dict[str, Any] = {"batch_size": 8, "window": 32, "shards": str(shards)}
        small |= {"max_length": 16} if stream.kind.endswith("_text") else {}
        changes |= {f"streams.{name}.{part}": value for part, value in small.items()}
    if recipe.encoder.kind == "transformer":
        changes["encoder.path"] = str(folder / "encoder")
    else:
        changes |= {"encoder.vectors": str(folder / "words.vec"), "encoder.filters": 4}
    known = recipe.flat()
    sizes = {"embed_dim": 8, "tower.width": 16, "tower.layers": 1, "tower.heads": 2}
    sizes |= {"head_width": 16, "width": 16, "bottleneck": 8}
    changes |= {f"method.{name}": value for name, value in sizes.items() if f"method.{name}" in known}
    return recipe.changed({**changes, **({"method.fresh": None} if "method.fresh.width" in known else {})})


class Memory:
    """Tracker that stores the metrics."""

    def __init__(self) -> None:
        self.values: dict[int, dict[str, float]] = {}

    def log(self, step: int, metrics: dict[str, float]) -> None:
        self.values.setdefault(step, {}).update(metrics)

    def progress(self, line: dict[str, Any]) -> None:
        assert line["step"] <= line["steps"]

    def resume(self, checkpoint: Path) -> None: ...

    def store(self, checkpoint: Path) -> None: ...

    def losses(self) -> dict[int, dict[str, float]]:
        return {
            step: {name: v for name, v in values.items() if name.startswith(("train/", "eval/", "best/"))}
            for step, values in self.values.items()
        }


def engine(recipe: Recipe, memory: Any) -> Engine:
    host = Host(store_of(recipe))
    host.device = torch.device("cpu")
    return Engine(recipe, host, memory)


def run(recipe: Recipe) -> tuple[Memory, dict[str, Any], Engine]:
    memory = Memory()
    made = engine(recipe, memory)
    return memory, made.train(), made


def interrupted(recipe: Recipe) -> None:
    """Run until the first checkpoint is written."""
    made = engine(recipe, Memory())
    save = made._save

    def stop_after_saving(last: bool) -> None:
        save(last=True)
        raise KeyboardInterrupt

    made._save = stop_after_saving  # type: ignore[method-assign]
    with pytest.raises(KeyboardInterrupt):
        made.train()


def same_weights(one: torch.nn.Module, other: torch.nn.Module) -> None:
    for name, tensor in one.state_dict().items():
        assert torch.equal(tensor, other.state_dict()[name]), name


Run = tuple[Memory, dict[str, Any], Engine]


def resumed_exactly(recipe: Recipe, folder: Path) -> tuple[Run, Run]:
    """Train at once, and with a death after the first checkpoint: losses, scores and all tensors are equal after it."""
    whole = run(recipe.replace("run.output_dir", str(folder / "whole")))
    half = recipe.replace("run.output_dir", str(folder / "half"))
    interrupted(half)
    resumed = run(half)
    expected, found = whole[0].losses(), resumed[0].losses()
    assert found and 1 not in found and found == {step: expected[step] for step in expected if step >= min(found)}
    same_weights(whole[2].method, resumed[2].method)
    same_weights(whole[2].chosen, resumed[2].chosen)
    return whole, resumed
