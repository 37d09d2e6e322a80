"""What the figures of clip.toml are drawn by, and its rows at the small scale: minutes of the small encoder, open sets.

CC3M is emojis with their names and a few pictures of COCO with five captions, COCO other pictures of it, Flickr30K 200 other
emojis, and all sets of picture classes are CIFAR-10. Clotho and ESC50 are ESC-10 with captions made from its class names,
AudioCaps and US8K spoken digits with captions that say who says which, MusicCaps is computed tones.

Checkpoints are chosen by mAP@10 on held-out pairs, of pictures as well: validation loss, the paper's choice there, takes the
first evaluation of runs this short.
"""

from __future__ import annotations

import hashlib
import json
import tarfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from multicse.data.offline.demo import write_demo_shards
from multicse.data.streams.inputs import AudioInput, ImageInput
from multicse.data.streams.pairs import AudioTextStream, ImageTextStream
from multicse.data.streams.text import TextStream
from multicse.models.towers import ASTTower, ViTTower
from multicse.pipelines import parts
from multicse.reproduction.tables.offline import Offline
from multicse.reproduction.tables.table import Table, Values, read_tables
from multicse.trainers.recipe import EvaluationConfig, OptimConfig, Recipe

if TYPE_CHECKING:
    from matplotlib.figure import Figure


def figure_2(table: Table, values: Values) -> Figure:
    """Alignment against the uniformity of texts, a mark for each run."""
    from multicse.reproduction.figures.pairs import alignment_text_uniformity

    return alignment_text_uniformity(_runs(values))


def figure_3(table: Table, values: Values) -> Figure:
    """The uniformity of items against that of texts, a mark for each run."""
    from multicse.reproduction.figures.pairs import text_item_uniformity

    return text_item_uniformity(_runs(values))


def _runs(values: Values) -> dict[str, list[Mapping[str, float]]]:
    models: dict[str, list[Mapping[str, float]]] = {}
    for label, columns in values.items():
        metrics = [column.partition("#")[2] for column in columns]
        models[label] = [dict(zip(metrics, run, strict=True)) for run in zip(*columns.values(), strict=True)]
    return models


TABLES = read_tables(Path(__file__).with_suffix(".toml"), globals())


# ---------------------------------------------------------------------------------------------------------- the small scale

STEPS, EVERY = 150, 50
SOUND = AudioInput(rate=16_000, seconds=5.0, bins=64, n_fft=1024, hop=512, low_hz=50.0, high_hz=8000.0)  # ESC-10's 5 s
VIT = ViTTower(input=ImageInput(size=64), patch_size=16, width=128, layers=4, heads=4)
AST = ASTTower(input=SOUND, patch_size=16, stride=16, width=128, layers=3, heads=4, mask_bins=8, mask_frames=16)
SHORT = ASTTower(input=parts.OFFLINE_SOUND, patch_size=8, stride=8, width=128, layers=3, heads=4, mask_bins=4, mask_frames=8)
SETS = {"clotho": ("esc10", AST, 3_839), "audiocaps": ("fsdd", SHORT, 49_838), "musiccaps": ("sounds", SHORT, 2_858)}
"""Sets of the paper: what stands in for it, the tower for its sounds, and how many the paper trains on."""
TEMPLATES = {
    "esc10": ("This is a sound of {}", "a sound of {}", "{}", "the sound of {} in a recording"),
    "fsdd": ("{speaker} says {}", "the digit {} by {speaker}", "{speaker}: {}"),
}
DIGITS = ("zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine")


def mini(recipe: Recipe, offline: Offline) -> Recipe:
    """The row with its losses, variant and share of warm-up (of sounds also its rate), on small towers and sets."""
    pack_all(offline)
    changes = pictures(recipe, offline.shards) if recipe.paper == "cyclip" else sounds(recipe, offline.shards)
    scratch = {"encoder.scratch": recipe.flat()["encoder.scratch"]} if recipe.paper == "clap" else {}  # Table 13
    run = {"run.epochs": 10_000, "run.max_steps": STEPS, "run.checkpoint_every": None}
    return recipe.changed({"encoder": parts.SMALL, **scratch, "method.embed_dim": 128, **changes, **run})


def pictures(recipe: Recipe, shards: Path) -> dict[str, Any]:
    """What changes in a recipe for pictures."""
    train = f"{shards / 'emoji-train'}::{shards / 'coco-train'}"
    streams = {
        "pairs": ImageTextStream(shards=train, batch_size=64, input=VIT.input, augment="crop"),
        "nli": TextStream(shards=str(shards / "nli"), batch_size=32, columns=("sent0", "sent1", "hard_neg")),
        "nli_sentences": TextStream(shards=str(shards / "nli-sentences"), batch_size=32),
    }
    optim = OptimConfig(lr=1e-3, weight_decay=0.1, schedule="cosine", warmup=0.1, clip=None)
    return {
        "method.tower": VIT,
        "streams": {name: streams[name].model_dump() for name in recipe.streams},
        "optim": {turn: optim.model_dump() for turn in recipe.optim},
        "evaluation": chosen_by(f"retrieval:{shards / 'emoji-val'}?primary=mean_map10"),
    }


