"""Inputs of every kind, small ones: how each is made, how it is read, and what may be done to its files."""

from __future__ import annotations

import gzip
import hashlib
import io
import json
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cache, partial
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.csv as pa_csv
import pyarrow.parquet as pq
import soundfile
from PIL import Image

from benchmarks.damage import ANY, MODEL, SAMPLE, TAR, Damage
from multicse.data.errors import DecodeError
from multicse.data.shard_writer import Output, UnpackedSample, pack
from multicse.data.shards import BadSample, ShardSet, read
from multicse.data.streams.audio import AudioStream
from multicse.data.streams.base import StreamConfig
from multicse.data.streams.image import ImageStream
from multicse.data.streams.inputs import ImageInput
from multicse.data.streams.pairs import ImageTextStream
from multicse.data.streams.text import TextStream

WORDS = ["a", "the", "dog", "cat", "man", "woman", "runs", "sleeps", "eats", "plays", "in", "on", "park", "street", "red"]


@dataclass(frozen=True)
class Found:
    """What a reader got out of an input."""

    items: dict[str, str]
    """Samples, words, tensors by their names: a hash of each."""
    bad: int = 0
    """Samples that were skipped and counted."""
    wrong: str = ""
    """What must not be, such as random weights."""


@dataclass(frozen=True)
class Target:
    """A kind of input."""

    name: str
    make: Callable[[Path], None]
    """Writes it into a folder."""
    read: Callable[[Path], Found]
    damage: tuple[tuple[str, list[Damage]], ...]
    """File patterns, and what may be done to such a file."""
    checksum: bool = False
    """A change of any byte of what is read is to be noticed."""


def _hash(*parts: Any) -> str:
    digest = hashlib.sha256()
    for part in parts:
        digest.update(np.ascontiguousarray(part).tobytes() if isinstance(part, np.ndarray) else repr(part).encode())
    return digest.hexdigest()


# ---- shards


def _sentence(rng: np.random.Generator) -> str:
    return " ".join(rng.choice(WORDS, 7))


def _png(rng: np.random.Generator) -> bytes:
    data = io.BytesIO()
    Image.fromarray(rng.integers(0, 256, (12, 12, 3), dtype=np.uint8)).save(data, "PNG")
    return data.getvalue()


def _wav(rng: np.random.Generator) -> bytes:
    data = io.BytesIO()
    soundfile.write(data, rng.normal(0, 0.1, 800), 16000, format="WAV")
    return data.getvalue()


def _triplet(rng: np.random.Generator) -> bytes:
    return json.dumps({name: _sentence(rng) for name in ("sent0", "sent1", "hard_neg")}).encode()


FIELDS: dict[str, dict[str, Callable[[np.random.Generator], bytes]]] = {
    "text": {"txt": lambda rng: _sentence(rng).encode()},
    "image": {"png": _png, "cls": lambda rng: b"%d" % rng.integers(9)},
    "audio": {"wav": _wav, "cls": lambda rng: b"%d" % rng.integers(9)},
    "pair": {"png": _png, "txt": lambda rng: _sentence(rng).encode()},
    "triplet": {"json": _triplet},
}
STREAMS: dict[str, StreamConfig] = {
    "text": TextStream(shards=""),
    "image": ImageStream(shards="", size=8),
    "audio": AudioStream(shards="", frames=4),
    "pair": ImageTextStream(shards="", input=ImageInput(size=8)),
    "triplet": TextStream(shards="", columns=("sent0", "sent1", "hard_neg")),
}


def make_shards(folder: Path, kind: str, manifest: bool) -> None:
    rng = np.random.default_rng(0)
    drafts = (UnpackedSample({name: make(rng) for name, make in FIELDS[kind].items()}) for _ in range(24))
    pack(drafts, Output(folder, kind, shard_size=12))
    if not manifest:
        (folder / "dataset.json").unlink()


def read_shards(folder: Path, kind: str) -> Found:
    """Every sample as its stream makes a row of it."""
    items, bad = {}, 0
    for shard in ShardSet.open(str(folder)).shards:
        for sample in read(shard, range(shard.samples)):
            try:
                if isinstance(sample, BadSample):
                    raise DecodeError(sample.reason)
                row = STREAMS[kind].row(sample, np.random.default_rng(0))
                "".join(value for value in row.values() if isinstance(value, str)).encode()
                items[f"{sample.shard}/{sample.key}"] = _hash(*row.values())
            except DecodeError as error:
                str(error).encode()
                bad += 1
    return Found(items, bad)


def make_table(folder: Path, form: str) -> None:
    rng = np.random.default_rng(0)
    table = pa.table({"txt": [_sentence(rng) for _ in range(24)], "number": list(range(24))})
    if form == "parquet":
        pq.write_table(table, folder / "t.parquet", row_group_size=9)
    elif form == "csv":
        pa_csv.write_csv(table, folder / "t.csv")
    else:
        (folder / "t.jsonl").write_text("".join(f"{json.dumps(row)}\n" for row in table.to_pylist()))


# ---- word vectors


def make_vectors(folder: Path, form: str) -> None:
    table = np.random.default_rng(0).normal(size=(len(WORDS), 5)).astype(np.float32)
    head = b"%d 5\n" % len(table)
    rows = [b" ".join([word.encode(), *(b"%.4f" % x for x in row)]) + b"\n" for word, row in zip(WORDS, table, strict=True)]
    if form == "folder":
        from multicse.data.word_vectors import write_vectors

        write_vectors(folder / "v", WORDS, table)
    elif form == "bin":
        rows = [word.encode() + b" " + row.tobytes() for word, row in zip(WORDS, table, strict=True)]
        (folder / "v.bin").write_bytes(head + b"".join(rows))
    else:
        text = (b"" if form == "txt" else head) + b"".join(rows)
        (folder / f"v.{form}").write_bytes(gzip.compress(text, mtime=0) if form.endswith("gz") else text)


