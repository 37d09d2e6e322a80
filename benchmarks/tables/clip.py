"""Plain and cyclic models, each alone, with SimCSE on captions (s) and with NLI (n), on small open sets.

    python -m benchmarks.tables.clip images --data DATASETS --out runs/clip-images --steps 300 [--only cyclic-s]
    python -m benchmarks.tables.clip sounds --data DATASETS --out runs/clap-sounds --steps 300 --select map10

DATASETS holds the folders emoji, coco_mini, cifar10, esc10, nli, prompts and sts. Rows have equal steps.

images: emoji with their names and COCO with five captions; 200 emoji and COCO's validation images are held out to be
reported, 100 emoji to choose the checkpoint; CIFAR-10's test images by 80 templates. sounds: ESC-10, captions made from the
class names, folds 1 to 3 (a tenth of their recordings chooses the checkpoint), fold 4 is reported.
"""

from __future__ import annotations

import csv
import hashlib
import json
import tarfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

import tyro

from benchmarks.tables.rows import chosen_steps, markdown, pack, run_rows, write_tsv
from data.streams.inputs import AudioInput, ImageInput
from data.streams.text import TextStream
from evaluation.figures.basic import save
from evaluation.figures.pairs import alignment_text_uniformity, text_item_uniformity
from evaluation.registry import make_tasks
from evaluation.tables import Results
from models.towers import ASTTower, ViTTower
from pipelines import clap, cyclip, parts
from trainers.recipe import OptimConfig, Recipe

CYCLIC: dict[str, dict[str, float]] = {"plain": {}, "cyclic": parts.CYCLIC}
SENTENCES: dict[str, dict[str, float]] = {"": {}, "-s": {"captions": 0.1}, "-n": {"nli": 0.1}}
WEIGHTS = {kind + letter: cyclic | own for kind, cyclic in CYCLIC.items() for letter, own in SENTENCES.items()}
NONE = {"i_cyclic": 0.0, "c_cyclic": 0.0, "captions": 0.0, "nli": 0.0}
TEMPLATES = ("This is a sound of {}", "a sound of {}", "{}", "the sound of {} in a recording")
SOUND = AudioInput(rate=16_000, seconds=5.0, bins=64, n_fft=1024, hop=512, low_hz=50.0, high_hz=8000.0)  # ESC-10's 5 s
# Written out, so that a table stays what it was when a demo changes.
VIT = ViTTower(input=ImageInput(size=64), patch_size=16, width=128, layers=4, heads=4)
AST = ASTTower(input=SOUND, patch_size=16, stride=16, width=128, layers=3, heads=4, mask_bins=8, mask_frames=16)
OPTIM = OptimConfig(lr=1e-3, weight_decay=0.1, schedule="cosine", warmup=0.1)

# ---------------------------------------------------------------------------------------------------------------- packing


def by_hash(names: Sequence[str]) -> list[str]:
    """The names in an order that only they decide."""
    return sorted(names, key=lambda name: hashlib.sha256(name.encode()).digest())


def pack_emoji(data: Path, out: Path) -> None:
    """``emoji-train``, ``emoji-val`` and ``emoji-test``: pictures with their English name."""
    lines = (data / "emoji" / "emoji_names.jsonl").read_text(encoding="utf-8").splitlines()
    names = {row["file"]: row["names"]["en"] for row in map(json.loads, lines)}
    order = by_hash(list(names))
    for part, files in (("test", order[:200]), ("val", order[200:300]), ("train", order[300:])):
        source = write_tsv(out / f"emoji-{part}.tsv", ("file", "caption"), [(file, names[file]) for file in sorted(files)])
        root = str(data / "emoji" / "noto_emoji_64px.tar")
        pack("images", source, out / f"emoji-{part}", "--root", root, "--captions", "caption", "--split", part)


def pack_coco(data: Path, out: Path) -> None:
    """``coco-train`` and ``coco-test``: pictures with five captions."""
    for part, name in (("train", "train"), ("test", "val")):
        source, root = (data / "coco_mini" / file for file in (f"captions_{name}.jsonl", f"coco_mini_{name}.tar"))
        pack("images", source, out / f"coco-{part}", "--root", str(root), "--captions", "captions", "--split", part)


