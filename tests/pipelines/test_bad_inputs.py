"""Bad inputs and what each is told: the setting or the sample, what was given, and what to do about it."""

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


# ---- the table: name, how to make it wrong, words that the message must hold

CONFIGURATION = [
    ("a recipe that does not exist", recipe_name, ["'bert-bse'", "did you mean 'bert-base'"]),
    ("a misspelt option", setting("run.workrs", 2), ["'run.workrs'", "did you mean", "run.workers"]),
    ("a word for a number", setting("optim.text.lr", "fast"), ["optim.text.lr", "valid number", "'fast'"]),
    ("a negative rate", setting("optim.text.lr", -1), ["optim.text.lr", "greater than or equal to 0", "-1"]),
    (
        "an unknown loss",
        setting("method.image.loss", "triplet"),
        ["method.image.loss: ", "'supcon' or 'simclr'", "'triplet'"],
    ),
    ("a probability of two", setting("streams.image.flip", 2), ["streams.image.flip: ", "less than or equal to 1", "2"]),
    ("an unknown field in recipe.json", unknown_json_field, ["evaluation.patients", "there is no such setting"]),
    ("a turn without its stream", without("streams", "image"), ["needs the stream 'image'", "Add streams.image"]),
    ("a stream without a turn", spare_stream, ["streams.video", "used by no turn", "remove it"]),
    ("a turn without optimizer", without("optim", "audio"), ["every turn has its optimizer", "add optim.audio"]),
    ("an optimizer without a turn", spare_optimizer, ["optim.video", "belongs to no turn", "Remove it"]),
    ("a leading stream that is none", setting("lead", "txt"), ["lead='txt'", "allowed", "text"]),
    (
        "a batch that does not divide",
        setting("run.workers", 3),
        ["streams.text.batch_size=16", "run.workers=3", "use 15 or 18"],
    ),
    ("a batch of one", setting("streams.image.batch_size", 1), ["streams.image.batch_size=1", "no negatives", "at least 2"]),
    (
        "selection on a test set",
        setting("evaluation.select", "lee"),
        ["'lee' is a test set", "stsb-dev", "evaluation.final"],
    ),
    ("its geometry", setting("evaluation.watch", ["lee-geometry"]), ["'lee-geometry' is a test set", "evaluation.final"]),
    ("an unknown task", setting("evaluation.final", ["sts-12"]), ["unknown task 'sts-12'", "did you mean", "sts12"]),
    ("a task without its data", setting("evaluation.select", "stsb-dev"), ["stsb-dev needs data", "evaluation.data"]),
    (
        "a data folder that is not there",
        several(evaluation__data="/nowhere", evaluation__final=["sts12"]),
        ["/nowhere", "data"],
    ),
    (
        "an encoder that is not there",
        setting("encoder.path", "/nowhere/model"),
        ["encoder.path='/nowhere/model'", "config.json"],
    ),
    ("an encoder in a pickle", pickled_encoder, ["encoder.path", "pytorch_model.bin", "save_pretrained"]),
    ("an encoder that takes no patches", encoder_of_another_kind, ["encoder.path", "'gpt2'", "choose", "roberta"]),
    (
        "a ViT of another width",
        wider_vit,
        ["method.image.path", "hidden size 32", "has 16", "Choose a ViT of hidden size 16"],
    ),
    ("no ViT of the authors'", setting("method.image.path", "auto"), ["method.image.path", "768, 1024", "encoder has 16"]),
    ("patches that do not divide", setting("method.image.patch_size", 5), ["method.image.patch_size", "5 does not divide"]),
    (
        "images of another size",
        setting("streams.image.size", 24),
        ["streams.image.size=24", "method.image.image_size=16", "same"],
    ),
    (
        "fewer frames than expected",
        setting("streams.audio.frames", 31),
        ["streams.audio.frames=31", "method.audio.frames=32"],
    ),
    (
        "mel filters that stay empty",
        several(streams__audio__bins=128, method__audio__bins=128),
        ["streams.audio.bins=128", "empty", "largest number of bins", "lower bins"],
    ),
    (
        "a mask wider than the bank",
        setting("streams.audio.mask_bins", 48),
        ["streams.audio.mask_bins=48", "bins=16", "lower"],
    ),
    (
        "classes that nobody reads",
        setting("streams.image.label", None),
        ["supcon", "streams.image.label is none", "'simclr'"],
    ),
    (
        "pairs without supervision",
        setting("streams.text.columns", ["a", "b"]),
        ["2 texts a sample", "takes 1", "method.text.supervised"],
    ),
    (
        "half precision without a GPU",
        several(run__workers=1, run__precision="fp16"),
        ["run.precision='fp16'", "GPU", "bf16"],
    ),
    ("runs in a plain folder", setting("run.tracking_uri", "mlruns"), ["run.tracking_uri='mlruns'", "sqlite:///FILE"]),
]

