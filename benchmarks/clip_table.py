"""Plain and cyclic models, each alone, with SimCSE on captions (s) and with NLI (n): the tables of docs/clip.md.

    python benchmarks/clip_table.py images --data DATASETS --out runs/clip-images.jsonl --steps 300 [--only cyclic-s]
    python benchmarks/clip_table.py sounds --data DATASETS --out runs/clap-sounds.jsonl --steps 300

DATASETS holds the folders emoji, coco_mini, cifar10, esc10, nli, prompts and sts. Runs have equal steps and are done one
after the other in this process. Each adds a line to the file; those that it holds are not done again, so that a grid can be
stopped and continued. Shards, runs and the paper's Figures 2 and 3 lie in a folder beside the file.

images: emoji with their names and COCO with five captions; 200 emoji and COCO's validation images are held out to be
reported, 100 emoji to choose the checkpoint; CIFAR-10's test images by 80 templates. sounds: ESC-10, captions made from the
class names, folds 1 to 3 (a tenth of their recordings chooses the checkpoint), fold 4 is reported.
"""

from __future__ import annotations

import csv
import hashlib
import json
import sys
import tarfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from importlib import import_module
from pathlib import Path
from typing import Annotated, Any, Literal

import tyro

if __name__ == "__main__":  # the repository before what is installed, so that a clone measures itself
    sys.path[0] = str(Path(__file__).resolve().parents[1])

from benchmarks.records import Record, chosen_rows, complete, grouped
from data.pack import TarFiles, manifest_files, table_rows
from data.shard_writer import Draft, Output, pack
from data.streams.inputs import AudioInput, ImageInput
from data.streams.pairs import fill
from data.streams.text import TextStream
from evaluation.figures.basic import save
from evaluation.figures.pairs import alignment_text_uniformity, text_item_uniformity
from evaluation.tables import Row, comparison, significance
from models.towers import ASTTower, ViTTower
from trainers.recipe import OptimConfig, Recipe

CYCLIC = {"plain": {}, "cyclic": {"i_cyclic": 0.25, "c_cyclic": 0.25}}
SENTENCES: dict[str, dict[str, float]] = {"": {}, "s": {"captions": 0.1}, "n": {"nli": 0.1}}
CONFIGS: dict[str, dict[str, float]] = {
    f"{kind}-{letter}".rstrip("-"): {**cyclic, **sentences}
    for kind, cyclic in CYCLIC.items()
    for letter, sentences in SENTENCES.items()
}
TEST_EMOJI, VALIDATION_EMOJI = 200, 100
CLASS_TEMPLATES = ("This is a sound of {}", "a sound of {}", "{}", "the sound of {} in a recording")
UNTRAINED = "untrained"
SOUND = AudioInput(rate=16_000, seconds=5.0, bins=64, n_fft=1024, hop=512, low_hz=50.0, high_hz=8000.0)  # ESC-10's 5 s
TOWERS: dict[str, dict[str, Any]] = {  # written out, so that a table stays what it was when a demo changes
    "images": ViTTower(input=ImageInput(size=64), patch_size=16, width=128, layers=4, heads=4).model_dump(),
    "sounds": ASTTower(
        input=SOUND, patch_size=16, stride=16, width=128, layers=3, heads=4, mask_bins=8, mask_frames=16
    ).model_dump(),
}
OPTIM = OptimConfig(lr=1e-3, weight_decay=0.1, schedule="cosine", warmup=0.1)
BATCH = {"images": 64, "sounds": 32}


@dataclass(frozen=True, kw_only=True)
class Common:
    data: Path
    """The folder of the data sets."""
    out: Path
    """JSON lines, one a run; made or continued."""
    seeds: tuple[int, ...] = (1, 2, 3)
    steps: int = 300
    """Of every run."""
    every: int = 50
    """Steps between evaluations, at which the checkpoint is chosen."""
    batch: int | None = None
    """Pairs of a batch; none: 64 pictures or 32 sounds."""
    nli_batch: int = 32
    """Triples of a batch where NLI takes part."""
    select: Literal["paper", "map10"] = "paper"
    """What chooses a checkpoint: `paper` is the validation loss for pictures and mAP@10 for sounds; `map10` for both."""
    only: tuple[str, ...] = ()
    """Some of plain, plain-s, plain-n, cyclic, cyclic-s, cyclic-n; none: all."""
    threads: int = 1
    """Of torch."""

    @property
    def work(self) -> Path:
        """Where shards, runs and figures lie."""
        return self.out.with_suffix("")

    @property
    def configs(self) -> tuple[str, ...]:
        """The chosen rows, in the table's order. Raises ValueError for an unknown one."""
        return chosen_rows(self.only, CONFIGS)


