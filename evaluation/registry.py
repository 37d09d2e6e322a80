"""Task names: which there are, which a folder has data for, and how a name becomes a task."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import parse_qsl, urlencode

from data import shards
from evaluation.tables import SEVEN, TRANSFER
from evaluation.task import EvaluationError, Task, did_you_mean
from evaluation.tasks import lee, sts
from evaluation.tasks.geometry import GeometryTask
from evaluation.tasks.sts import PairTask

if TYPE_CHECKING:
    from evaluation.tasks.probe import Protocol

STS = (*SEVEN[:5], "stsb-train", "stsb-dev", "stsb-test", "sickr-train", "sickr-dev", "sickr")
REGRESSION = {  # SentEval's trained mode: train, dev and test part
    "stsb-regression": ("stsb-train", "stsb-dev", "stsb-test"),
    "sickr-regression": ("sickr-train", "sickr-dev", "sickr"),
}
DEVELOPMENT = ("stsb-dev", "sickr-dev", "lee-dev")
GROUPS = {"sts": SEVEN, "transfer": TRANSFER}
GEOMETRY = "-geometry"

# Ratings above which a pair counts as positive for alignment: 4 of 5 (SimCSE); for Lee, whose raters seldom went that
# high, the middle of the scale.
THRESHOLDS = {"lee": 0.5}

# Tasks on data of the user's own: KIND:PLACE, with options as in a URL (zero-shot:shards/cifar?classes=names.json).
KINDS = {
    "pairs": "rated sentence pairs in a TSV with the columns sentence1 sentence2 score, or a SemEval STS.input.X.txt",
    "hub": "rated sentence pairs of a Hugging Face dataset, NAME, NAME:SPLIT or NAME:CONFIG:SPLIT, or of its folder",
    "classify": "labelled texts in a TSV with the columns label text: a probe on frozen vectors",
    "finetune": "the same texts: the encoder itself is trained",
    "retrieval": "shards of images or sounds with captions, both directions; options primary, shared",
    "contrastive": "the same shards: the loss over batches of pairs at the model's logit scale; option batch",
    "zero-shot": "shards of labelled images or sounds; options classes, set, templates",
    "geometry": "a labelled TSV, or shards with captions or classes",
}


OPTIONS = {
    "retrieval": ("primary", "shared"),
    "contrastive": ("batch",),
    "zero-shot": ("classes", "set", "templates"),
    "classify": ("head",),
    "finetune": ("head", "epochs", "lr", "batch"),
}


@dataclass(frozen=True)
class Probing:
    """How tasks that train a classifier do it: a preset of `probe.PRESETS`, the width of a hidden layer (0: none; 50 in
    SG-BERT), and the seed of folds, order and weights."""

    preset: str = "test"
    hidden: int = 0
    seed: int = 1111

    @property
    def protocol(self) -> Protocol:
        """The classifiers' protocol."""
        from evaluation.tasks import probe

        return probe.PRESETS[self.preset].replace(nhid=self.hidden, seed=self.seed)


def known() -> tuple[str, ...]:
    """Every task name that is not of the form KIND:PLACE."""
    pairs = (*STS, *lee.PARTS)
    return (*pairs, *REGRESSION, *TRANSFER, *(name + GEOMETRY for name in pairs))


def is_development(name: str) -> bool:
    """Whether a checkpoint may be chosen on this task: only on development pairs, and on the geometry of these.

    Of the user's own sets all may that train nothing and do not call themselves a test set (by a word of their name, or by
    being one of STS12 to STS16); a set of the Hub must name a split, since test is the default.
    """
    kind, colon, place = name.partition(":")
    if not colon:
        return name.removesuffix(GEOMETRY) in DEVELOPMENT
    words = re.split(r"[^a-z0-9]+", place.partition("?")[0].rstrip("/").split("/")[-1].lower())
    if kind not in ("pairs", "hub", "retrieval", "contrastive", "zero-shot", "geometry") or "test" in words:
        return False
    if any(re.fullmatch(r"sts1[2-6]", word) for word in words):
        return False
    return kind != "hub" or place in DEVELOPMENT or ":" in place


