"""The tables and figures of Zhao et al. 2023: CLIP, CyCLIP and CLAP with sentence losses.

A table that is printed in two parts is two here, T3a and T3b. Models of pictures are trained by the recipes of
`pipelines/cyclip.py`, models of sounds by those of `pipelines/clap.py`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from functools import partial
from typing import TYPE_CHECKING

from multicse.pipelines.clap import ZERO_SHOT as SOUND_CLASSES
from multicse.pipelines.cyclip import ZERO_SHOT as CLASSES
from multicse.reproduction.tables.clip_mini import mini as mini
from multicse.reproduction.tables.table import Numbers, Row, Table, Values, listed

if TYPE_CHECKING:
    from matplotlib.figure import Figure

PICTURES = {  # the paper's name -> recipe, in the order of its Tables 16 and 17
    **{"CLIP": "clip", "CLIPn": "clip-n", "CLIPe": "clip-e", "CLIPs": "clip-s"},
    **{"CyCLIP": "cyclip", "CyCLIPn": "cyclip-n", "CyCLIPe": "cyclip-e", "CyCLIPs": "cyclip-s"},
}
SOUNDS = {"CLAP": "clap", "CLAPs": "clap-s", "CyCLAP": "cyclap", "CyCLAPs": "cyclap-s"}
HEADS = ("TR R@1", "TR R@5", "TR R@10", "IR R@1", "IR R@5", "IR R@10")
"""Text retrieval: a picture or sound is the query; image (or audio, music) retrieval: a caption is."""

# --------------------------------------------------------------------------------------------------- the paper's numbers

COCO_NUMBERS = {  # Tables 3 (top) and 14, whose last row is misprinted CLIPe
    "CLIP": (15.70, 37.22, 49.06, 12.48, 31.10, 42.23),
    "CLIPs": (17.78, 38.92, 50.10, 13.46, 32.93, 44.09),
    "CLIPn": (15.74, 35.66, 47.38, 13.12, 31.46, 42.55),
    "CLIPe": (16.90, 38.40, 49.92, 13.21, 31.21, 42.26),
    "CyCLIP": (18.92, 41.46, 54.00, 15.40, 35.61, 46.95),
    "CyCLIPs": (21.30, 44.34, 56.54, 16.69, 37.75, 49.24),
    "CyCLIPn": (16.32, 36.76, 48.16, 14.53, 34.07, 45.52),
    "CyCLIPe": (16.22, 37.52, 49.22, 14.05, 32.56, 43.15),
}
FLICKR_NUMBERS = {
    "CLIP": (31.80, 62.10, 72.90, 25.50, 52.28, 64.34),
    "CLIPs": (35.20, 63.20, 75.30, 26.70, 52.34, 64.32),
    "CyCLIP": (37.30, 66.10, 76.40, 30.22, 56.70, 67.40),
    "CyCLIPs": (40.00, 69.30, 79.70, 31.74, 58.02, 69.46),
}
CLOTHO_NUMBERS = {
    "CLAP": (13.88, 34.16, 48.90, 11.67, 33.80, 47.10),
    "CLAPs": (13.49, 35.60, 49.00, 11.92, 32.54, 45.47),
    "CyCLAP": (14.74, 35.50, 48.52, 11.90, 34.95, 48.61),
    "CyCLAPs": (14.93, 36.84, 51.00, 12.08, 34.09, 46.76),
}
AUDIOCAPS_NUMBERS = {
    "CLAP": (44.10, 76.80, 87.67, 34.82, 70.62, 82.93),
    "CLAPs": (42.73, 75.44, 87.57, 34.69, 69.80, 82.99),
    "CyCLAP": (40.65, 74.19, 86.52, 34.13, 69.24, 82.30),
    "CyCLAPs": (39.81, 74.40, 85.79, 34.23, 70.24, 82.74),
}
SCRATCH_CLOTHO_NUMBERS = {
    "CLAP": (2.30, 7.85, 13.88, 2.28, 7.94, 13.47),
    "CLAPs": (2.11, 8.32, 15.98, 2.81, 8.84, 14.91),
    "CyCLAP": (2.97, 9.09, 14.07, 2.07, 7.67, 13.11),
    "CyCLAPs": (3.54, 10.05, 15.41, 2.64, 8.88, 14.87),
}
SCRATCH_AUDIOCAPS_NUMBERS = {
    "CLAP": (16.30, 43.78, 58.41, 14.19, 40.02, 53.98),
    "CLAPs": (17.76, 44.10, 57.99, 13.81, 38.60, 52.02),
    "CyCLAP": (18.81, 44.83, 61.23, 14.96, 39.94, 54.67),
    "CyCLAPs": (18.18, 47.23, 61.02, 13.96, 40.56, 54.84),
}
MUSICCAPS_NUMBERS = {
    "CLAP": (6.05, 18.42, 28.33, 5.46, 18.45, 28.50),
    "CLAPs": (5.99, 18.66, 28.85, 6.05, 19.01, 28.43),
    "CyCLAP": (6.37, 18.98, 29.45, 6.69, 18.87, 29.45),
    "CyCLAPs": (6.34, 20.06, 30.08, 6.62, 19.36, 29.13),
}
SOUND_CLASS_NUMBERS = {  # Table 7, and with the prompts of Table 12 Table 11: ESC50, US8K
    "": {"CLAP": (72.25, 67.76), "CLAPs": (71.75, 67.42), "CyCLAP": (78.00, 70.46), "CyCLAPs": (75.75, 65.98)},
    "audiocaps-": {"CLAP": (74.50, 69.78), "CLAPs": (72.75, 64.14), "CyCLAP": (77.50, 67.90), "CyCLAPs": (75.50, 66.94)},
}
SOUND_CLASS_NUMBERS_29 = {
    "": {"CLAP": (73.00, 69.64), "CLAPs": (73.25, 70.27), "CyCLAP": (77.00, 71.82), "CyCLAPs": (77.75, 68.75)},
    "audiocaps-": {"CLAP": (79.25, 72.00), "CLAPs": (75.00, 66.49), "CyCLAP": (80.50, 69.46), "CyCLAPs": (78.50, 69.38)},
}
# Tables 16 and 17, of which 8 and 6 are parts: a number for each of PICTURES.
STS = {
    "sts12": (46.14, 54.25, 46.54, 50.31, 37.84, 45.60, 42.03, 40.42),
    "sts13": (50.24, 59.67, 46.29, 48.44, 52.35, 37.82, 35.56, 54.90),
    "sts14": (48.70, 59.26, 47.66, 51.73, 46.58, 40.55, 27.57, 49.46),
    "sts15": (64.90, 73.81, 65.48, 66.09, 63.25, 59.62, 46.65, 67.01),
    "sts16": (51.94, 63.08, 52.39, 55.62, 50.96, 46.80, 33.83, 52.87),
    "stsb-test": (61.54, 68.36, 60.99, 65.04, 60.30, 54.88, 44.63, 60.72),
    "sickr": (64.70, 73.09, 62.86, 65.82, 64.78, 62.62, 47.53, 64.34),
    "Avg": (55.45, 64.50, 54.60, 57.58, 53.72, 49.70, 39.69, 55.67),
}
TRANSFER = {
    "mr": (61.07, 63.66, 59.91, 61.11, 59.51, 62.78, 59.60, 60.65),
    "cr": (67.63, 71.07, 68.74, 68.03, 67.02, 73.67, 64.61, 66.12),
    "subj": (76.39, 78.09, 75.86, 77.52, 74.24, 78.90, 74.16, 77.36),
    "mpqa": (74.60, 77.25, 73.54, 74.80, 74.69, 80.13, 73.95, 76.16),
    "sst2": (61.67, 66.89, 60.19, 63.65, 61.50, 68.42, 60.46, 64.25),
    "trec": (60.80, 56.00, 56.60, 60.60, 55.80, 53.80, 57.60, 62.80),
    "mrpc": (67.07, 67.77, 67.83, 67.77, 68.00, 68.75, 67.48, 68.29),
    "Avg": (67.03, 68.68, 66.10, 67.64, 65.82, 69.49, 65.41, 67.95),
}
PICTURE_CLASS_NUMBERS = {
    "CIFAR10": (28.31, 44.06, 33.97, 36.80, 38.67, 41.16, 50.48, 44.97),
    "CIFAR100": (13.23, 17.93, 12.30, 10.72, 17.44, 19.82, 21.76, 22.05),
    "ImageNet1K": (14.94, 15.97, 15.74, 16.01, 20.99, 18.13, 20.07, 22.13),
    "ImageNetV2": (12.85, 13.41, 13.51, 14.09, 17.77, 15.65, 17.34, 18.68),
    "ImageNet-Sk.": (7.72, 7.75, 6.36, 8.14, 11.67, 9.93, 11.54, 12.85),
    "ImageNet-O": (20.75, 21.95, 20.45, 21.30, 27.05, 24.45, 27.20, 29.55),
    "ImageNet-A": (3.59, 3.41, 3.59, 3.95, 5.03, 4.45, 4.93, 5.19),
    "ImageNet-R": (18.39, 18.51, 18.25, 18.24, 24.37, 23.07, 24.36, 26.72),
}
SETTINGS = {"Largest logit scale (log)": 4.6052, "Batch size": 80, "Language encoder dropout": 0.1}  # Tables 9 and 10

# ------------------------------------------------------------------------------------------------------------------ parts


def pictures(numbers: Mapping[str, tuple[float, ...]]) -> tuple[Row, ...]:
    """A row for each model of pictures that has numbers."""
    return tuple(Row(name, f"cyclip/{PICTURES[name]}", paper=paper) for name, paper in numbers.items())


def sounds(numbers: Mapping[str, tuple[float, ...]], data: str, about: str = "") -> tuple[Row, ...]:
    """A row for each model of sounds, of the recipes with the prefix of a data set ("" is Clotho)."""
    against = f"CLAP{about}"
    return tuple(Row(n + about, f"clap/{data}{SOUNDS[n]}", paper=paper, reference=against) for n, paper in numbers.items())


def by_model(numbers: Mapping[str, tuple[float, ...]], names: Iterable[str]) -> dict[str, tuple[float, ...]]:
    """The numbers of some models of pictures, from those that a column has of all."""
    models = dict(zip(PICTURES, zip(*numbers.values(), strict=True), strict=True))
    return {name: models[name] for name in names}


def retrieval(title: str, place: str, small: str, modality: str, rows: tuple[Row, ...]) -> Table:
    """Retrieval in both directions from the shards of a place, at the small scale from others."""
    metrics = [f"{way}_r{k}" for way in (f"{modality}_to_text", f"text_to_{modality}") for k in (1, 5, 10)]
    columns, own = (tuple(f"retrieval:{shards}#{metric}" for metric in metrics) for shards in (place, small))
    return Table(title, columns, rows, HEADS, reference=rows[0].label, mini=own)


def chosen_by(title: str, place: str, small: str, rows: tuple[Row, ...]) -> Table:
    """Table 4: mAP@10 of the split that the checkpoint is chosen on."""
    metrics = ("audio_to_text_map10", "text_to_audio_map10")
    columns = tuple(f"retrieval:{place}?released=true#{metric}" for metric in metrics)
    own = tuple(f"retrieval:{small}#{metric}" for metric in metrics)
    counted = "how mAP@10 is counted; here as LAION's code does, which does not sort the ranks of a clip's captions"
    return Table(title, columns, rows, ("TR", "AR"), reference=rows[0].label, mini=own, open=counted)


def picture_classes(title: str, names: Iterable[str]) -> Table:
    """Tables 6 and 17."""
    rows = pictures(by_model(PICTURE_CLASS_NUMBERS, names))
    small = ("zero-shot:{shards}/cifar10-test?templates={data}/prompts/imagenet.json",)
    left = "the templates of CIFAR and the classes of ImageNet-O; here ImageNet's 80, and the set's own 200"
    return Table(title, CLASSES, rows, tuple(PICTURE_CLASS_NUMBERS), reference="CLIP", mini=small, open=left)


def sound_classes(title: str, numbers: Mapping[str, Mapping[str, tuple[float, ...]]], options: str) -> Table:
    """Tables 7 and 11."""
    names = {"": " on Clotho", "audiocaps-": " on AudioCaps"}
    rows = tuple(row for data, own in numbers.items() for row in sounds(own, data, names[data]))
    columns = tuple(task + options for task in SOUND_CLASSES)
    small = tuple(f"zero-shot:{{shards}}/{name}-test{options}" for name in ("esc10", "fsdd"))
    return Table(title, columns, rows, ("ESC50", "US8K"), reference=rows[0].label, mini=small)


def sentences(title: str, numbers: Mapping[str, tuple[float, ...]], names: Iterable[str]) -> Table:
    """Tables 8 and 16: the language encoder alone."""
    columns, rows = tuple(numbers)[:-1], pictures(by_model(numbers, names))
    small = ("trec",) if numbers is TRANSFER else None  # all seven take longer than the training
    left = "what SentEval's default configurations are; here cosine over all pairs of a set, and the toolkit's classifiers"
    return Table(title, columns, rows, average=True, reference="CLIP", protocol="released", mini=small, open=left)


def panel(number: int, title: str, place: str, small: str, modality: str, rows: tuple[Row, ...]) -> Table:
    """A part of Figure 2 or 3; both are drawn from the same numbers."""
    metrics = ("alignment", "text_uniformity", f"{modality}_uniformity")
    columns, own = (tuple(f"geometry:{shards}#{metric}" for metric in metrics) for shards in (place, small))
    left = "which models each of its four panels holds, and the numbers; here one panel a set of pairs, with all models"
    return Table(title, columns, rows, metrics, mini=own, draw=partial(draw, number), open=left)


def settings(items: str, pipeline: str, own: dict[str, float]) -> Table:
    """Tables 9 and 10."""
    numbers: dict[str, Numbers] = {name: (value,) for name, value in (SETTINGS | own).items()}
    where = f"a list, nothing to measure; pipelines/{pipeline}.py"
    return listed(f"Settings of models of {items}", ("value",), where, numbers)


def draw(number: int, table: Table, values: Values) -> Figure:
    """Figure 2 or 3, a mark for each run."""
    from multicse.reproduction.figures.pairs import alignment_text_uniformity, text_item_uniformity

    models = {}
    for label, columns in values.items():
        metrics = [column.partition("#")[2] for column in columns]
        models[label] = [dict(zip(metrics, run, strict=True)) for run in zip(*columns.values(), strict=True)]
    return (alignment_text_uniformity if number == 2 else text_item_uniformity)(models)


# ----------------------------------------------------------------------------------------------------------------- tables

ESC10, FSDD, TONES = ("{shards}/" + name for name in ("esc10-test?shared=true", "fsdd-test?shared=true", "sounds-test"))
LAION = Row("CLAP (Wu et al., 2023)", "clap/released", paper=(13.80, 20.40))
LAION_AUDIOCAPS = Row(
    "CLAP (Wu et al., 2023)", paper=(45.70, 51.30), lacks="quoted; no script for AudioCaps alone is published"
)
NO_E = tuple(name for name in PICTURES if not name.endswith("e"))
ON_COCO = ("shards/coco", "{shards}/coco-test", "image")
ON_FLICKR = ("shards/flickr30k", "{shards}/emoji-test", "image")
ON_AUDIOCAPS = ("shards/audiocaps-test", "{shards}/fsdd-test", "audio")
CLOTHO, AUDIOCAPS = ("shards/clotho-val", ESC10, "audio"), ("shards/audiocaps-test", FSDD, "audio")
ALL_PICTURES = tuple(Row(name, f"cyclip/{PICTURES[name]}") for name in NO_E)
ALL_SOUNDS = tuple(Row(name, f"clap/audiocaps-{recipe}") for name, recipe in SOUNDS.items())

TABLES = {
    "T1": listed(
        "Losses of each model (1: it has it)",
        ("contrastive", "c-cyclic", "i-cyclic", "captions (s)", "nli (n)"),
        "a list, nothing to measure; pipelines/cyclip.py and pipelines/clap.py, MODELS",
        {
            "CLI(A)P": (1, None, None, None, None),
            "CLI(A)Ps": (1, None, None, 1, None),
            "CLI(A)Pn": (1, None, None, None, 1),
            "CyCLI(A)P": (1, 1, 1, None, None),
            "CyCLI(A)Ps": (1, 1, 1, 1, None),
            "CyCLIPn": (1, 1, 1, None, 1),
        },
    ),
    "T2": listed(
        "Data sets: pictures, or sounds",
        ("size",),
        "a list, nothing to measure; docs/papers/clip.md",
        {
            **{"CC3M": (2_806_641,), "MSCOCO": (5000,), "Flickr30K": (1000,), "CIFAR10": (10_000,), "CIFAR100": (10_000,)},
            **{"ImageNet1K": (50_000,), "ImageNetV2": (10_000,), "ImageNetSketch": (50_889,), "ImageNet-O": (2000,)},
            **{"ImageNet-A": (7500,), "ImageNet-R": (30_000,), "Clotho": (5929,), "AudioCaps": (50_725,)},
            **{"ESC50": (400,), "US8K": (8732,)},
        },
    ),
    "T3a": retrieval("Retrieval on COCO", *ON_COCO, pictures({name: COCO_NUMBERS[name] for name in NO_E})),
    "T3b": retrieval("Retrieval on Flickr30K, of models that have not seen SNLI", *ON_FLICKR, pictures(FLICKR_NUMBERS)),
    "T4a": chosen_by(
        "mAP@10 on Clotho, validation", "shards/clotho-val", ESC10, (Row("CLAP", "clap/clap", paper=(12.24, 21.21)), LAION)
    ),
    "T4b": chosen_by(
        "mAP@10 on AudioCaps, validation",
        "shards/audiocaps-val",
        FSDD,
        (Row("CLAP", "clap/audiocaps-clap", paper=(51.34, 55.60)), LAION_AUDIOCAPS),
    ),
    "T5a": retrieval("Retrieval on Clotho, validation", *CLOTHO, sounds(CLOTHO_NUMBERS, "")),
    "T5b": retrieval("Retrieval on AudioCaps, test", *AUDIOCAPS, sounds(AUDIOCAPS_NUMBERS, "audiocaps-")),
    "T6": picture_classes("Zero-shot classes of pictures", NO_E),
    "T7": sound_classes("Zero-shot classes of sounds", SOUND_CLASS_NUMBERS, ""),
    "T8a": sentences("The language encoder on STS", STS, NO_E),
    "T8b": sentences("The language encoder on transfer tasks", TRANSFER, NO_E),
    "T9": settings("pictures", "cyclip", {"Epochs": 64, "Learning rate x 10,000": 5, "Warm-up steps": 10_000}),
    "T10": settings("sounds", "clap", {"Epochs": 90, "Learning rate x 10,000": 0.9, "Warm-up steps": 9600}),
    "T11": sound_classes(
        "Zero-shot classes of sounds by the prompts of Table 12", SOUND_CLASS_NUMBERS_29, "?templates=clap29"
    ),
    "T12": listed(
        "Further prompts for sounds",
        ("prompts",),
        "a list, nothing to measure; evaluation/tasks/zero_shot.py, CLAP_TEMPLATES",
        {"all": (29,)},
    ),
    "T13a": retrieval("Retrieval on Clotho, both towers from scratch", *CLOTHO, sounds(SCRATCH_CLOTHO_NUMBERS, "scratch-")),
    "T13b": retrieval(
        "Retrieval on AudioCaps, both towers from scratch",
        *AUDIOCAPS,
        sounds(SCRATCH_AUDIOCAPS_NUMBERS, "scratch-audiocaps-"),
    ),
    "T14": retrieval("Retrieval on COCO, with the e models", *ON_COCO, pictures(COCO_NUMBERS)),
    "T15": retrieval(
        "Retrieval on MusicCaps, validation", "shards/musiccaps-val", TONES, "audio", sounds(MUSICCAPS_NUMBERS, "music-")
    ),
    "T16a": sentences("The language encoder on STS, with the e models", STS, PICTURES),
    "T16b": sentences("The language encoder on transfer tasks, with the e models", TRANSFER, PICTURES),
    "T17": picture_classes("Zero-shot classes of pictures, with the e models", PICTURES),
    "F1": listed(
        "A matrix of similarities, drawn by hand",
        ("items",),
        "a drawing, nothing to measure; every run with pairs draws its own",
        {"items": (None,)},
    ),
    "F2a": panel(2, "Alignment against text uniformity on COCO", *ON_COCO, ALL_PICTURES),
    "F2b": panel(2, "Alignment against text uniformity on Flickr30K", *ON_FLICKR, ALL_PICTURES),
    "F2c": panel(2, "Alignment against text uniformity on AudioCaps, of models trained there", *ON_AUDIOCAPS, ALL_SOUNDS),
    "F3a": panel(3, "Uniformity of texts and pictures on COCO", *ON_COCO, ALL_PICTURES),
    "F3b": panel(3, "Uniformity of texts and pictures on Flickr30K", *ON_FLICKR, ALL_PICTURES),
}