def sounds(recipe: Recipe, shards: Path) -> dict[str, Any]:
    """What changes in a recipe for sounds; the rate and the share of the run that is warm-up stay in proportion."""
    name, tower, clips = SETS[recipe.streams["pairs"].shards.removeprefix("shards/").removesuffix("-train")]
    given: Any = recipe.optim["pairs"]
    warmup = given.warmup if given.warmup < 1 else round(given.warmup / recipe.steps(clips) * STEPS)
    pairs = AudioTextStream(shards=str(shards / f"{name}-train"), batch_size=32, input=tower.input)
    shared = "" if name == "sounds" else "shared=true&"
    return {
        "method.tower": tower,
        "streams": {"pairs": pairs.model_dump()},
        "optim": {"pairs": given.model_dump() | {"lr": 1e-3 * given.lr / 9e-5, "warmup": warmup}},
        "evaluation": chosen_by(f"retrieval:{shards / f'{name}-val'}?{shared}primary=mean_map10"),
    }


def chosen_by(task: str) -> dict[str, Any]:
    """The evaluation of a run, which measures nothing but the task that chooses its checkpoint."""
    return EvaluationConfig(select=task, every=EVERY).model_dump()


# ---------------------------------------------------------------------------------------------------------------- packing


def pack_all(offline: Offline) -> None:
    """All sets that rows are trained or measured on, packed where they are not there yet."""
    if (offline.shards / "clip-sets").exists():
        return
    write_demo_shards(offline.shards, ["sounds-train", "sounds-val", "sounds-test"])
    offline.nli()
    offline.nli_sentences()
    pack_emoji(offline)
    pack_coco(offline)
    pack_cifar(offline)
    pack_esc10(offline)
    pack_fsdd(offline)
    (offline.shards / "clip-sets").touch()


def pack_emoji(offline: Offline) -> None:
    """``emoji-train``, ``emoji-val`` and ``emoji-test``: pictures with their English name, in an order that names decide."""
    lines = (offline.data / "emoji" / "emoji_names.jsonl").read_text(encoding="utf-8").splitlines()
    names = {row["file"]: row["names"]["en"] for row in map(json.loads, lines)}
    order = by_hash(names)
    for part, files in (("test", order[:200]), ("val", order[200:300]), ("train", order[300:])):
        source = offline.write(("file", "caption"), [(file, names[file]) for file in sorted(files)], f"emoji-{part}")
        root = offline.unpacked(offline.data / "emoji" / "noto_emoji_64px.tar")
        offline.pack("images", source, f"emoji-{part}", "--root", root, "--captions", "caption", "--split", part)


def pack_coco(offline: Offline) -> None:
    """``coco-train`` and ``coco-test``: pictures with five captions."""
    for part, name in (("train", "train"), ("test", "val")):
        source = offline.data / "coco_mini" / f"captions_{name}.jsonl"
        root = offline.unpacked(offline.data / "coco_mini" / f"coco_mini_{name}.tar")
        offline.pack("images", source, f"coco-{part}", "--root", root, "--captions", "captions", "--split", part)


def pack_cifar(offline: Offline) -> None:
    """``cifar10-test``: pictures whose folder in the archive is their class."""
    archive = offline.data / "cifar10" / "cifar10-test-subset.tar"
    with tarfile.open(archive) as tar:
        names = sorted(member.name for member in tar if member.isfile() and member.name.endswith(".jpg"))
    source = offline.write(("file", "class"), [(name, Path(name).parent.name) for name in names], "cifar10-test")
    offline.pack(
        "images", source, "cifar10-test", "--root", offline.unpacked(archive), "--label", "class", "--split", "test"
    )


def pack_esc10(offline: Offline) -> None:
    """Fold 4 is the test part; of the others a tenth of the recordings is the validation part, each whole."""
    rows = Offline.rows(offline.data / "esc10" / "esc10.tsv")
    recordings = by_hash({row["freesound_id"] for row in rows if row["fold"] != "4"})
    validation = set(recordings[: len(recordings) // 10])
    split: dict[str, list[dict[str, str]]] = {"train": [], "val": [], "test": []}
    for row in rows:
        part = "test" if row["fold"] == "4" else "val" if row["freesound_id"] in validation else "train"
        split[part].append({"file": row["file"], "class": row["category"].lower()})
    pack_sounds(offline, "esc10", split, offline.data / "esc10" / "esc10_ogg22k_folds1-4.tar")


def pack_fsdd(offline: Offline) -> None:
    """The published test part, and of each speaker and digit one recording as the validation part."""
    split: dict[str, list[dict[str, str]]] = {"train": [], "val": [], "test": []}
    for row in Offline.rows(offline.data / "fsdd" / "fsdd.tsv"):
        part = "test" if row["split"] == "test" else "val" if row["index"] == "5" else "train"
        split[part].append({"file": row["file"], "class": DIGITS[int(row["digit"])], "speaker": row["speaker"]})
    pack_sounds(offline, "fsdd", split, offline.data / "fsdd" / "fsdd_flac.tar")


def pack_sounds(offline: Offline, name: str, split: dict[str, list[dict[str, str]]], root: Path) -> None:
    """``NAME-train``, ``NAME-val`` and ``NAME-test`` with class and captions, in training by every template, else by the
    first."""
    for part, rows in split.items():
        templates = TEMPLATES[name] if part == "train" else TEMPLATES[name][:1]
        columns = [f"caption{i}" for i in range(len(templates))]
        lines = [(row["file"], row["class"], *(t.format(row["class"], **row) for t in templates)) for row in rows]
        source = offline.write(("file", "class", *columns), lines, f"{name}-{part}")
        classes = () if part == "train" else ("--classes-from", str(offline.shards / f"{name}-train"))  # one may be missing
        options = ("--root", offline.unpacked(root), "--label", "class", "--split", part, *classes, "--captions", *columns)
        offline.pack("audio", source, f"{name}-{part}", *options)


def by_hash(names: Sequence[str] | set[str] | dict[str, str]) -> list[str]:
    """The names in an order that only they decide."""
    return sorted(names, key=lambda name: hashlib.sha256(name.encode()).digest())