def available(data: str | Path | None = None) -> list[str]:
    """Names of the STS sets found: those of the folder `data`, or the Lee corpus when none is given.

    Training splits, geometry, trained regressions and the transfer tasks are left out; they are there when asked for.
    """
    if data is None:
        return list(lee.PARTS)
    return [name for name in found(data) if name in STS and not name.endswith("-train")]


def found(data: str | Path) -> list[str]:
    """Names of all sets that the folder `data` has files for, geometry left out."""
    from evaluation.tasks import transfer

    folder, layout = locate(data)
    files = sts.RAW_FILES if layout == "raw" else sts.SENTEVAL_FILES
    names = [name for name in STS if (folder / files[name]).exists()]
    names += [name for name, parts in REGRESSION.items() if all(part in names for part in parts)]
    return names + (transfer.available(folder) if layout == "senteval" else [])


def expand(names: Sequence[str], data: str | Path | None = None) -> tuple[list[str], list[str]]:
    """Names with the groups ``sts`` and ``transfer`` replaced by their members that the folder has, and those it lacks."""
    chosen: list[str] = []
    missing: list[str] = []
    for name in names:
        members = GROUPS.get(name)
        if members is None:
            chosen.append(name)
            continue
        if data is None:
            raise EvaluationError(f"the tasks {name!r} need data: give a SentEval downstream folder (--data DIR)")
        here = found(data)
        if not any(member in here for member in members):
            raise EvaluationError(f"the data folder {data} holds none of the tasks {name!r}: {', '.join(members)}")
        chosen += [member for member in members if member in here]
        missing += [member for member in members if member not in here]
    return list(dict.fromkeys(chosen)), missing


def locate(data: str | Path) -> tuple[Path, str]:
    """The folder that holds the files and its layout, "raw" or "senteval" (`data` may be the folder above downstream)."""
    folder = Path(data).expanduser()
    if not folder.is_dir():
        raise EvaluationError(f"no data folder {folder}")
    if any((folder / file).is_file() for file in sts.RAW_FILES.values()):
        return folder, "raw"
    for candidate in (folder, folder / "downstream"):
        if any((candidate / name).is_dir() for name in ("STS", "SICK", "MR", "CR", "SUBJ", "MPQA", "SST", "TREC", "MRPC")):
            return candidate, "senteval"
    raise EvaluationError(
        f"the data folder {folder} is neither a SentEval downstream folder (no STS/, SICK/, MR/, ... in it) nor a folder of "
        "raw TSVs (no STS12.raw.tsv, STSB.dev.raw.tsv, SICK.test.raw.tsv, ... in it)"
    )


def absolute(name: str) -> str:
    """KIND:PLACE with the place, and files among its options, absolute: workers run in other folders."""
    kind, colon, place = name.partition(":")
    if not colon or kind not in KINDS or kind == "hub":
        return name
    place, _, query = (place, "", "") if Path(place).exists() else place.partition("?")
    options = {key: str(Path(value).resolve()) if Path(value).is_file() else value for key, value in parse_qsl(query)}
    return f"{kind}:{shards.absolute(place)}" + (f"?{urlencode(options, safe='/')}" if options else "")


def make_tasks(names: Sequence[str], data: str | Path | None = None, probing: Probing | None = None) -> list[Task]:
    """Tasks by name, in order. The Lee tasks need no `data`; ``<name>-geometry`` is alignment and uniformity on it;
    ``KIND:PLACE`` is a set of the user's own (`KINDS`).

    Raises EvaluationError for an unknown name (with the nearest known one), a missing folder or file, and bad lines.
    """
    loaded: dict[str, PairTask] = {}

    def pairs(name: str) -> PairTask:
        if name not in loaded:
            loaded[name] = lee.lee(name) if name in lee.PARTS else _sts(name, data)
        return loaded[name]

    probing = probing or Probing()
    tasks = [_make(name, data, pairs, probing) for name in dict.fromkeys(names)]
    titles = [task.name for task in tasks]
    for title in titles:
        if titles.count(title) > 1:
            raise EvaluationError(
                f"two tasks are called {title!r}, so one result would hide the other; rename a file or folder"
            )
    return tasks


