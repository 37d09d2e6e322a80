"""Damage thousands of inputs and count the outcomes. The exit code is 1 if one of them is bad.

    python -m benchmarks.fuzz [--runs 3000] [--first 0]

told        an error that names the file
skipped     bad samples were counted, the others are unchanged
same        nothing is missing, nothing has changed
unknowable  the content has changed, and neither the format nor a manifest has a checksum of it (a letter in a text)
silent      samples or words are lost, or weights are random, without a message; or a checksum would have shown it; or a
            table with a different form gives other rows; or a value that is not a text is read; or visible damage was not
            noticed, or a valid file was refused
crash       another exception, an error that names no file, or the end of the process
hang        more than two minutes; the first case of a process includes making the inputs
memory      more than 1 GiB above what the process had

The last four are bad.
"""

from __future__ import annotations

import gzip
import hashlib
import io
import json
import logging
import multiprocessing
import os
import shutil
import sys
import tempfile
import warnings
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass
from functools import cache, partial
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.csv as pa_csv
import pyarrow.parquet as pq
import soundfile
import tyro
from PIL import Image

from benchmarks.damage import ANY, IMAGE, MODEL, NOTICED, SAME, SENTENCE_MODEL, TABLE, TAR, Damage, pick
from benchmarks.timer import forget_peak, resident
from multicse.commands.describe import verify_shards
from multicse.data import shard_writer
from multicse.data.errors import DataError, DecodeError
from multicse.data.pack import UNUSABLE, folder_files
from multicse.data.shard_writer import LeftOut, UnpackedSample, pack
from multicse.data.shards import BadSample, ShardSet, read
from multicse.data.streams import decode
from multicse.data.streams.audio import AudioStream
from multicse.data.streams.base import StreamConfig
from multicse.data.streams.image import ImageStream
from multicse.data.streams.inputs import ImageInput
from multicse.data.streams.pairs import ImageTextStream
from multicse.data.streams.text import TextStream
from multicse.trainers.engine.cluster import quiet

SECONDS, MEGABYTES = 120, 1024
BAD = ("silent", "crash", "hang", "memory")
OPEN_ENDED = ("word vectors, txt", "table, jsonl", "table, csv", "table, tsv", "table, txt", "checkpoint")
"""Targets without a record of the number of items."""
WORDS = ["a", "the", "dog", "cat", "man", "woman", "runs", "sleeps", "eats", "plays", "in", "on", "park", "street", "red"]


@dataclass(frozen=True)
class Found:
    """Content that a reader has read from an input."""

    items: dict[str, str]
    """Hashes of samples, words or tensors by name."""
    bad: int = 0
    """Samples that were skipped and counted."""
    random: bool = False
    """Whether the weights are random."""


@dataclass(frozen=True)
class Target:
    """A kind of input."""

    name: str
    make: Callable[[Path], None]
    """Function that writes the input into a folder."""
    read: Callable[[Path], Found]
    damage: tuple[tuple[str, list[Damage]], ...]
    """File patterns, and possible damage of the files."""
    checksum: bool = False
    """Whether a change of any byte must be noticed."""


@dataclass(frozen=True)
class Outcome:
    """Outcome of a damaged input."""

    number: int
    target: str
    damage: str
    kind: str
    text: str = ""


def _hash(*parts: Any) -> str:
    digest = hashlib.sha256()
    for part in parts:
        digest.update(np.ascontiguousarray(part).tobytes() if isinstance(part, np.ndarray) else repr(part).encode())
    return digest.hexdigest()


# ---- shards and tables


def _sentence(rng: np.random.Generator) -> str:
    return " ".join(rng.choice(WORDS, 7))


def _txt(rng: np.random.Generator) -> bytes:
    return _sentence(rng).encode()


def _cls(rng: np.random.Generator) -> bytes:
    return b"%d" % rng.integers(9)


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


