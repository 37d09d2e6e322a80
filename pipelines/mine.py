"""The first run on files of one's own: ``python pipelines/visualcse.py mine --text sentences.txt --images photos/``.

The files are packed into the output folder, settings are chosen from them, and the recipe that this makes is shown and
written down; from then on it is an ordinary run.
"""

from __future__ import annotations

import csv
import hashlib
import json
import shlex
from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import count, islice
from pathlib import Path
from statistics import median
from typing import Annotated, Any

import tyro

from multicse.data.errors import DataError
from multicse.data.pack import UNUSABLE, files_below, files_of, folder_files, table_rows, text_lines
from multicse.data.shard_urls import table_kind
from multicse.data.shard_writer import Drafts, Output, UnpackedSample, left_out_lines, pack
from multicse.data.shards import RawSample, ShardSet, read, read_manifest
from multicse.data.streams import decode
from multicse.models.text_encoder import EncoderConfig
from multicse.pipelines.registry import FILES, Recipes, takes_files
from multicse.trainers.jobs import announce, kept
from multicse.trainers.recipe import Recipe, RecipeError

READERS = 2
"""Number of the way in which files are read and packed; what was packed in another way is packed again."""
FILE = "mine.json"
"""The recipe, in the output folder."""
OPTIONS = {kind: given.split()[0] for kind, given in FILES.items()}
"""Kinds of streams, and what their files are given by."""
TABLES = ("csv", "tsv", "jsonl", "parquet", "arrow")
"""Endings of tables."""
SOUNDS_LOOKED_AT = 100
"""Sounds that are measured."""
SHORTEST = 0.1
"""Seconds that half of the sounds must last."""
LARGE = 384
"""Dimensions from which on an encoder gets the settings of BERT-base, not those of the demo's small one."""
SEEN, PASSES = 20_000, 10
"""Sentences that training sees at least, if no sentence has to be seen more than so many times for it."""
FEWEST = 16
"""Samples that a stream needs: a batch of eight is no smaller than half of it."""
HELD_OUT = 20
"""Every so-many-th sentence is held out, where no rated pairs are given."""
MOST_HELD_OUT, FEWEST_HELD_OUT = 2000, 100
MOST_UNUSABLE = 0.1
"""Largest share of pictures or sounds that may be missing or damaged."""
LOOKED_AT = 200
"""Samples whose lengths and sizes decide."""
ENGLISH, FOREIGN = "small-bert-en", 1.8
"""The encoder of this project, and pieces a word from which on sentences are not in its language: English has 1.4 of them,
no other language that was looked at less than 2."""


@dataclass(frozen=True, kw_only=True)
class Arguments:
    """Train on your own files: settings are chosen from them, shown and written to OUTPUT/mine.json.

    Any setting of the recipe can follow and replaces what was chosen: --run.max_steps 500.
    """

    text: Path
    """Sentences, one a line (.txt, .gz), or a table with --column (.csv .tsv .jsonl .parquet)."""
    column: str | None = None
    """Column of a table that has the sentences; one in another column is OUTER.INNER."""
    images: Path | None = None
    """Folder of pictures; its subfolders are their classes."""
    sounds: Path | None = None
    """Folder of sounds; its subfolders are their classes."""
    model: Annotated[str | None, tyro.conf.arg(metavar="MODEL")] = None
    """Encoder to start from, a folder or a hub name. Default: the small English one of this project."""
    dev: Path | None = None
    """Rated pairs that choose the best step: a .tsv with sentence1, sentence2, score. Default: halves of sentences that are
    held out."""
    language: str = ""
    """Code of the language of the sentences, e.g. de; it goes into the model card."""
    licence: str = "unknown"
    """Licence of the files, e.g. CC-BY-SA-4.0; it goes into the model card as well."""
    output: Path | None = None
    """Folder of shards, recipe and model. Default: runs/PAPER/mine."""


Choice = tuple[str, Any, str]
"""A setting, its value, and why."""