def _make(name: str, data: str | Path | None, pairs: Callable[[str], PairTask], probing: Probing) -> Task:
    kind, colon, place = name.partition(":")
    if colon and kind in KINDS:
        return _own(kind, place, probing)
    if name not in known():
        shown = ", ".join((*STS, *lee.PARTS, *TRANSFER, *REGRESSION))
        raise EvaluationError(
            f"unknown task {name!r}{did_you_mean(name, (*known(), *GROUPS, *KINDS))} Tasks are {shown}; a pair set "
            f"with {GEOMETRY} at the end is alignment and uniformity on it; sets of your own are "
            f"{', '.join(f'{kind}:PLACE' for kind in KINDS)}"
        )
    if name in TRANSFER:
        return _transfer(name, data, probing)
    if name in REGRESSION:
        from evaluation.tasks.relatedness import RelatednessTask

        train, dev, test = (pairs(part).pairs for part in REGRESSION[name])
        return RelatednessTask(name, train, dev, test, seed=probing.seed)
    base = name.removesuffix(GEOMETRY)
    if name == base:
        return pairs(base)
    return GeometryTask(pairs(base), THRESHOLDS.get(base.split("-")[0], 4.0))


def _sts(name: str, data: str | Path | None) -> PairTask:
    folder, layout = _located(name, data)
    try:
        return PairTask(name, sts.read(name, folder, layout))
    except EvaluationError as error:
        raise EvaluationError(f"task {name}: {error}") from error


def _located(name: str, data: str | Path | None) -> tuple[Path, str]:
    if data is None:
        raise EvaluationError(
            f"task {name} needs data: give a SentEval downstream folder or a folder of raw TSVs (--data DIR); "
            f"without data there are {', '.join(lee.PARTS)}"
        )
    return locate(data)


def _transfer(name: str, data: str | Path | None, probing: Probing) -> Task:
    from evaluation.tasks import transfer

    folder, layout = _located(name, data)
    if layout != "senteval":
        raise EvaluationError(
            f"task {name}: {folder} is a folder of raw TSVs; give a SentEval downstream folder (--data DIR)"
        )
    return transfer.make(name, folder, probing.protocol)


def _own(kind: str, place: str, probing: Probing) -> Task:
    """A task on the user's own data; `place` may end in options as a URL has them."""
    if not place:
        raise EvaluationError(f"task {kind}: names no place; {kind}:PLACE is for {KINDS[kind]}")
    place, _, query = place.partition("?") if not Path(place).exists() else (place, "", "")
    options = dict(parse_qsl(query))
    allowed = OPTIONS.get(kind, ())
    for option in options:
        if option not in allowed:
            near = did_you_mean(option, allowed)
            raise EvaluationError(
                f"task {kind}:{place}: unknown option {option!r}{near} Options: {', '.join(allowed) or 'none'}"
            )
    return MAKERS[kind](place, options, probing)


Options = dict[str, str]


def _pairs(place: str, options: Options, probing: Probing) -> Task:
    return sts.pair_task(Path(place).expanduser())


def _hub(place: str, options: Options, probing: Probing) -> Task:
    from evaluation.tasks.hub import hub_pairs

    return hub_pairs(place)


def _classify(place: str, options: Options, probing: Probing) -> Task:
    from evaluation.tasks.classification import ClassificationTask
    from evaluation.tasks.labelled_texts import read_labelled

    labelled = read_labelled(place, probing.seed)
    return ClassificationTask(_title("classify", place), labelled, probing.protocol, **options)