@dataclass(frozen=True, kw_only=True)
class Images(Common):
    """CLIP and CyCLIP on emoji and COCO."""


@dataclass(frozen=True, kw_only=True)
class Sounds(Common):
    """CLAP and CyCLAP on ESC-10."""


# ---------------------------------------------------------------------------------------------------------------- packing


def by_hash(names: Sequence[str]) -> list[str]:
    """The names in an order that only they decide."""
    return sorted(names, key=lambda name: hashlib.sha256(name.encode()).digest())


def pack_emoji(data: Path, out: Path) -> None:
    """``emoji-train``, ``emoji-val`` and ``emoji-test``: pictures with their English name."""
    lines = (data / "emoji" / "emoji_names.jsonl").read_text(encoding="utf-8").splitlines()
    names = {row["file"]: row["names"]["en"] for row in map(json.loads, lines)}
    order = by_hash(list(names))
    held = TEST_EMOJI + VALIDATION_EMOJI
    parts = {"test": order[:TEST_EMOJI], "val": order[TEST_EMOJI:held], "train": order[held:]}
    files = TarFiles(data / "emoji" / "noto_emoji_64px.tar")
    for part, chosen in parts.items():
        drafts = [Draft({"txt": names[file].encode()}, file, key=file.split(".")[0]) for file in sorted(chosen)]
        pack(drafts, Output(out / f"emoji-{part}", "emoji", part, licence="Apache-2.0"), files)


def pack_coco(data: Path, out: Path) -> None:
    """``coco-train`` and ``coco-test``: pictures with five captions."""
    for part, source in (("train", "train"), ("test", "val")):
        folder = data / "coco_mini"
        files = TarFiles(folder / f"coco_mini_{source}.tar")
        drafts = manifest_files(folder / f"captions_{source}.jsonl", ("jpg",), files, captions=("captions",))
        pack(drafts, Output(out / f"coco-{part}", "coco", part, licence="CC, by image"), files)


def pack_cifar(data: Path, out: Path) -> None:
    """``cifar10-test``: pictures whose folder in the archive is their class."""
    archive = data / "cifar10" / "cifar10-test-subset.tar"
    classes = json.loads((data / "cifar10" / "classes.json").read_text())
    with tarfile.open(archive) as tar:
        names = sorted(member.name for member in tar if member.isfile() and member.name.endswith(".jpg"))
    drafts = [
        Draft(file=name, label=Path(name).parent.name, key=f"{Path(name).parent.name}-{Path(name).stem}") for name in names
    ]
    pack(drafts, Output(out / "cifar10-test", "cifar10", "test"), TarFiles(archive), classes)


def pack_nli(data: Path, out: Path) -> None:
    """``nli``: premise, entailment, contradiction."""
    triples = table_rows(data / "nli" / "nli_triples.csv.gz", ("sent0", "sent1", "hard_neg"))
    pack(triples, Output(out / "nli", "nli"))


