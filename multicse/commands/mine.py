"""Train on your own files: ``python pipelines/visualcse.py mine --text sentences.txt --images photos/``.

The files are packed into the output folder, and settings are chosen from them. The resulting recipe is printed and trained
like any other recipe.
"""

from __future__ import annotations

import csv
import hashlib
import json
import re
import shlex
from collections.abc import Iterator
from dataclasses import dataclass, fields, replace
from itertools import count, islice
from pathlib import Path
from statistics import median
from typing import Annotated, Any

import tyro

from multicse.commands import announce_imports, options, read_options
from multicse.commands.registry import FILES, Recipes, takes_files
from multicse.data.errors import DataError
from multicse.data.pack import UNUSABLE, files_below, files_of, folder_files, named_rows, table_rows, text_lines
from multicse.data.shard_urls import format_options, table_kind
from multicse.data.shard_writer import Drafts, LeftOut, Target, UnpackedSample, left_out_lines, pack
from multicse.data.shards import RawSample, ShardSet, read, read_manifest
from multicse.data.streams import decode
from multicse.models.config import EncoderConfig
from multicse.models.pretrained import ENCODER
from multicse.trainers.engine.checks import check_tasks
from multicse.trainers.engine.record import RECIPE
from multicse.trainers.jobs import announce, kept, shown
from multicse.trainers.recipe import Recipe, RecipeError

READERS = 5
"""Version of reading and packing; files that were packed with another version are packed again."""
OPTIONS = {kind: given.split()[0] for kind, given in FILES.items()}
"""Options for the files of each kind of stream."""
TABLES = ("csv", "tsv", "jsonl", "parquet", "arrow")
"""File extensions of tables."""
AUDIO_SAMPLED = 100
"""Number of audio files that are measured."""
SHORTEST = 0.1
"""Smallest median duration of the audio files, in seconds."""
LARGE = 384
"""Number of dimensions from which an encoder gets the settings of BERT-base instead of the settings of the demo."""
SEEN, EPOCHS = 20_000, 10
"""Number of training sentences that determines the epochs, and the largest number of epochs."""
FEWEST = 16
"""Smallest number of samples of a stream: two batches of eight."""
HELD_OUT = 20
"""Without rated pairs, one sentence in 20 is held out, unless it is too short for two halves."""
GOLD = "labels of sentence halves"
"""What the scores of the pairs of halves are: 1 for halves of one sentence, 0 for halves of two."""
LONGEST = 128
"""Largest maximum length that is chosen, in tokens: memory and time grow with it."""
MOST_HELD_OUT, FEWEST_HELD_OUT = 2000, 100
MOST_UNUSABLE = 0.1
"""Largest share of image or audio files that may be missing or damaged."""
SAMPLED = 200
"""Number of samples from which lengths are chosen."""
ENGLISH, FOREIGN = "small-bert-en", 1.8
"""Encoder of this project, and the number of word pieces per word above which text is not English. English text has 1.4;
all other languages that were measured have at least 2."""


@dataclass(frozen=True, kw_only=True)
class Arguments:
    """Train on your own files. Settings are chosen from the files and printed with their reasons.

    Options that change settings of the recipe can follow, for example --run.max_steps 500. They replace the chosen values.
    """

    text: Path
    """File with one sentence per line (.txt, .gz), or a table (.csv, .tsv, .jsonl, .parquet, .arrow) with --column."""
    column: str | None = None
    """Column of the table that contains the sentences. OUTER.INNER names a field inside a column."""
    images: Path | None = None
    """Folder of images. Its subfolders, if any, are used as classes."""
    audio: Path | None = None
    """Folder of audio files. Its subfolders, if any, are used as classes."""
    model: Annotated[str | None, tyro.conf.arg(metavar="MODEL", aliases=["--encoder.path"])] = None
    """Encoder to start from: a folder or a Hugging Face model ID. Default: this project's small English BERT."""
    dev: Path | None = None
    """Rated sentence pairs for checkpoint selection: a .tsv file with columns sentence1, sentence2 and score. Default: pairs
    made of the halves of held-out sentences."""
    language: str = ""
    """Language code of the sentences, such as de, for the model card."""
    licence: str = "unknown"
    """Licence of the files, such as CC-BY-SA-4.0, for the model card."""
    output: Annotated[Path | None, tyro.conf.arg(name="run.output_dir", aliases=["--output"])] = None
    """Folder for shards, recipe and model. Default: runs/PAPER/mine."""