def arguments(recipes: Recipes, given: list[str]) -> list[str]:
    """The arguments of an ordinary run that ``mine`` and what was `given` behind it stand for.

    Packs the files where that was not done before, and writes the recipe. Raises DataError for files that cannot be used,
    RecipeError for a pipeline that does not learn from such files.
    """
    asked, rest = tyro.cli(Arguments, args=given, return_unknown_args=True)
    base, encoder = _base(recipes, asked)
    output = kept(asked.output or Path("runs") / base.paper / "mine")
    announce(output)
    choices = list(_choose(base, encoder, asked, output))
    recipe = base.changed({path: value for path, value, _ in choices})
    output.mkdir(parents=True, exist_ok=True)
    (output / FILE).write_text(recipe.replace("run.output_dir", str(output)).to_json(), encoding="utf-8")
    wide, narrow = (max(len(str(choice[i])) for choice in choices) for i in (0, 1))
    for path, value, why in choices:
        print(f"{path:<{wide}}  {value!s:<{narrow}}  {why}")
    print(f"written to {shlex.quote(str(output / FILE))} (--recipe takes it, and settings behind it change it)")
    return ["--recipe", str(output / FILE), "--run.output_dir", str(output), *rest]


def _base(recipes: Recipes, asked: Arguments) -> tuple[Recipe, Any]:
    """The recipe to change, and the encoder's configuration. Raises RecipeError where files and streams do not match."""
    demo = recipes[next(iter(recipes))]()
    if not takes_files(recipes):
        raise RecipeError(f"{demo.paper} has no 'mine': use pipelines/pack.py and a recipe; see docs/how-to/data.md")
    for kind, place in _places(asked).items():
        if (place is not None) != (kind in demo.streams):
            fix = "leave it out" if place else "name a folder of files"
            raise RecipeError(f"{OPTIONS[kind]}: {demo.paper} learns from {', '.join(demo.streams)}; {fix}")
        if place is not None and not (place.is_file() if kind == "text" else place.is_dir()):
            raise DataError(f"{OPTIONS[kind]} {place}: there is no such {'file' if kind == 'text' else 'folder'}")
    table = table_kind(str(asked.text)) in TABLES
    if table != (asked.column is not None):
        fix = "name the column of its sentences by --column" if table else "it is no table, so leave --column out"
        raise DataError(f"--text {asked.text}: {fix}")
    if asked.dev is not None and not asked.dev.is_file():
        raise DataError(f"--dev {asked.dev}: there is no such file; give a .tsv with sentence1, sentence2 and score")
    try:
        encoder = EncoderConfig(path=asked.model or str(demo.flat()["encoder.path"])).read()
    except ValueError as error:
        raise RecipeError(f"--model {asked.model}: {error}") from None
    large = encoder.hidden_size >= LARGE and "bert-base" in recipes
    return recipes["bert-base"]() if large else demo, encoder


def _places(asked: Arguments) -> dict[str, Path | None]:
    return {"text": asked.text, "image": asked.images, "audio": asked.sounds}