def _finetune(place: str, options: Options, probing: Probing) -> Task:
    from evaluation.tasks import finetune
    from evaluation.tasks.labelled_texts import read_labelled

    head = {"head": options["head"]} if "head" in options else {}
    numbers = {name: _number(name, options[name]) for name in ("epochs", "lr", "batch") if name in options}
    settings = finetune.Training(**numbers, seed=probing.seed)  # type: ignore[arg-type]  # _number gave each its kind
    return finetune.FinetuneTask(_title("finetune", place), read_labelled(place, probing.seed), settings, **head)


def _number(option: str, text: str) -> int | float:
    try:
        return float(text) if option == "lr" else int(text)
    except ValueError:
        raise EvaluationError(f"option {option}={text}: that is no number") from None


def _retrieval(place: str, options: Options, probing: Probing) -> Task:
    from evaluation.tasks.retrieval import RetrievalTask

    shared = options.pop("shared", "false")
    if shared not in ("true", "false"):
        raise EvaluationError(f"task retrieval:{place}: option shared={shared}; it is true or false")
    title = _title("retrieval", place) + ("-shared" if shared == "true" else "")
    return RetrievalTask(title, place, shared=shared == "true", **options)


def _contrastive(place: str, options: Options, probing: Probing) -> Task:
    from evaluation.tasks.contrastive import BATCH, ContrastiveTask

    batch = int(_number("batch", options.get("batch", str(BATCH))))
    title = _title("contrastive", place) + (f"-batch{batch}" if batch != BATCH else "")
    return ContrastiveTask(title, place, batch)


def _zero_shot(place: str, options: Options, probing: Probing) -> Task:
    from evaluation.tasks.zero_shot import CLAP_TEMPLATES, ZeroShotTask, read_prompts

    prompts = read_prompts(options["classes"], options.get("set")) if "classes" in options else None
    templates: Sequence[str] | None = prompts.templates if prompts else None
    if "templates" in options:
        file = options["templates"]
        templates = CLAP_TEMPLATES if file == "clap29" else read_prompts(file).templates
        if not templates:
            raise EvaluationError(
                f"task zero-shot:{place}: {file} holds no templates; it needs {{'templates': ['... {{}} ...']}}"
            )
    title = _title("zero-shot", place)
    if "templates" in options:  # a set measured with several lists of templates has a number for each
        title += f"-{re.sub(r'[^a-zA-Z0-9_.-]+', '-', Path(options['templates']).stem)}"
    return ZeroShotTask(title, place, prompts.classes if prompts else None, templates or None)


def _geometry(place: str, options: Options, probing: Probing) -> Task:
    from evaluation.tasks.geometry import ClassGeometryTask, PairedGeometryTask
    from evaluation.tasks.labelled_texts import read_labelled
    from evaluation.tasks.paired_items import Samples

    title = _title("geometry", place)
    if not place.removesuffix(".gz").endswith(".tsv"):
        fields = Samples(title, place).shards.fields
        classes = "cls" in fields and "json" not in fields and "txt" not in fields
        return ClassGeometryTask(title, shards=place) if classes else PairedGeometryTask(title, place)
    rows = [row for part in read_labelled(place, probing.seed).parts.values() for row in part]
    return ClassGeometryTask(title, [row.text for row in rows], [row.label for row in rows])


MAKERS: dict[str, Callable[[str, Options, Probing], Task]] = {
    "pairs": _pairs,
    "hub": _hub,
    "classify": _classify,
    "finetune": _finetune,
    "retrieval": _retrieval,
    "contrastive": _contrastive,
    "zero-shot": _zero_shot,
    "geometry": _geometry,
}


def _title(kind: str, place: str) -> str:
    """``retrieval:coco`` of ``retrieval:shards/coco``: a name that a metric may have."""
    name = Path(place.split("::")[0]).name.removesuffix(".gz").removesuffix(".tsv").removesuffix(".tar")
    return f"{kind}:{re.sub(r'[^a-zA-Z0-9_.-]+', '-', name)}"