Choice = tuple[str, Any, str]
"""A setting, its value, and the reason."""


def choose(recipes: Recipes, given: list[str]) -> Recipe:
    """Pack the user's files, unless they are packed already, choose settings from them and print each with its reason.

    Args:
        recipes: Recipes of the pipeline.
        given: Arguments after the word ``mine``.

    Raises:
        DataError: If the files cannot be used.
        RecipeError: If the pipeline cannot train on such files, a setting is wrong, or for `--recipe`.
    """
    asked, rest = read_options(Arguments, given, return_unknown_args=True)
    words, more = options.split(rest)
    if "--recipe" in more:
        raise RecipeError("--recipe cannot be combined with mine, which makes a new recipe; leave out the word mine")
    if words:
        raise RecipeError(f"{words[0]}: unexpected word; a command line is mine --text FILE [--SETTING VALUE ...]")
    base, encoder = _base(recipes, asked, more)
    output = kept(asked.output or Path("runs") / base.paper / "mine")
    announce(output)
    choices = list(_choose(base, encoder, asked, output))
    chosen = base.changed({path: value for path, value, _ in choices}).replace("run.output_dir", str(output))
    changes = options.changes(chosen, more)
    recipe = chosen.changed(changes)
    if "evaluation.eval_steps" not in changes:
        steps = recipe.steps(ShardSet.open(recipe.streams[recipe.lead].shards).samples)
        every = max(1, min(250, steps // 8))
        what = "evaluations" if recipe.evaluation.select else "checkpoints"
        choices.append(("evaluation.eval_steps", every, f"eight {what} in {steps:,} steps, or one every 250"))
        chosen, recipe = (one.replace("evaluation.eval_steps", every) for one in (chosen, recipe))
    _show(choices, chosen.flat(), recipe.flat())
    return recipe


def _show(choices: list[Choice], before: dict[str, Any], after: dict[str, Any]) -> None:
    """Print the settings of the run: those chosen from the files, and those that options have changed after that."""
    given = {path: (path, value, "given as an option") for path, value in after.items() if value != before.get(path, ...)}
    chosen = [given.pop(choice[0], choice) for choice in choices] + list(given.values())
    rows = [(path, _printed(path, value), why) for path, value, why in chosen]
    wide, narrow = (max(len(row[i]) for row in rows) for i in (0, 1))
    for path, value, why in rows:
        print(f"{path:<{wide}}  {value:<{narrow}}  {why}")
    file = shown(Path(after["run.output_dir"]) / RECIPE)
    print(f"to repeat or change this run, give its recipe: --recipe {shlex.quote(file)}")


def _printed(path: str, value: Any) -> str:
    """Return the value of a setting for the table: paths relative to the current folder, and short names of own tasks."""
    if path.endswith(".shards"):
        return shown(value)
    return re.sub(r"pairs:[^']*/(own-\w+)\.csv[^']*", r"\1", str(value))


def _base(recipes: Recipes, asked: Arguments, more: dict[str, list[str]]) -> tuple[Recipe, Any]:
    """Return the recipe to change and the encoder's configuration, after all checks that take no time.

    Raises:
        RecipeError: If files and streams do not match, or an option in `more` is no setting of the recipe.
    """
    demo = recipes[next(iter(recipes))]()
    if not takes_files(recipes):
        raise RecipeError(
            f"{demo.paper} does not support 'mine': pack the files with pipelines/pack.py and set the shards of a recipe "
            "(docs/how-to/data.md)"
        )
    given = options.changes(demo, more, [f"--{field.name}" for field in fields(Arguments)])
    plain = demo.changed({path: value for path, value in given.items() if not path.startswith(("streams.", "method."))})
    check_tasks(plain)
    for kind, place in _places(asked).items():
        if (place is not None) != (kind in demo.streams):
            fix = "leave it out" if place else "give a folder of files"
            raise RecipeError(f"{OPTIONS[kind]}: {demo.paper} trains on {', '.join(demo.streams)}; {fix}")
        if place is not None and not (place.is_file() if kind == "text" else place.is_dir()):
            wanted = "file" if kind == "text" else "folder"
            raise DataError(f"{OPTIONS[kind]} {place}: {wanted} not found; give an existing {wanted}")
    table = table_kind(str(asked.text)) in TABLES
    if table and asked.column is None:
        has = ", ".join(next(named_rows(asked.text, ()), (0, {}))[1])
        raise DataError(f"--text {asked.text}: name the column of the sentences with --column; it has {has or 'no rows'}")
    if not table and asked.column is not None:
        raise DataError(f"--text {asked.text}: this is not a table; leave --column out")
    if asked.column is not None:
        next(table_rows(asked.text, [asked.column]), None)  # refuses a column that does not exist
    if asked.dev is not None and not asked.dev.is_file():
        raise DataError(f"--dev {asked.dev}: file not found; give a .tsv file with columns sentence1, sentence2 and score")
    announce_imports()
    try:
        encoder = EncoderConfig(path=asked.model or str(demo.flat()["encoder.path"])).read()
    except ValueError as error:
        raise RecipeError(f"--model {asked.model}: {error}") from None
    large = encoder.hidden_size >= LARGE and "bert-base" in recipes
    return recipes["bert-base"]() if large else demo, encoder


def _places(asked: Arguments) -> dict[str, Path | None]:
    return {"text": asked.text, "image": asked.images, "audio": asked.audio}


def _choose(base: Recipe, encoder: Any, asked: Arguments, output: Path) -> Iterator[Choice]:
    import torch

    gpu = torch.cuda.device_count() > 0  # opens no CUDA context
    device = "a GPU was found" if gpu else "no GPU was found"
    yield ("name", f"{base.paper}/mine", "trained on your files")
    if asked.model:
        yield ("encoder.path", asked.model, f"--model; {encoder.hidden_size} dimensions: settings of {base.name}")
        _warn_if_tuned(asked.model)
    yield ("run.gpus_per_worker", int(gpu), device)
    yield ("run.precision", "bf16" if gpu else "fp32", device)
    reduced = dict[str, tuple[float, int]]()
    for kind, place in _places(asked).items():
        if place is None:
            continue
        shards = _packed(kind, place, asked, output / "data")
        count, setting, first = shards.samples, f"streams.{kind}", shards.shards[0]
        if count < FEWEST:
            raise DataError(f"{OPTIONS[kind]} {place} contains {count} samples; at least {FEWEST} are needed")
        yield (f"{setting}.shards", str(Path(first.url).parent), f"{count:,} samples of {place}")
        usual = batch = base.streams[kind].batch_size
        while batch > max(8, count // 8):
            batch //= 2
        yield (f"{setting}.batch_size", batch, f"at most an eighth of {count:,}")
        update = next(update for update, streams in base.method.updates().items() if kind in streams)
        if batch < usual:  # the most reduced batch of an update determines its learning rate
            reduced[update] = min(reduced.get(update, (1.0, 0)), (batch / usual, usual))
        samples = (found for found in read(first, range(min(first.samples, SAMPLED))) if isinstance(found, RawSample))
        if kind == "text":
            yield from _length(count)
            yield from _evaluation(asked, output / "data")
            yield from _texts(asked.model or base.encoder.path, encoder, samples)  # type: ignore[union-attr]  # word vectors have no path
            continue
        if not shards.classes[1:] and base.flat()[f"{setting}.label"] is not None:
            yield (f"method.{kind}.loss", "simclr", "no subfolders to use as classes")
            yield (f"{setting}.label", None, "no subfolders to use as classes")
        yield from _images(gpu, device) if kind == "image" else _audio(samples, gpu)
    for update, (share, usual) in reduced.items():
        rate = float(f"{base.optim[update].lr * share**0.5:.2g}")
        yield (
            f"optim.{update}.lr",
            rate,
            f"learning rate of {usual} samples, scaled with the square root of the batch size",
        )


def _warn_if_tuned(model: str) -> None:
    """Print a warning if a model is saved as a sentence encoder; its folder does not say whether it was tuned."""
    if Path(model).name != ENGLISH and (ENCODER.folder(model, weights=False) / "modules.json").is_file():
        print(
            f"warning: {model} is saved as a sentence encoder (modules.json). If it is tuned already, it depends on "
            "your sentences whether training improves it (all-MiniLM-L6-v2 in a minute: +2.6 on documentation, +0.1 on "
            "captions; by whitening +5.6 and -3.5): compare the models, as in docs/explanation/better.md"
        )


def _length(samples: int) -> Iterator[Choice]:
    wanted = SEEN / samples
    epochs = round(min(EPOCHS, max(1, wanted)), 2)
    limit = "at most" if wanted > EPOCHS else "at least"
    why = (
        f"{SEEN:,} sentences in all" if 1 <= wanted <= EPOCHS else f"{limit} {epochs:g}; {SEEN:,} sentences in all otherwise"
    )
    yield ("run.epochs", epochs, why)
    yield ("run.max_steps", None, "the epochs determine the steps")


def _evaluation(asked: Arguments, folder: Path) -> Iterator[Choice]:
    dev, test = (asked.dev or _halves(folder, asked, part) for part in ("dev", "test"))
    found, gold = dev.exists(), "" if asked.dev else f"?{format_options({'gold': GOLD})}"
    fewest = HELD_OUT * FEWEST_HELD_OUT
    few = f"fewer than {fewest:,} sentences with two halves: none are held out; give more, or rated pairs as --dev"
    held_out = "matching halves of held-out sentences" if found else few
    why = "--dev" if asked.dev else held_out
    yield ("evaluation.data", None, "only your files are used")
    yield ("evaluation.select", f"pairs:{dev}{gold}" if found else None, why)
    yield ("evaluation.watch", (), "no further tasks")
    yield ("evaluation.final", (f"pairs:{test}{gold}",) if found else (), why if found else "as evaluation.select")


def _texts(model: str, encoder: Any, samples: Iterator[RawSample]) -> Iterator[Choice]:
    announce_imports()
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(model)
    texts = [decode.text(sample.fields, ("txt",), sample.key)[0] for sample in samples]
    lengths = sorted(len(ids) for ids in tokenizer(texts, add_special_tokens=False)["input_ids"])
    pieces = sum(lengths) / sum(len(text.split()) for text in texts)
    if Path(model).name == ENGLISH and pieces > FOREIGN:
        print(
            f"warning: the encoder is English and splits these sentences into {pieces:.1f} pieces per word (English: 1.4). "
            "Give an encoder of their language with --model, or train one: docs/tutorials/new-language.md"
        )
    special = encoder.tokens_beside
    most = -(-(lengths[int(0.95 * (len(lengths) - 1))] + special) // 8) * 8
    length = min(max(16, min(most, LONGEST)), encoder.longest_text)
    whole = sum(size + special <= length for size in lengths) / len(lengths)
    why = f"{whole:.0%} of {len(lengths)} sentences are not cut; the longest of them has {lengths[-1] + special} tokens"
    yield ("streams.text.max_length", length, why)


def _images(gpu: bool, device: str) -> Iterator[Choice]:
    size = 224 if gpu else 64
    yield ("streams.image.size", size, device)
    yield ("method.image.image_size", size, device)
    yield ("method.image.patch_size", 16 if gpu else 8, device)
    if not gpu:
        yield ("method.image.path", None, "pretrained patch embeddings need 224 pixels")


def _audio(samples: Iterator[RawSample], gpu: bool) -> Iterator[Choice]:
    import torch

    from multicse.data.streams.preprocess import log_mel, samples_for

    sampled = islice(samples, AUDIO_SAMPLED)
    found = [(one.key, *decode.member_with_extension(one.fields, decode.SOUNDS, one.key)) for one in sampled]
    rates = [decode.own_rate(content) for _, _, content in found]
    whole = (decode.audio(content, ending, rate, key) for rate, (key, ending, content) in zip(rates, found, strict=True))
    seconds, high = median(len(wave) / rate for wave, rate in zip(whole, rates, strict=True)), median(rates) >= 16000
    if seconds < SHORTEST:
        raise DataError(f"--audio: the median duration is {seconds:.3f} s; give audio files of {SHORTEST} s or more")
    rate, bins = (16000, 128) if high else (8000, 32)
    frames = max(64, min(1024 if gpu else 256, round(seconds * 100) // 16 * 16))
    most = samples_for(rate, frames)
    waves = [decode.audio(content, ending, rate, key, most)[:most] for key, ending, content in found]
    values = torch.cat([log_mel(torch.as_tensor(wave)[None, None], rate=rate, bins=bins).flatten() for wave in waves])
    yield ("streams.audio.rate", rate, "16,000 Hz if most files have it, otherwise 8,000 Hz")
    for place in ("streams", "method"):
        yield (f"{place}.audio.bins", bins, f"suited to {rate:,} Hz")
        yield (f"{place}.audio.frames", frames, f"frames of 10 ms; the median duration is {seconds:.1f} s")
    yield ("method.audio.path", None, "new patch embeddings for this size")
    yield ("method.audio.mean", round(float(values.mean()), 2), "measured on your files")
    yield ("method.audio.std", max(0.01, round(float(values.std()), 2)), "measured on your files")


# -------------------------------------------------------------------------------------------------------------- packing


def _packed(kind: str, place: Path, asked: Arguments, folder: Path) -> ShardSet:
    """Return the shards of a file or folder, packed into `folder` unless the same files were packed before."""
    out = folder / f"{kind}-{_fingerprint(place, asked)}"
    target = Target(out, out.name, source=place.resolve().name, licence=asked.licence, overwrite=True)
    if not (out / "dataset.json").exists():
        if kind == "text":
            pack(_kept(asked, folder), replace(target, language=asked.language, form="parquet"))
        else:
            drafts = folder_files(place, decode.IMAGES if kind == "image" else decode.SOUNDS, "skip")
            pack(drafts, replace(target, shard_size=1000), files_of(place))
    manifest = read_manifest(str(out))
    left_out = manifest.record.get("left_out", {}) if manifest else {}
    for line in left_out_lines(left_out):
        print(f"{place}: {line}")
    shards, unusable = ShardSet.open(str(out)), sum(left_out.get(why, (0,))[0] for why in UNUSABLE)
    if unusable > MOST_UNUSABLE * (unusable + shards.samples):
        raise DataError(
            f"{OPTIONS[kind]} {place}: {unusable:,} of {unusable + shards.samples:,} files cannot be used, more than "
            f"{MOST_UNUSABLE:.0%}; repair or remove these files"
        )
    return shards


def _fingerprint(place: Path, asked: Arguments) -> str:
    """Return eight letters that change with the names, sizes and times of the files."""
    files = [place / file for file in files_below(place)[0]] if place.is_dir() else [place]
    found = [(str(file), file.stat() if file.exists() else None) for file in files]  # broken links have no state
    state = [(file, stat and stat.st_size, stat and stat.st_mtime_ns) for file, stat in found]
    text = place == asked.text and [asked.dev is None, asked.column, asked.language]
    return hashlib.sha256(json.dumps([READERS, state, text, asked.licence]).encode()).hexdigest()[:8]


def _halves(folder: Path, asked: Arguments, part: str) -> Path:
    return folder / f"halves-{_fingerprint(asked.text, asked)}" / f"own-{part}.csv"  # the task has the name of the file


def _kept(asked: Arguments, folder: Path) -> Drafts:
    """Return the training sentences, and write pairs of held-out sentences: halves of one sentence, and of two."""
    if asked.dev is not None:
        return _drafts(asked)
    halves: dict[int, tuple[str, str]] = {}
    total = 0
    for total, draft in enumerate(islice(_sentences(asked), HELD_OUT * MOST_HELD_OUT), 1):
        # A single character has no two halves.
        if (total - 1) % HELD_OUT == 0 and all(both := _cut(draft.fields["txt"].decode())):
            halves[total - 1] = both
    if total < HELD_OUT * FEWEST_HELD_OUT or len(halves) < FEWEST_HELD_OUT:
        return _drafts(asked)
    held_out = list(halves.values())
    for part, cut in {"dev": held_out[::2], "test": held_out[1::2]}.items():
        pairs = [(first, cut[place - other][1], 1 - other) for place, (first, _) in enumerate(cut) for other in (0, 1)]
        (place := _halves(folder, asked, part)).parent.mkdir(parents=True, exist_ok=True)
        with place.open("w", encoding="utf-8", newline="") as file:
            csv.writer(file, lineterminator="\n").writerows([("sentence1", "sentence2", "score"), *pairs])
    places = count()
    return (draft for draft in _drafts(asked) if not isinstance(draft, UnpackedSample) or next(places) not in halves)


def _drafts(asked: Arguments) -> Iterator[UnpackedSample | LeftOut]:
    return table_rows(asked.text, [asked.column]) if asked.column else text_lines([asked.text])


def _sentences(asked: Arguments) -> Iterator[UnpackedSample]:
    return (draft for draft in _drafts(asked) if isinstance(draft, UnpackedSample))


def _cut(text: str) -> tuple[str, str]:
    """Split a sentence into halves, at a space if it has one after the middle."""
    text = " ".join(text.split())
    middle = text.find(" ", len(text) // 2)
    middle = len(text) // 2 if middle < 0 else middle
    return text[:middle].strip(), text[middle:].strip()