RESOURCES = [
    (
        "more processors than there are",
        several(run__workers=8, streams__text__batch_size=64),
        ["run.workers=8", "has 4", "Lower"],
    ),
    (
        "graphics cards that are not there",
        several(run__workers=1, run__gpus_per_worker=1),
        ["run.gpus_per_worker=1", "has 0", "CPUs"],
    ),
    ("local checkpoints on two nodes", cluster(nodes=2), ["run.storage=None", "several nodes", "s3://"]),
]

SHARDS = [
    (
        "a folder that is not there",
        setting("streams.text.shards", "/nowhere/text"),
        ["streams.text.shards", "no folder /nowhere", "pack.py"],
    ),
    ("an empty folder", empty_folder, ["streams.text.shards", "nothing", "empty", "pack.py"]),
    ("a range with a gap", gap_in_range, ["text-train-000002.tar", "holds 2 shards", "text-train-000001.tar"]),
    ("an unknown protocol", setting("streams.text.shards", "s4://b/x.tar"), ["s4://b", "Protocol not known", "allowed are"]),
    (
        "the same shard twice",
        lambda b: b.shards("text", f"{b.recipe.streams['text'].shards}::" * 2),
        ["twice", "Name it once"],
    ),
    ("a compressed tar", compressed_tar, ["text-train-000000.tar", "compressed", "gunzip"]),
    ("a truncated tar", truncated_tar, ["stream 'image'", "image-train-000000/", "truncated", "on_bad_sample"]),
    ("a manifest of other shards", stale_manifest, ["holds 20 samples", "says 17", "delete the dataset.json"]),
    ("less than a batch", few_samples, ["streams.text", "15 samples", "batch of 16", "batch_size to at most 15"]),
    (
        "shards of something else",
        lambda b: b.shards("text", b.recipe.streams["image"].shards),
        ["streams.text.columns", "txt", "png"],
    ),
    ("shards without classes", no_classes_in_shards, ["streams.image.label", "cls", "png", "'simclr'"]),
]

SAMPLES = [
    ("no picture", one_bad("image", png=b"no picture", cls=b"0"), ["stream 'image'", "spoilt", "no JPEG, PNG or WebP"]),
    ("a decompression bomb", one_bad("image", png=bomb(), cls=b"0"), ["stream 'image'", "spoilt", "decompression bomb"]),
    (
        "no class",
        one_bad("image", png=picture()),
        ["stream 'image'", "spoilt", "no field 'cls'", "it has png", "on_bad_sample"],
    ),
    ("a class that is a word", one_bad("audio", wav=wav(np.ones(900)), cls=b"dog"), ["spoilt", "'dog'", "class number"]),
    ("an empty text", one_bad("text", txt=b" \n"), ["stream 'text'", "spoilt", "is empty", "on_bad_sample"]),
    ("a missing field", one_bad("text", json=b'{"text": "a"}'), ["stream 'text'", "spoilt", "no field 'txt'", "json[text]"]),
    ("half a pair", no_pairs, ["stream 'text'", "no field 'sent1'", "json[sent0]", "on_bad_sample"]),
    ("text that is not UTF-8", one_bad("text", txt=b"\xff\xfe\xff"), ["stream 'text'", "spoilt", "not UTF-8"]),
    (
        "a sound with NaN",
        one_bad("audio", wav=wav(np.full(900, np.nan)), cls=b"0"),
        ["stream 'audio'", "spoilt", "not finite"],
    ),
    ("an empty sound", one_bad("audio", wav=wav(np.zeros(0)), cls=b"0"), ["stream 'audio'", "spoilt", "empty"]),
    (
        "more bad samples than allowed",
        too_many_skipped,
        ["max_skipped_share=0.01", "spoilt", "Repair", "streams.text.max_skipped_share"],
    ),
]

TABLE = [*CONFIGURATION, *RESOURCES, *SHARDS, *SAMPLES]


@pytest.mark.parametrize(("spoil", "words"), [row[1:] for row in TABLE], ids=[row[0] for row in TABLE])
def test_what_a_bad_input_is_told(spoil: Callable[[Bench], None], words: list[str], recipe: Recipe, tmp_path: Path) -> None:
    bench = Bench(recipe, tmp_path)
    with pytest.raises(ValueError) as error:
        spoil(bench)
        attempt(bench)
    for word in words:
        assert word in str(error.value)


def test_the_unspoilt_recipe_passes(recipe: Recipe, tmp_path: Path) -> None:
    attempt(Bench(recipe, tmp_path))


def test_local_tracking_on_two_nodes(recipe: Recipe) -> None:
    shared = recipe.replace("run.storage", "s3://bucket/runs")
    with pytest.raises(ValueError, match=r"run.tracking_uri='sqlite:.*http://"):
        check(shared, cpus=4, nodes=2)
    check(shared.replace("run.tracking_uri", "http://server:5000"), cpus=4, nodes=2)