KINDS: dict[str, tuple[StreamConfig, dict[str, Callable[[np.random.Generator], bytes]]]] = {
    "text": (TextStream(shards=""), {"txt": _txt}),
    "image": (ImageStream(shards="", size=8), {"png": _png, "cls": _cls}),
    "audio": (AudioStream(shards="", frames=4), {"wav": _wav, "cls": _cls}),
    "pair": (ImageTextStream(shards="", input=ImageInput(size=8)), {"png": _png, "txt": _txt}),
    "triplet": (TextStream(shards="", columns=("sent0", "sent1", "hard_neg")), {"json": _triplet}),
}


def make_shards(folder: Path, kind: str, manifest: bool) -> None:
    """Pack 24 samples into two shards."""
    rng = np.random.default_rng(0)
    samples = (UnpackedSample({name: make(rng) for name, make in KINDS[kind][1].items()}) for _ in range(24))
    pack(samples, shard_writer.Target(folder, kind, shard_size=12))
    if not manifest:
        (folder / "dataset.json").unlink()


def read_shards(folder: Path, kind: str) -> Found:
    """Read every sample as a row of its stream."""
    items, bad = {}, 0
    texts = folder / "t.txt"  # which is not read as a part of a folder
    for shard in ShardSet.open(str(texts if texts.exists() else folder)).shards:
        for sample in read(shard, range(shard.samples)):
            try:
                if isinstance(sample, BadSample):
                    raise DecodeError(sample.reason)
                row = KINDS[kind][0].row(sample, np.random.default_rng(0))
                "".join(value for value in row.values() if isinstance(value, str)).encode()
                items[f"{sample.shard}/{sample.key}"] = _hash(*row.values())
            except DecodeError as error:
                str(error).encode()
                bad += 1
    return Found(items, bad)


def read_verified(folder: Path, kind: str) -> Found:
    """Read every sample; if none is bad, compare the files with their manifest, as ``describe.py --verify`` does."""
    found = read_shards(folder, kind)
    if not found.bad and (wrong := verify_shards(str(folder))):
        raise DataError(f"{folder}: {'; '.join(wrong)}")
    return found


def make_folder(folder: Path) -> None:
    """Write images in two class folders (one is a link), and files that occur next to images."""
    rng = np.random.default_rng(0)
    for place in ("photos/dog", "store/cat"):
        (folder / place).mkdir(parents=True)
        for number in range(12):
            (folder / place / f"{number}.png").write_bytes(_png(rng))
    (folder / "photos/cat").symlink_to("../store/cat")
    (folder / "photos/dog/up").symlink_to("..")
    (folder / "photos/dog/again.png").symlink_to("0.png")
    for name in (".DS_Store", "dog/Thumbs.db", "notes.txt"):
        (folder / "photos" / name).write_bytes(b"")


def read_folder(folder: Path) -> Found:
    """Read the images as packing does with ``--missing skip``."""
    items, bad = {}, 0
    for draft in folder_files(folder / "photos", decode.IMAGES, "skip"):
        if isinstance(draft, UnpackedSample) and draft.file is not None:
            picture = decode.image((folder / "photos" / draft.file).read_bytes(), draft.file)
            items[f"{draft.label}/{draft.file}"] = _hash(np.asarray(picture))
        else:
            bad += isinstance(draft, LeftOut) and draft.why in UNUSABLE
    return Found(items, bad)


def make_table(folder: Path, form: str) -> None:
    """Write a table of 24 texts and numbers into a folder, in the form of this ending."""
    rng = np.random.default_rng(0)
    table = pa.table({"txt": [_sentence(rng) for _ in range(24)], "number": list(range(24))})
    if form == "parquet":
        pq.write_table(table, folder / "t.parquet", row_group_size=9)
    elif form == "arrow":
        with pa.ipc.new_stream(str(folder / "t.arrow"), table.schema) as out:
            out.write_table(table, max_chunksize=9)
    elif form == "csv":
        pa_csv.write_csv(table, folder / "t.csv")
    elif form in ("tsv", "txt"):
        rows = [("txt", "number")] * (form == "tsv") + [(row["txt"], str(row["number"])) for row in table.to_pylist()]
        (folder / f"t.{form}").write_text("".join("\t".join(row[: 1 + (form == "tsv")]) + "\n" for row in rows))
    else:
        (folder / "t.jsonl").write_text("".join(f"{json.dumps(row)}\n" for row in table.to_pylist()))