def pack_cifar(data: Path, out: Path) -> None:
    """``cifar10-test``: pictures whose folder in the archive is their class."""
    archive = data / "cifar10" / "cifar10-test-subset.tar"
    with tarfile.open(archive) as tar:
        names = sorted(member.name for member in tar if member.isfile() and member.name.endswith(".jpg"))
    source = write_tsv(out / "cifar10-test.tsv", ("file", "class"), [(name, Path(name).parent.name) for name in names])
    pack("images", source, out / "cifar10-test", "--root", str(archive), "--label", "class", "--split", "test")


def pack_esc10(data: Path, out: Path) -> None:
    """``esc10-train``, ``esc10-val`` and ``esc10-test``: sounds with class and captions made from the class name.

    Clips of one recording are in one part. The test part has one caption, the first template's, as zero-shot has by default.
    """
    with (data / "esc10" / "esc10.tsv").open(encoding="utf-8") as file:
        rows = list(csv.DictReader(file, delimiter="\t"))
    recordings = by_hash(sorted({row["freesound_id"] for row in rows if row["fold"] != "4"}))
    validation = set(recordings[: len(recordings) // 10])
    split: dict[str, list[dict[str, str]]] = {"train": [], "val": [], "test": []}
    for row in rows:
        split["test" if row["fold"] == "4" else "val" if row["freesound_id"] in validation else "train"].append(row)
    for part, chosen in split.items():
        templates = TEMPLATES if part == "train" else TEMPLATES[:1]
        columns = [f"caption{i}" for i in range(len(templates))]
        labels = [(row["file"], row["category"].lower()) for row in chosen]
        lines = [(file, label, *(template.format(label) for template in templates)) for file, label in labels]
        source = write_tsv(out / f"esc10-{part}.tsv", ("file", "class", *columns), lines)
        options = ["--root", str(data / "esc10" / "esc10_ogg22k_folds1-4.tar"), "--label", "class", "--split", part]
        if part != "train":  # a class may be missing there
            options += ["--classes-from", str(out / "esc10-train")]
        pack("audio", source, out / f"esc10-{part}", *options, "--captions", *columns)


# ------------------------------------------------------------------------------------------------------------------- rows


def tasks_of(kind: str, data: Path, shards: Path) -> dict[str, str]:
    """What is reported: name in the table -> task."""
    if kind == "images":
        tasks = {name: f"retrieval:{shards / f'{name}-test'}" for name in ("emoji", "coco")}
        tasks["CIFAR-10"] = f"zero-shot:{shards / 'cifar10-test'}?templates={data / 'prompts' / 'imagenet.json'}"
        tasks["geometry"] = f"geometry:{shards / 'emoji-test'}"
    else:
        tasks = {"esc10": f"retrieval:{shards / 'esc10-test'}?shared=true"}
        tasks["ESC-10"] = f"zero-shot:{shards / 'esc10-test'}"
        tasks["geometry"] = f"geometry:{shards / 'esc10-test'}"
    return {**tasks, "STS-B dev": "stsb-dev"}


def recipe_of(kind: str, row: str, base: Recipe, shards: Path, evaluation: dict[str, Any], steps: int) -> Recipe:
    """`base`, a demo, with the table's data, towers and evaluation and the row's weights."""
    images = kind == "images"
    tower = VIT if images else AST
    train = ("emoji-train", "coco-train") if images else ("esc10-train",)
    pairs = base.streams["pairs"].model_dump() | {
        "shards": "::".join(str(shards / name) for name in train),
        "batch_size": 64 if images else 32,
        "input": tower.input.model_dump(),
    }
    streams: dict[str, Any] = {"pairs": pairs}
    if "nli" in WEIGHTS[row]:
        nli = TextStream(shards=str(shards / "nli"), batch_size=32, columns=("sent0", "sent1", "hard_neg"))
        streams["nli"] = nli.model_dump()
    changes = {
        "name": f"{base.paper}/{kind}-{row}",
        "method": base.method.model_dump() | {"tower": tower.model_dump(), "embed_dim": 128} | NONE | WEIGHTS[row],
        "streams": streams,
        "optim": {"+".join(streams): OPTIM.model_dump()},
        "evaluation": base.evaluation.model_dump() | evaluation,
        "run.epochs": 10_000,
        "run.max_steps": steps,
    }
    return parts.changed(base, changes)


def label(kind: str, row: str) -> str:
    """The paper's name of a row: CyCLIPs of cyclic-s."""
    cyclic, _, letter = row.partition("-")
    return f"{'Cy' if cyclic == 'cyclic' else ''}{'CLIP' if kind == 'images' else 'CLAP'}{letter}"


def columns(kind: str, scores: Mapping[str, Mapping[str, float]]) -> tuple[Results, Results]:
    """Scores by the table's names as the two tables have them: retrieval; everything else."""
    modality, zero_shot = ("image", "CIFAR-10") if kind == "images" else ("audio", "ESC-10")
    ways = {f"{modality}_to_text": "to text", f"text_to_{modality}": f"to {modality}"}
    retrieval = {}
    for name in ("emoji", "coco") if kind == "images" else ("esc10",):
        found = {f"{to} R@{k}": scores[name][f"{way}_r{k}"] for way, to in ways.items() for k in (1, 5, 10)}
        retrieval[name] = {**found, "mean mAP@10": scores[name]["mean_map10"]}
    distances = ("alignment", "text_uniformity", f"{modality}_uniformity")
    rest = {
        f"{zero_shot} zero-shot": {"accuracy": scores[zero_shot]["accuracy"]},
        "held-out": {name.replace("_", " "): scores["geometry"][name] for name in distances},
        "STS-B dev": {"spearman": scores["STS-B dev"]["spearman"]},
    }
    return retrieval, rest


def main(
    kind: tyro.conf.Positional[Literal["images", "sounds"]],
    data: Path,
    out: Path,
    seeds: tuple[int, ...] = (1, 2, 3),
    only: tuple[str, ...] = tuple(WEIGHTS),
    steps: int = 300,
    every: int = 50,
    select: Literal["loss", "map10"] = "loss",
    threads: int = 1,
) -> None:
    """Run what is missing, print two tables, draw the paper's Figures 2 and 3.

    `select`: a checkpoint is chosen by validation loss, as the paper does for pictures, or by mAP@10, as for sounds.
    """
    data, shards = data.resolve(), (out / "shards").resolve()
    for prepare in (pack_emoji, pack_coco, pack_cifar) if kind == "images" else (pack_esc10,):
        prepare(data, shards)
    pack("table", data / "nli" / "nli_triples.csv.gz", shards / "nli", "--columns", "sent0", "sent1", "hard_neg")
    final = tasks_of(kind, data, shards)
    held_out = shards / ("emoji-val" if kind == "images" else "esc10-val")
    shared = "" if kind == "images" else "shared=true&"
    by = {"loss": f"contrastive:{held_out}?batch=50", "map10": f"retrieval:{held_out}?{shared}primary=mean_map10"}
    evaluation = {
        "data": str(data / "sts"),
        "select": by[select],
        "watch": (f"geometry:{held_out}",),
        "final": tuple(final.values()),
        "every": every,
    }
    base = (cyclip if kind == "images" else clap).RECIPES["demo"]()
    runs = run_rows({row: recipe_of(kind, row, base, shards, evaluation, steps) for row in only}, seeds, out, threads)

    names = {name: make_tasks([task], data / "sts")[0].name for name, task in final.items()}

    def named(results: Results) -> dict[str, Mapping[str, float]]:
        return {name: results[task] for name, task in names.items()}

    models = {label(kind, row): [named(run["after"]) for run in found] for row, found in runs.items()}
    untrained = [named(run["before"]) for run in runs[only[0]]]
    for part in (0, 1):
        rows = {name: [columns(kind, run)[part] for run in found] for name, found in models.items()}
        print(markdown(rows | {"untrained": [columns(kind, run)[part] for run in untrained]}, label(kind, only[0])), "\n")
    print(f"Chosen after steps: {chosen_steps(runs)}")
    places = {name: [run["geometry"] for run in found] for name, found in models.items()}
    for number, figure in ((2, alignment_text_uniformity(places)), (3, text_item_uniformity(places))):
        print(*save(figure, out / "figures", f"{kind}_figure{number}"), sep="\n")


if __name__ == "__main__":
    tyro.cli(main, description=__doc__)