def read_vectors(folder: Path, form: str) -> Found:
    from multicse.data.word_vectors import open_vectors

    found = open_vectors(folder / ("v" if form == "folder" else f"v.{form}"))
    return Found({f"{i}": _hash(word, row) for i, (word, row) in enumerate(zip(found.words, found.vectors, strict=True))})


# ---- models, recipes, checkpoints


def make_model(folder: Path) -> None:
    import torch
    from transformers import BertConfig, BertModel

    from multicse.models.fresh_bert import train_wordpiece

    tokenizer = train_wordpiece([" ".join(WORDS)] * 5, vocab_size=120, lowercase=True)
    torch.manual_seed(0)
    sizes = {"hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 32}
    config = BertConfig(vocab_size=len(tokenizer), max_position_embeddings=64, **sizes)
    BertModel(config, add_pooling_layer=False).save_pretrained(folder / "model")
    tokenizer.save_pretrained(folder / "model")


def read_model(folder: Path) -> Found:
    """The vectors of some words, by evaluation and by training."""
    from multicse.evaluation.load import load_model
    from multicse.evaluation.task import EvaluationError, embed
    from multicse.models.text_encoder import TextEncoder

    place = str(folder / "model")
    try:
        once, again = (embed(load_model(place, pooling="mean", device="cpu"), WORDS) for _ in range(2))
    except EvaluationError as error:  # of vectors that are not finite, say, whose model whoever asks knows
        raise EvaluationError(f"{place}: {error}") from None
    encoder = TextEncoder.from_pretrained(place, "mean").eval()
    tokens = encoder.tokenize(WORDS)
    trained = encoder(tokens).detach().numpy()
    random = not np.array_equal(once, again) or not np.allclose(once, trained, rtol=1e-3, atol=1e-4)
    alike = bool((tokens["input_ids"] == tokens["input_ids"][0]).all())
    return Found({word: _hash(vector) for word, vector in zip(WORDS, once, strict=True)}, wrong="random" * (random or alike))


@cache
def _recipe() -> Any:
    from multicse.models.text_encoder import EncoderConfig
    from multicse.trainers.recipe import OptimConfig, Recipe
    from multicse.trainers.simcse import SimCSEConfig

    place = Path(tempfile.mkdtemp(prefix="fuzz-encoder-"))
    make_model(place)
    return Recipe(
        name="simcse/fuzz",
        method=SimCSEConfig(),
        encoder=EncoderConfig(path=str(place / "model"), pooling="mean"),
        streams={"text": TextStream(shards="shards/text")},
        optim={"text": OptimConfig()},
    )


def make_recipe(folder: Path) -> None:
    (folder / "recipe.json").write_text(_recipe().to_json())


def read_recipe(folder: Path) -> Found:
    from multicse.trainers.recipe import Recipe

    flat = Recipe.from_json((folder / "recipe.json").read_bytes().decode("utf-8", "replace")).flat()
    return Found({"recipe": _hash(sorted(flat.items()))})


def make_checkpoint(folder: Path) -> None:
    import torch
    from safetensors.torch import save_file

    from multicse.trainers.engine.checkpoint import METHOD, RECIPE, STATE, build_method, weights_of

    place = folder / "checkpoint"
    place.mkdir()
    save_file(weights_of(build_method(_recipe())), place / METHOD)
    torch.save({"step": 3, "before": {}, "best": (0.0, 0), "rng": torch.get_rng_state()}, place / STATE)
    (place / RECIPE).write_text(_recipe().to_json())


def read_checkpoint(folder: Path) -> Found:
    from multicse.trainers.engine.checkpoint import load_method, read_state

    weights = load_method(folder / "checkpoint").state_dict()
    state = read_state(folder / "checkpoint")
    return Found({name: _hash(value.numpy()) for name, value in weights.items()} | {"state": _hash(sorted(state.items()))})


def _targets() -> Iterator[Target]:
    for manifest in (True, False):
        for kind in FIELDS:
            files: tuple[tuple[str, list[Damage]], ...] = (("*-000001.tar", [*ANY, *TAR, *TAR, *SAMPLE]),)
            yield Target(
                f"{kind} shards{'' if manifest else ', no manifest'}",
                partial(make_shards, kind=kind, manifest=manifest),
                partial(read_shards, kind=kind),
                (*files, *files, *files, ("dataset.json", ANY)) if manifest else files,
                checksum=manifest,
            )
    for form in ("parquet", "jsonl", "csv"):
        yield Target(f"table, {form}", partial(make_table, form=form), partial(read_shards, kind="text"), (("t.*", ANY),))
    for form in ("txt", "vec", "bin", "vec.gz", "folder"):
        yield Target(
            f"word vectors, {form}",
            partial(make_vectors, form=form),
            partial(read_vectors, form=form),
            (("v/*" if form == "folder" else "v.*", ANY),),
        )
    yield Target("model folder", make_model, read_model, (("model/*", [*ANY, *MODEL]),))
    yield Target("recipe", make_recipe, read_recipe, (("recipe.json", ANY),))
    yield Target("checkpoint", make_checkpoint, read_checkpoint, (("checkpoint/*", ANY),))


TARGETS = list(_targets())