# ---- word vectors, models, recipes, checkpoints


def make_vectors(folder: Path, form: str) -> None:
    """Write word vectors into a folder, in the form of this ending."""
    table = np.random.default_rng(0).normal(size=(len(WORDS), 5)).astype(np.float32)
    head = b"" if form == "txt" else b"%d 5\n" % len(table)
    if form == "folder":
        from multicse.data.word_vectors import write_vectors

        write_vectors(folder / "v", WORDS, table)
        return
    if form == "bin":
        rows = [word.encode() + b" " + row.tobytes() for word, row in zip(WORDS, table, strict=True)]
    else:
        lines = zip(WORDS, table, strict=True)
        rows = [b" ".join([word.encode(), *(b"%.4f" % x for x in row)]) + b"\n" for word, row in lines]
    text = head + b"".join(rows)
    (folder / f"v.{form}").write_bytes(gzip.compress(text, mtime=0) if form.endswith("gz") else text)


def read_vectors(folder: Path, form: str) -> Found:
    """Read word vectors of `make_vectors`."""
    from multicse.data.word_vectors import open_vectors

    found = open_vectors(folder / ("v" if form == "folder" else f"v.{form}"))
    return Found({f"{i}": _hash(word, row) for i, (word, row) in enumerate(zip(found.words, found.vectors, strict=True))})