def _choose(base: Recipe, encoder: Any, asked: Arguments, output: Path) -> Iterator[Choice]:
    import torch

    gpu = torch.cuda.device_count() > 0  # opens no CUDA context
    yield ("name", f"{base.paper}/mine", "its files are your own")
    if asked.model:
        yield ("encoder.path", asked.model, f"--model; {encoder.hidden_size} dimensions: starts as {base.name} does")
    yield ("run.gpus_per_worker", int(gpu), "a GPU is there" if gpu else "no GPU is there")
    yield ("run.precision", "bf16" if gpu else "fp32", "the same")
    for kind, place in _places(asked).items():
        if place is None:
            continue
        shards = _packed(kind, place, asked, output / "data")
        count, setting, first = shards.samples, f"streams.{kind}", shards.shards[0]
        if count < FEWEST:
            raise DataError(f"{OPTIONS[kind]} {place} holds {count} samples; at least {FEWEST} are needed")
        yield (f"{setting}.shards", str(Path(first.url).parent), f"{count:,} samples of {place}")
        usual = batch = base.streams[kind].batch_size
        while batch > max(8, count // 8):
            batch //= 2
        yield (f"{setting}.batch_size", batch, f"at most an eighth of {count:,}")
        if batch < usual:
            rate = float(f"{base.optim[kind].lr * (batch / usual) ** 0.5:.2g}")
            yield (f"optim.{kind}.lr", rate, f"that of {usual} samples, by the root of the batch")
        samples = (found for found in read(first, range(min(first.samples, LOOKED_AT))) if isinstance(found, RawSample))
        if kind == "text":
            yield from _length(count, batch)
            yield from _evaluation(asked, output / "data")
            yield from _texts(asked.model or base.encoder.path, encoder, samples)  # type: ignore[union-attr]  # a text encoder's: `mine` takes no word vectors
            continue
        if not shards.classes[1:]:
            yield (f"method.{kind}.loss", "simclr", "no subfolders that could be classes")
            yield (f"{setting}.label", None, "the same")
        yield from _images(gpu) if kind == "image" else _sounds(samples, gpu)


def _length(samples: int, batch: int) -> Iterator[Choice]:
    passes = round(min(PASSES, max(1, SEEN / samples)), 2)
    steps = max(1, round(-(-samples // batch) * passes))
    yield ("run.epochs", passes, f"{SEEN:,} sentences or all of them, none more than {PASSES} times: {steps:,} steps")
    yield ("run.max_steps", None, "the passes decide")
    yield ("evaluation.eval_steps", max(1, min(250, steps // 8)), "eight times in a run, or every 250 steps")


def _evaluation(asked: Arguments, folder: Path) -> Iterator[Choice]:
    dev, test = (asked.dev or _halves(folder, asked, part) for part in ("dev", "test"))
    there = dev.exists()
    held_out = "which halves of held-out sentences belong together" if there else "too few sentences to hold some out"
    why = "--dev" if asked.dev else held_out
    yield ("evaluation.data", None, "only what is given")
    yield ("evaluation.select", f"pairs:{dev}" if there else None, why)
    yield ("evaluation.watch", (), "nothing more is given")
    yield ("evaluation.final", (f"pairs:{test}",) if there else (), why)


def _texts(model: str, encoder: Any, samples: Iterator[RawSample]) -> Iterator[Choice]:
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(model)
    texts = [decode.text(sample.fields, ("txt",), sample.key)[0] for sample in samples]
    lengths = sorted(len(ids) for ids in tokenizer(texts, add_special_tokens=False)["input_ids"])
    pieces = sum(lengths) / sum(len(text.split()) for text in texts)
    if Path(model).name == ENGLISH and pieces > FOREIGN:
        print(
            f"warning: the encoder is English, and cuts these sentences into {pieces:.1f} pieces a word (English: 1.4). "
            "Name one of their language by --model, or make one: docs/tutorials/new-language.md"
        )
    beside = encoder.tokens_beside
    most = -(-(lengths[int(0.95 * (len(lengths) - 1))] + beside) // 8) * 8
    length = min(max(16, min(most, 128)), encoder.longest_text)
    yield (
        "streams.text.max_length",
        length,
        f"tokens of 95 % of the sentences; the longest seen has {lengths[-1] + beside}",
    )


def _images(gpu: bool) -> Iterator[Choice]:
    size, why = (224, "a GPU is there") if gpu else (64, "no GPU is there")
    yield ("streams.image.size", size, why)
    yield ("method.image.image_size", size, "the same")
    yield ("method.image.patch_size", 16 if gpu else 8, "the same")
    if not gpu:
        yield ("method.image.path", None, "pretrained patches are for 224 pixels")


def _sounds(samples: Iterator[RawSample], gpu: bool) -> Iterator[Choice]:
    import torch

    from multicse.data.streams.preprocess import log_mel, samples_for

    looked_at = islice(samples, SOUNDS_LOOKED_AT)
    found = [(one.key, *decode.member_with_extension(one.fields, decode.SOUNDS, one.key)) for one in looked_at]
    rates = [decode.own_rate(content) for _, _, content in found]
    whole = (decode.audio(content, ending, rate, key) for rate, (key, ending, content) in zip(rates, found, strict=True))
    seconds, high = median(len(wave) / rate for wave, rate in zip(whole, rates, strict=True)), median(rates) >= 16000
    if seconds < SHORTEST:
        raise DataError(f"--sounds: half of them last {seconds:.3f} s or less; a spectrogram needs {SHORTEST} s or more")
    rate, bins = (16000, 128) if high else (8000, 32)
    frames = max(64, min(1024 if gpu else 256, round(seconds * 100) // 16 * 16))
    most = samples_for(rate, frames)
    waves = [decode.audio(content, ending, rate, key, most)[:most] for key, ending, content in found]
    values = torch.cat([log_mel(torch.as_tensor(wave)[None, None], rate=rate, bins=bins).flatten() for wave in waves])
    yield ("streams.audio.rate", rate, "16,000 if most sounds have it, else 8,000")
    for place in ("streams", "method"):
        yield (f"{place}.audio.bins", bins, "as many as the rate allows")
        yield (f"{place}.audio.frames", frames, f"of 10 ms; half of the sounds last {seconds:.1f} s or more")
    yield ("method.audio.path", None, "fresh patches, for these sizes")
    yield ("method.audio.mean", round(float(values.mean()), 2), "of the sounds")
    yield ("method.audio.std", max(0.01, round(float(values.std()), 2)), "the same")


# -------------------------------------------------------------------------------------------------------------- packing


def _packed(kind: str, place: Path, asked: Arguments, folder: Path) -> ShardSet:
    """The shards of a place, packed into `folder` unless they were packed from the same files before."""
    out = folder / f"{kind}-{_fingerprint(place, asked)}"
    output = Output(out, out.name, source=place.resolve().name, licence=asked.licence, overwrite=True)
    if not (out / "dataset.json").exists():
        if kind == "text":
            pack(_kept(asked, folder), replace(output, language=asked.language, form="parquet"))
        else:
            drafts = folder_files(place, decode.IMAGES if kind == "image" else decode.SOUNDS, "skip")
            pack(drafts, replace(output, shard_size=1000), files_of(place))
    manifest = read_manifest(str(out))
    left_out = manifest.record.get("left_out", {}) if manifest else {}
    for line in left_out_lines(left_out):
        print(f"{place}: {line}")
    shards, unusable = ShardSet.open(str(out)), sum(left_out.get(why, (0,))[0] for why in UNUSABLE)
    if unusable > MOST_UNUSABLE * (unusable + shards.samples):
        raise DataError(
            f"{OPTIONS[kind]} {place}: {unusable:,} of {unusable + shards.samples:,} files cannot be used, more than "
            f"{MOST_UNUSABLE:.0%}; repair or remove them"
        )
    return shards


def _fingerprint(place: Path, asked: Arguments) -> str:
    """Eight letters that change with the names, sizes and times of the files below a place."""
    files = [place / file for file in files_below(place)[0]] if place.is_dir() else [place]
    found = [(str(file), file.stat() if file.exists() else None) for file in files]  # none: a link to nothing is left out
    state = [(file, stat and stat.st_size, stat and stat.st_mtime_ns) for file, stat in found]
    text = place == asked.text and [asked.dev is None, asked.column, asked.language]
    return hashlib.sha256(json.dumps([READERS, state, text, asked.licence]).encode()).hexdigest()[:8]


def _halves(folder: Path, asked: Arguments, part: str) -> Path:
    return folder / f"halves-{_fingerprint(asked.text, asked)}-{part}.tsv"


def _kept(asked: Arguments, folder: Path) -> Drafts:
    """The sentences but for those held out, of which pairs are written: halves of one sentence, and of two."""
    there = sum(1 for _ in filter(None, _sentences(asked)))
    if asked.dev is not None or there // HELD_OUT < FEWEST_HELD_OUT:
        return _drafts(asked)
    apart = [draft.fields["txt"].decode() for draft in islice(_sentences(asked), 0, HELD_OUT * MOST_HELD_OUT, HELD_OUT)]
    for part, texts in {"dev": apart[::2], "test": apart[1::2]}.items():
        cut = [_cut(" ".join(text.split())) for text in texts]
        pairs = [(first, cut[place - other][1], 1 - other) for place, (first, _) in enumerate(cut) for other in (0, 1)]
        folder.mkdir(parents=True, exist_ok=True)
        with _halves(folder, asked, part).open("w", encoding="utf-8", newline="") as file:
            csv.writer(file, "excel-tab", lineterminator="\n").writerows([("sentence1", "sentence2", "score"), *pairs])
    places = count()
    drafts = ((draft, next(places) if draft else 1) for draft in _drafts(asked))
    return (draft for draft, place in drafts if place % HELD_OUT or place >= HELD_OUT * MOST_HELD_OUT)


def _drafts(asked: Arguments) -> Iterator[UnpackedSample | None]:
    return table_rows(asked.text, [asked.column]) if asked.column else text_lines([asked.text])


def _sentences(asked: Arguments) -> Iterator[UnpackedSample]:
    return (draft for draft in _drafts(asked) if draft is not None)


def _cut(text: str) -> tuple[str, str]:
    """Both halves of a sentence, between words where it has several."""
    middle = text.find(" ", len(text) // 2)
    middle = len(text) // 2 if middle < 0 else middle
    return text[:middle].strip(), text[middle:].strip()
