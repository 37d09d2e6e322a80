"""Bad inputs, and the setting or the sample that each error names."""

from __future__ import annotations

import io
import json
import shutil
import struct
import tarfile
import zlib
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from data.shards import ShardSet
from data.stream import Reader
from data.streams.image import ImageStream
from data.streams.kinds import AnyStream
from data.streams.text import TextStream
from pipelines import cli, visualcse
from tests.small import add, write_images, write_sounds, write_text
from trainers.engine.preflight import check
from trainers.recipe import OptimConfig, Recipe


@dataclass
class Bench:
    """A recipe that works, a folder to break things in, and a cluster."""

    recipe: Recipe
    folder: Path
    cluster: dict[str, Any] = field(default_factory=lambda: {"cpus": 4.0, "gpus": 0.0, "nodes": 1})

    def set(self, path: str, value: Any) -> None:
        self.recipe = self.recipe.replace(path, value)

    def shards(self, stream: str, folder: Path | str) -> None:
        self.set(f"streams.{stream}.shards", str(folder))


def attempt(bench: Bench) -> None:
    """What a run does before its first step: the checks, then every sample of every stream, in this process."""
    check(bench.recipe, **bench.cluster)
    for name, config in bench.recipe.streams.items():
        shards = ShardSet.open(config.shards)
        whole = config.model_copy(update={"batch_size": shards.samples})
        reader = Reader(whole, name, shards, seed=0, rank=0, world_size=1, tokenize=tokens, start=0, batches=1, inline=True)
        try:
            next(reader)
        finally:
            reader.close()


def tokens(texts: list[str]) -> dict[str, torch.Tensor]:
    return {"input_ids": torch.ones(len(texts), 1), "attention_mask": torch.ones(len(texts), 1)}


# ---- how to make it wrong


def setting(path: str, value: Any) -> Callable[[Bench], None]:
    return lambda bench: bench.set(path, value)


def several(**values: Any) -> Callable[[Bench], None]:
    """Settings whose dots are written as two underscores."""

    def spoil(bench: Bench) -> None:
        for path, value in values.items():
            bench.set(path.replace("__", "."), value)

    return spoil


def cluster(**values: Any) -> Callable[[Bench], None]:
    return lambda bench: bench.cluster.update(values)


def recipe_name(bench: Bench) -> None:
    cli.parse(visualcse.RECIPES, "", ["bert-bse"])


def unknown_json_field(bench: Bench) -> None:
    Recipe.from_json(bench.recipe.to_json().replace('"patience"', '"patients"'))


def without(part: str, name: str) -> Callable[[Bench], None]:
    def spoil(bench: Bench) -> None:
        bench.set(part, {key: value for key, value in bench.recipe.model_dump()[part].items() if key != name})

    return spoil


def spare_stream(bench: Bench) -> None:
    streams: dict[str, AnyStream] = {**bench.recipe.streams, "video": ImageStream(shards="shards/video")}
    bench.set("streams", {name: stream.model_dump() for name, stream in streams.items()})


def spare_optimizer(bench: Bench) -> None:
    bench.set("optim", {**bench.recipe.model_dump()["optim"], "video": OptimConfig().model_dump()})


def pickled_encoder(bench: Bench) -> None:
    shutil.copytree(bench.recipe.encoder.path, bench.folder / "old")  # type: ignore[union-attr]
    (bench.folder / "old" / "model.safetensors").rename(bench.folder / "old" / "pytorch_model.bin")
    bench.set("encoder.path", str(bench.folder / "old"))


def encoder_of_another_kind(bench: Bench) -> None:
    from transformers import GPT2Config

    GPT2Config(n_embd=16).save_pretrained(bench.folder / "gpt2")
    bench.set("encoder.path", str(bench.folder / "gpt2"))


def wider_vit(bench: Bench) -> None:
    from transformers import ViTConfig

    ViTConfig(hidden_size=32, image_size=16, patch_size=8).save_pretrained(bench.folder / "vit")
    bench.set("method.image.path", str(bench.folder / "vit"))


def empty_folder(bench: Bench) -> None:
    (bench.folder / "nothing").mkdir()
    bench.shards("text", bench.folder / "nothing")


def gap_in_range(bench: Bench) -> None:
    write_text(bench.folder / "text", (20, 20))
    bench.shards("text", bench.folder / "text" / "text-train-{000000..000002}.tar")