def make_model(folder: Path) -> None:
    """Write a small BERT."""
    import torch
    from transformers import BertConfig, BertModel

    from multicse.models.fresh_bert import train_wordpiece

    tokenizer = train_wordpiece([" ".join(WORDS)] * 5, vocab_size=120, lowercase=True)
    torch.manual_seed(0)
    sizes = {"hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 32}
    config = BertConfig(vocab_size=len(tokenizer), max_position_embeddings=64, **sizes)
    BertModel(config, add_pooling_layer=False).save_pretrained(folder / "model")
    tokenizer.save_pretrained(folder / "model")


def make_sentence_model(folder: Path) -> None:
    """Write a sentence-transformers folder with prompts, head and normalisation."""
    from multicse.models.pooling import Head
    from multicse.models.st_modules import Conventions
    from multicse.models.text_encoder import TextEncoder

    make_model(folder)
    encoder = TextEncoder.from_pretrained(str(folder / "model"), "mean")
    encoder.head, encoder.normalise = Head(16), True
    encoder.conventions = Conventions({"query": "the ", "passage": "a dog "}, "query")
    encoder.save(str(folder / "sentences"))
    shutil.rmtree(folder / "model")


def read_model(folder: Path, name: str = "model", pooling: str | None = "mean") -> Found:
    """Read the embeddings of some words, from the model in evaluation and in training; None is the folder's pooling."""
    from multicse.evaluation.load import load_model
    from multicse.evaluation.task import EvaluationError, embed
    from multicse.models.probes import check_folder
    from multicse.models.text_encoder import TextEncoder

    place = str(folder / name)
    try:
        once, again = (embed(load_model(place, pooling=pooling, device="cpu"), WORDS) for _ in range(2))
    except EvaluationError as error:  # for example for embeddings that are not finite, without the name of the model
        raise EvaluationError(f"{place}: {error}") from None
    if pooling is None:
        check_folder(place)  # as before every run
    encoder = TextEncoder.from_pretrained(place, pooling).eval()  # type: ignore[arg-type]  # mean, or the folder's own
    tokens = encoder.tokenize(WORDS)
    trained = encoder(tokens).detach().numpy()
    random = not np.array_equal(once, again) or not np.allclose(once, trained, rtol=1e-3, atol=1e-4)
    alike = bool((tokens["input_ids"] == tokens["input_ids"][0]).all())
    return Found({word: _hash(vector) for word, vector in zip(WORDS, once, strict=True)}, random=random or alike)


@cache
def _recipe() -> Any:
    from multicse.models.config import EncoderConfig
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
    """Write a recipe."""
    (folder / "recipe.json").write_text(_recipe().to_json())


def read_recipe(folder: Path) -> Found:
    """Read a recipe."""
    from multicse.trainers.recipe import Recipe

    flat = Recipe.from_json((folder / "recipe.json").read_bytes().decode("utf-8", "replace")).flat()
    return Found({"recipe": _hash(sorted(flat.items()))})


def make_checkpoint(folder: Path) -> None:
    """Write a checkpoint."""
    import torch
    from safetensors.torch import save_file

    from multicse.trainers.engine.checkpoint import FORMAT, METHOD, STATE, build_method, weights_of
    from multicse.trainers.engine.record import RECIPE

    place = folder / "checkpoint"
    place.mkdir()
    save_file(weights_of(build_method(_recipe())), place / METHOD)
    torch.save({"format": FORMAT, "step": 3, "before": {}, "rng": torch.get_rng_state()}, place / STATE)
    (place / RECIPE).write_text(_recipe().to_json())


def read_checkpoint(folder: Path) -> Found:
    """Read weights and state of a checkpoint."""
    from multicse.trainers.engine.checkpoint import load_method, read_state

    weights = load_method(folder / "checkpoint").state_dict()
    state = read_state(folder / "checkpoint")
    return Found({name: _hash(value.numpy()) for name, value in weights.items()} | {"state": _hash(sorted(state.items()))})


def _targets() -> Iterator[Target]:
    shard = ("*-000001.tar", TAR)
    for kind in KINDS:
        make, read = partial(make_shards, kind=kind), partial(read_shards, kind=kind)
        damage = (shard, shard, shard, ("dataset.json", ANY), ("*.index.gz", ANY))
        yield Target(
            f"{kind} shards", partial(make, manifest=True), partial(read_verified, kind=kind), damage, checksum=True
        )
        yield Target(f"{kind} shards, no manifest", partial(make, manifest=False), read, (shard,))
    for form, damages in TABLE.items():
        make, read = partial(make_table, form=form), partial(read_shards, kind="text")
        yield Target(f"table, {form}", make, read, (("t.*", ANY + damages),))
    yield Target("image folder", make_folder, read_folder, (("photos/dog/?.png", IMAGE), ("store/cat/*.png", IMAGE)))
    for form in ("txt", "vec", "bin", "vec.gz", "folder"):
        make, read = partial(make_vectors, form=form), partial(read_vectors, form=form)
        yield Target(f"word vectors, {form}", make, read, (("v/*" if form == "folder" else "v.*", ANY),))
    yield Target("model folder", make_model, read_model, (("model/*", MODEL),))
    read = partial(read_model, name="sentences", pooling=None)
    yield Target("sentence-transformers folder", make_sentence_model, read, (("sentences/**/*.json", SENTENCE_MODEL),))
    yield Target("recipe", make_recipe, read_recipe, (("recipe.json", ANY),))
    yield Target("checkpoint", make_checkpoint, read_checkpoint, (("checkpoint/*", ANY),))


TARGETS = list(_targets())


# ---- one case, and many


def attempt(number: int, place: Path) -> Outcome:
    """Run a case; its number determines target and damage."""
    rng = np.random.default_rng([7, number])
    target = TARGETS[number % len(TARGETS)]
    whole, before = _whole(number % len(TARGETS), place)
    folder = place / f"case-{number}"
    shutil.copytree(whole, folder, symlinks=True)
    pattern, damages = target.damage[int(rng.integers(len(target.damage)))]
    files = sorted(file for file in folder.glob(pattern) if file.is_file())
    file, damage = files[int(rng.integers(len(files)))], pick(rng, damages)
    file.write_bytes(damage(file.read_bytes(), rng))
    try:
        kind, text = _judged(target, folder, before)
        if damage in NOTICED and kind in ("same", "unknowable"):
            kind, text = "silent", f"not noticed: {kind} {text}"
        elif damage in SAME and kind != "same" and not target.checksum:
            kind, text = "silent", f"not needed: {kind} {text}"
    finally:
        shutil.rmtree(folder)
    return Outcome(number, target.name, f"{damage.__name__} {file.name}", kind, text)


@cache
def _whole(number: int, place: Path) -> tuple[Path, Found]:
    """Write the input of a target once, and read it before it is damaged."""
    folder = place / f"whole-{number}"
    folder.mkdir()
    TARGETS[number].make(folder)
    return folder, TARGETS[number].read(folder)


def _judged(target: Target, folder: Path, before: Found) -> tuple[str, str]:
    forget_peak()
    start = resident("VmRSS")
    try:
        kind, text = _compared(target, before, target.read(folder))
    except ValueError as error:
        text = str(error)
        named = folder.name in text or target.name == "recipe"
        kind = "told" if named and not isinstance(error, UnicodeError) else "crash"
    except Exception as error:
        kind, text = "crash", f"{type(error).__name__}: {error}"
    grown = resident("VmHWM") - start
    return ("memory", f"{grown:.0f} MB") if grown > MEGABYTES else (kind, text)


def _compared(target: Target, before: Found, after: Found) -> tuple[str, str]:
    if after.random:
        return "silent", "random weights"
    if after.bad:
        return "skipped", str(after.bad)
    gone = sorted(set(before.items) - set(after.items))
    changed = sorted(name for name, value in before.items.items() if after.items.get(name) not in (value, None))
    new = sorted(set(after.items) - set(before.items))
    if not gone and not changed and not new:
        return "same", ""
    noticed = target.checksum or (gone and target.name not in OPEN_ENDED)
    return ("silent" if noticed else "unknowable"), f"gone {gone[:2]}, changed {changed[:2]}, new {new[:2]}"


def _prepare(place: str) -> None:
    os.environ |= {"TQDM_DISABLE": "1", "MULTICSE_CACHE": f"{place}/cache"}
    logging.disable(logging.WARNING)
    warnings.simplefilter("ignore")
    quiet()


def outcomes(first: int, runs: int) -> Iterator[Outcome]:
    """Run each case in a child process, which is restarted if it dies or does not answer."""
    number, end = first, first + runs
    while number < end:
        with tempfile.TemporaryDirectory() as place:
            pool = ProcessPoolExecutor(1, multiprocessing.get_context("spawn"), _prepare, (place,))
            lost = ""
            while number < end and not lost:
                try:
                    yield pool.submit(attempt, number, Path(place)).result(SECONDS)
                except (TimeoutError, BrokenProcessPool) as error:
                    lost = "hang" if isinstance(error, TimeoutError) else "crash"
                    yield Outcome(number, TARGETS[number % len(TARGETS)].name, "", lost, "the process ended")
                number += 1
            for child in multiprocessing.active_children():
                child.kill()
            pool.shutdown()


def main(runs: int = 3000, first: int = 0) -> int:
    """Print a table of outcomes by target, and the bad outcomes.

    Args:
        runs: Number of cases.
        first: Number of the first case.
    """
    kinds = ["told", "skipped", "same", "unknowable", *BAD]
    table: dict[str, Counter[str]] = {target.name: Counter() for target in TARGETS}
    for outcome in outcomes(first, runs):
        table[outcome.target][outcome.kind] += 1
        if outcome.kind in BAD:
            print(f"{outcome.kind}: {outcome.number}, {outcome.target}, {outcome.damage}: {outcome.text[:300]}", flush=True)
    print(f"\n| input | runs | {' | '.join(kinds)} |\n|---|{'---:|' * (len(kinds) + 1)}")
    table["all"] = sum(table.values(), Counter())
    for name, counts in table.items():
        print(f"| {name} | {counts.total()} | {' | '.join(str(counts[kind]) for kind in kinds)} |")
    failed = sum(table["all"][kind] for kind in BAD)
    print(f"\n{table['all'].total()} damaged inputs, {failed} of them crashed, hung, were silent or took too much memory")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(tyro.cli(main, description=__doc__))