def pack_esc10(data: Path, out: Path) -> None:
    """``esc10-train``, ``esc10-val`` and ``esc10-test``: sounds with class and captions made from the class name.

    Clips of one recording are in one part. The test part has one caption, the first template's, as zero-shot has by default.
    """
    folder = data / "esc10"
    with (folder / "esc10.tsv").open(encoding="utf-8") as file:
        rows = list(csv.DictReader(file, delimiter="\t"))
    classes = sorted({row["category"].lower() for row in rows})
    recordings = by_hash(sorted({row["freesound_id"] for row in rows if row["fold"] != "4"}))
    validation = set(recordings[: len(recordings) // 10])
    parts: dict[str, list[dict[str, str]]] = {"train": [], "val": [], "test": []}
    for row in rows:
        parts["test" if row["fold"] == "4" else "val" if row["freesound_id"] in validation else "train"].append(row)
    files = TarFiles(folder / "esc10_ogg22k_folds1-4.tar")
    for part, chosen in parts.items():
        drafts = _labelled(chosen, CLASS_TEMPLATES if part == "train" else CLASS_TEMPLATES[:1])
        pack(drafts, Output(out / f"esc10-{part}", "esc10", part, licence="CC, by clip"), files, classes)


def _labelled(rows: Sequence[Mapping[str, str]], templates: Sequence[str]) -> Iterator[Draft]:
    for row in rows:
        label = row["category"].lower()
        captions = json.dumps({"captions": [fill(template, label) for template in templates]})
        yield Draft({"json": captions.encode()}, row["file"], label, row["file"].split(".")[0])


PACKERS = {"emoji-train": pack_emoji, "coco-train": pack_coco, "cifar10-test": pack_cifar, "esc10-train": pack_esc10}


# ------------------------------------------------------------------------------------------------------------------- grids


@dataclass(frozen=True)
class Grid:
    """What a table is about, in the shards of folder `shards`."""

    kind: Literal["images", "sounds"]
    shards: Path
    data: Path
    by: Literal["paper", "map10"] = "paper"

    @property
    def modality(self) -> str:
        """As task names have it."""
        return "image" if self.kind == "images" else "audio"

    @property
    def train(self) -> tuple[str, ...]:
        """Sets that are trained on."""
        return ("emoji-train", "coco-train") if self.kind == "images" else ("esc10-train",)

    @cached_property
    def select(self) -> str:
        """The paper's choice for each: validation loss for pictures, mAP@10 for sounds."""
        if self.kind == "images" and self.by == "map10":
            return f"retrieval:{self.shards / 'emoji-val'}?primary=mean_map10"
        if self.kind == "images":
            return f"contrastive:{self.shards / 'emoji-val'}?batch=50"
        return f"retrieval:{self.shards / 'esc10-val'}?shared=true&primary=mean_map10"

    @property
    def watch(self) -> tuple[str, ...]:
        """What is logged at every evaluation."""
        return (f"geometry:{self.shards / ('emoji-val' if self.kind == 'images' else 'esc10-val')}",)

    @property
    def final(self) -> dict[str, str]:
        """What is reported: name in the table -> task."""
        if self.kind == "images":
            templates = self.data / "prompts" / "imagenet.json"
            tasks = {name: f"retrieval:{self.shards / f'{name}-test'}" for name in ("emoji", "coco")}
            tasks["CIFAR-10"] = f"zero-shot:{self.shards / 'cifar10-test'}?templates={templates}"
            tasks["geometry"] = f"geometry:{self.shards / 'emoji-test'}"
        else:
            tasks = {"esc10": f"retrieval:{self.shards / 'esc10-test'}?shared=true"}
            tasks["ESC-10"] = f"zero-shot:{self.shards / 'esc10-test'}"
            tasks["geometry"] = f"geometry:{self.shards / 'esc10-test'}"
        return {**tasks, "STS-B dev": "stsb-dev"}

    def label(self, config: str) -> str:
        """The paper's name of a row: CyCLIPs of cyclic-s."""
        kind, _, letter = config.partition("-")
        name = "CLIP" if self.kind == "images" else "CLAP"
        return f"{'Cy' if kind == 'cyclic' else ''}{name}{letter}"

    def key(self, a: Common) -> Record:
        """What runs of one table have in common."""
        return {"grid": self.kind, "steps": a.steps}

    def prepare(self) -> None:
        """Pack what is not packed yet."""
        for name in (*self.train, *(("cifar10-test",) if self.kind == "images" else ())):
            if not (self.shards / name / "dataset.json").exists():
                PACKERS[name](self.data, self.shards)
        if not (self.shards / "nli" / "dataset.json").exists():
            pack_nli(self.data, self.shards)

    def base(self) -> Recipe:
        """The demo recipe of the pipeline, which this table puts on other data."""
        pipeline = import_module("pipelines.cyclip" if self.kind == "images" else "pipelines.clap")
        recipe: Recipe = pipeline.RECIPES["demo"]()
        return recipe


def recipe_of(grid: Grid, base: Recipe, config: str, seed: int, a: Common) -> Recipe:
    """The recipe of one run: `base` with the grid's data and tasks and the row's weights."""
    weights = {name: 0.0 for row in CONFIGS.values() for name in row} | CONFIGS[config]
    tower = TOWERS[grid.kind]
    own: dict[str, Any] = {"augment": "crop"} if grid.kind == "images" else {}
    method = base.method.model_dump() | {"tower": tower, "embed_dim": 128}
    pairs = base.streams["pairs"].model_copy(
        update={
            "shards": "::".join(str(grid.shards / name) for name in grid.train),
            "templates": (),
            "classes": (),
            "batch_size": a.batch or BATCH[grid.kind],
            "input": (ImageInput if grid.kind == "images" else AudioInput)(**tower["input"]),
            **own,
        }
    )
    streams: dict[str, Any] = {"pairs": pairs.model_dump()}
    if weights["nli"]:
        nli = TextStream(shards=str(grid.shards / "nli"), batch_size=a.nli_batch, columns=("sent0", "sent1", "hard_neg"))
        streams["nli"] = nli.model_dump()
    folder = a.work / "runs" / f"{config}-{seed}"
    changes = {
        "name": f"{base.paper}/{grid.kind}-{config}",
        "method": {**method, **weights},
        "streams": streams,
        "optim": {"+".join(streams): OPTIM.model_dump()},
        "evaluation": {
            **base.evaluation.model_dump(),
            "data": str(grid.data / "sts"),
            "select": grid.select,
            "watch": grid.watch,
            "final": tuple(grid.final.values()),
            "every": a.every,
        },
        "run.output": str(folder),
        "run.tracking_uri": f"sqlite:///{a.work.resolve()}/mlflow.db",
        "run.seed": seed,
        "run.workers": 0,
        "run.threads": a.threads,
        "run.epochs": 10_000,
        "run.max_steps": a.steps,
    }
    recipe = base
    for path, value in changes.items():
        recipe = recipe.replace(path, value)
    return recipe


def run(grid: Grid, base: Recipe, config: str, seed: int, a: Common) -> Record:
    """Train one model; what it scored, by the table's names."""
    from evaluation.registry import make_tasks
    from trainers.engine.launch import fit

    recipe = recipe_of(grid, base, config, seed, a)
    summary = fit(recipe)
    titles = {name: make_tasks([task], recipe.evaluation.data)[0].name for name, task in grid.final.items()}
    return {
        **grid.key(a),
        "row": config,
        "seed": seed,
        "identity": summary["identity"],
        "best_step": summary["best_step"],
        "seconds": summary["seconds"],
        **{side: {name: summary[side][title] for name, title in titles.items()} for side in ("before", "after")},
    }


# ----------------------------------------------------------------------------------------------------------------- results


def columns(grid: Grid, scores: Mapping[str, Mapping[str, float]]) -> tuple[dict[str, Any], dict[str, Any]]:
    """Scores of a run as the two tables have them: retrieval; everything else."""
    retrieval: dict[str, Any] = {}
    for name in ("emoji", "coco") if grid.kind == "images" else ("esc10",):
        ways = {f"{grid.modality}_to_text": "to text", f"text_to_{grid.modality}": f"to {grid.modality}"}
        numbers = {f"{to} R@{k}": scores[name][f"{way}_r{k}"] for way, to in ways.items() for k in (1, 5, 10)}
        retrieval[name] = {**numbers, "mean mAP@10": scores[name]["mean_map10"]}
    zero_shot = "CIFAR-10" if grid.kind == "images" else "ESC-10"
    wanted = ("alignment", "text_uniformity", f"{grid.modality}_uniformity")
    rest = {
        f"{zero_shot} zero-shot": {"accuracy": scores[zero_shot]["accuracy"]},
        "held-out": {name.replace("_", " "): scores["geometry"][name] for name in wanted},
        "STS-B dev": {"spearman": scores["STS-B dev"]["spearman"]},
    }
    return retrieval, rest


def tables(grid: Grid, records: Sequence[Record]) -> str:
    """Two Markdown tables, a row a model, mean ± sd over seeds; marks are for differences from the first row."""
    runs = grouped(records, CONFIGS)
    first = next(iter(runs.values()))
    blocks = []
    for part in (0, 1):
        rows = [Row(grid.label(name), [columns(grid, r["after"])[part] for r in found]) for name, found in runs.items()]
        untrained = Row(UNTRAINED, [columns(grid, r["before"])[part] for r in first])
        several = len(rows) > 1 and all(len(row.runs) > 1 for row in rows)
        marks = significance(rows) if several else None
        blocks.append(comparison([*rows, untrained], marks=marks, style="markdown"))
    return "\n\n".join(blocks)


def figures(grid: Grid, records: Sequence[Record], folder: Path) -> list[Path]:
    """The paper's Figures 2 and 3 of the runs; the files written."""
    models = {grid.label(name): [r["after"]["geometry"] for r in runs] for name, runs in grouped(records, CONFIGS).items()}
    two, three = alignment_text_uniformity(models), text_item_uniformity(models)
    return [*save(two, folder, f"{grid.kind}_figure2"), *save(three, folder, f"{grid.kind}_figure3")]


def main(a: Images | Sounds) -> None:
    """Run what is missing, print the tables, write the figures."""
    a = replace(a, data=a.data.resolve(), out=a.out.resolve())
    grid = Grid("images" if isinstance(a, Images) else "sounds", a.work / "shards", a.data, a.select)
    configs = a.configs
    grid.prepare()
    base = grid.base()
    records = complete(a.out, grid.key(a), configs, a.seeds, lambda config, seed: run(grid, base, config, seed, a))
    print(tables(grid, records))
    print(*figures(grid, records, a.work / "figures"), sep="\n")


if __name__ == "__main__":
    main(
        tyro.cli(
            Annotated[Images, tyro.conf.subcommand("images")] | Annotated[Sounds, tyro.conf.subcommand("sounds")],
            description=__doc__,
        )
    )