def truncated_tar(bench: Bench) -> None:
    file = Path(write_images(bench.folder / "image")) / "image-train-000000.tar"
    file.write_bytes(file.read_bytes()[: file.stat().st_size // 2])
    bench.shards("image", bench.folder / "image")


def compressed_tar(bench: Bench) -> None:
    import gzip

    file = Path(write_text(bench.folder / "text", (20,))) / "text-train-000000.tar"
    file.write_bytes(gzip.compress(file.read_bytes()))
    bench.shards("text", bench.folder / "text")


def stale_manifest(bench: Bench) -> None:
    write_text(bench.folder / "text", (20,))
    entry = {"url": "text-train-000000.tar", "nsamples": 17}
    (bench.folder / "text" / "dataset.json").write_text(json.dumps({"shardlist": [entry]}))
    bench.shards("text", bench.folder / "text")


def few_samples(bench: Bench) -> None:
    bench.shards("text", write_text(bench.folder / "text", (15,)))


def no_classes_in_shards(bench: Bench) -> None:
    with tarfile.open(bench.folder / "image.tar", "w") as tar:
        for i in range(20):
            add(tar, f"{i}.png", b"")
    bench.shards("image", bench.folder / "image.tar")


def one_bad(stream: str, **fields: bytes) -> Callable[[Bench], None]:
    """Good shards with one more sample, `spoilt`, of these fields."""

    def spoil(bench: Bench) -> None:
        folder = bench.folder / stream
        writers: dict[str, Callable[[Path], str]] = {"text": write_text, "image": write_images, "audio": write_sounds}
        writers[stream](folder)
        with tarfile.open(sorted(folder.glob("*.tar"))[-1], "a") as tar:
            for extension, content in fields.items():
                add(tar, f"spoilt.{extension}", content)
        bench.shards(stream, folder)

    return spoil


def bomb() -> bytes:
    """A PNG of a few bytes whose header says 60,000 x 60,000 pixels."""

    def chunk(kind: bytes, data: bytes) -> bytes:
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))

    header = chunk(b"IHDR", struct.pack(">IIBBBBB", 60_000, 60_000, 8, 2, 0, 0, 0))
    return b"\x89PNG\r\n\x1a\n" + header + chunk(b"IDAT", zlib.compress(b"\0" * 100)) + chunk(b"IEND", b"")


def picture() -> bytes:
    data = io.BytesIO()
    Image.new("RGB", (20, 20)).save(data, "PNG")
    return data.getvalue()


def wav(values: np.ndarray) -> bytes:
    import soundfile

    data = io.BytesIO()
    soundfile.write(data, values, 8000, format="WAV", subtype="FLOAT")
    return data.getvalue()


def too_many_skipped(bench: Bench) -> None:
    one_bad("text", txt=b"")(bench)
    bench.set("streams.text.on_bad_sample", "skip")


def no_pairs(bench: Bench) -> None:
    folder = bench.folder / "nli"
    folder.mkdir()
    with tarfile.open(folder / "nli-train-000000.tar", "w") as tar:
        for i in range(18):
            record = {"sent0": f"a {i}", "sent1": f"b {i}"} if i else {"sent0": "alone"}
            add(tar, f"{i}.json", json.dumps(record).encode())
    stream = TextStream(shards=str(folder), batch_size=16, columns=("sent0", "sent1"))
    bench.set("method.text.supervised", True)
    bench.set("streams.text", stream.model_dump())


# ---- the table: how to make it wrong, what the message must name

TABLE: list[tuple[Callable[[Bench], None], str]] = [
    # settings
    (recipe_name, "bert-bse"),
    (setting("run.workrs", 2), "run.workers"),  # the nearest one
    (setting("optim.text.lr", "fast"), "optim.text.lr"),
    (setting("optim.text.lr", -1), "optim.text.lr"),
    (setting("method.image.loss", "triplet"), "method.image.loss"),
    (setting("streams.image.flip", 2), "streams.image.flip"),
    (unknown_json_field, "evaluation.patients"),
    (without("streams", "image"), "streams.image"),
    (spare_stream, "streams.video"),
    (without("optim", "audio"), "optim.audio"),
    (spare_optimizer, "optim.video"),
    (setting("lead", "txt"), "lead='txt'"),
    (setting("run.workers", 3), "streams.text.batch_size=16"),
    (setting("streams.image.batch_size", 1), "streams.image.batch_size=1"),
    (setting("evaluation.select", "lee"), "evaluation.select"),
    (setting("evaluation.watch", ["lee-geometry"]), "'lee-geometry'"),
    (setting("evaluation.final", ["sts-12"]), "'sts-12'"),
    (setting("evaluation.select", "stsb-dev"), "evaluation.data"),
    (several(evaluation__data="/nowhere", evaluation__final=["sts12"]), "/nowhere"),
    (setting("encoder.path", "/nowhere/model"), "encoder.path='/nowhere/model'"),
    (pickled_encoder, "pytorch_model.bin"),
    (encoder_of_another_kind, "encoder.path"),
    (wider_vit, "method.image.path"),
    (setting("method.image.path", "auto"), "method.image.path"),
    (setting("method.image.patch_size", 5), "method.image.patch_size"),
    (setting("streams.image.size", 24), "streams.image.size=24"),
    (setting("streams.audio.frames", 31), "streams.audio.frames=31"),
    (several(streams__audio__bins=128, method__audio__bins=128), "streams.audio.bins=128"),
    (setting("streams.audio.mask_bins", 48), "streams.audio.mask_bins=48"),
    (setting("streams.image.label", None), "streams.image.label"),
    (setting("streams.text.columns", ["a", "b"]), "streams.text.columns"),
    (several(run__workers=1, run__precision="fp16"), "run.precision='fp16'"),
    (setting("run.tracking_uri", "mlruns"), "run.tracking_uri='mlruns'"),
    # resources
    (several(run__workers=8, streams__text__batch_size=64), "run.workers=8"),
    (several(run__workers=1, run__gpus_per_worker=1), "run.gpus_per_worker=1"),
    (cluster(nodes=2), "run.storage=None"),
    # shards
    (setting("streams.text.shards", "/nowhere/text"), "streams.text.shards"),
    (empty_folder, "streams.text.shards"),
    (gap_in_range, "text-train-000002.tar"),
    (setting("streams.text.shards", "s4://b/x.tar"), "s4://b"),
    (lambda b: b.shards("text", f"{b.recipe.streams['text'].shards}::" * 2), "streams.text.shards"),
    (compressed_tar, "text-train-000000.tar"),
    (truncated_tar, "image-train-000000/"),
    (stale_manifest, "dataset.json"),
    (few_samples, "streams.text.batch_size"),
    (lambda b: b.shards("text", b.recipe.streams["image"].shards), "streams.text.columns"),
    (no_classes_in_shards, "streams.image.label"),
    # samples
    *(
        (one_bad(stream, **fields), "spoilt")
        for stream, fields in (
            ("image", {"png": b"no picture", "cls": b"0"}),
            ("image", {"png": bomb(), "cls": b"0"}),
            ("image", {"png": picture()}),  # no class
            ("audio", {"wav": wav(np.ones(900)), "cls": b"dog"}),
            ("audio", {"wav": wav(np.full(900, np.nan)), "cls": b"0"}),
            ("audio", {"wav": wav(np.zeros(0)), "cls": b"0"}),
            ("text", {"txt": b" \n"}),
            ("text", {"json": b'{"text": "a"}'}),
            ("text", {"txt": b"\xff\xfe\xff"}),
        )
    ),
    (no_pairs, "sent1"),
    (too_many_skipped, "streams.text.max_skipped_share"),
]


@pytest.mark.parametrize(("spoil", "named"), TABLE, ids=[f"{row}-{named}" for row, (_, named) in enumerate(TABLE)])
def test_an_error_names_what_is_wrong(spoil: Callable[[Bench], None], named: str, recipe: Recipe, tmp_path: Path) -> None:
    bench = Bench(recipe, tmp_path)
    with pytest.raises(ValueError) as error:
        spoil(bench)
        attempt(bench)
    assert named in str(error.value)


def test_the_unspoilt_recipe_passes(recipe: Recipe, tmp_path: Path) -> None:
    attempt(Bench(recipe, tmp_path))


def test_local_tracking_on_two_nodes(recipe: Recipe) -> None:
    shared = recipe.replace("run.storage", "s3://bucket/runs")
    with pytest.raises(ValueError, match=r"run\.tracking_uri"):
        check(shared, cpus=4, nodes=2)
    check(shared.replace("run.tracking_uri", "http://server:5000"), cpus=4, nodes=2)
