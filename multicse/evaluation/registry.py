"""Registry of tasks: known names, names with data in a folder, and construction of a task from its name."""

from __future__ import annotations

import logging
import re
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from multicse import plugins
from multicse.data import shard_urls
from multicse.data.errors import did_you_mean
from multicse.evaluation.tables import SEVEN
from multicse.evaluation.task import EvaluationError, Probing, Task
from multicse.evaluation.tasks import sts, zero_shot
from multicse.evaluation.tasks.classification import ClassificationTask, read_labelled
from multicse.evaluation.tasks.geometry import GeometryTask, PairedGeometryTask
from multicse.evaluation.tasks.paired_items import named
from multicse.evaluation.tasks.retrieval import BATCH, ContrastiveTask, RetrievalTask
from multicse.evaluation.tasks.sts import PairTask, hub_pairs, metric_name

logger = logging.getLogger(__name__)

STS = tuple(sts.FILES["raw"])
DEVELOPMENT = ("stsb-dev", "sickr-dev", "lee-dev")
GEOMETRY = "-geometry"
plugins.add("group", "sts", SEVEN)

Pairs = Callable[[str], PairTask]
"""Function that returns the task of rated pairs with a name."""
Options = dict[str, str]


class Family(NamedTuple):
    """Named tasks that a plugin adds."""

    names: tuple[str, ...]
    found: Callable[[Path, str, Sequence[str]], list[str]]
    """Function of a data folder, its layout and its sets of pairs that returns the names of the tasks with data."""
    make: Callable[[str, str | Path | None, Pairs, Probing], Task]
    """Function of a name, the data folder, a function for sets of pairs, and the settings of classifiers."""
    folders: tuple[str, ...] = ()
    """Names of folders that identify SentEval's layout."""


def families() -> list[Family]:
    """Return the families of named tasks that plugins add."""
    return [*plugins.every("family").values()]


def kinds() -> Mapping[str, Kind]:
    """Return the kinds of tasks on a user's own data, by name."""
    return plugins.every("task")


def known() -> tuple[str, ...]:
    """Return every task name that is not of the form KIND:PLACE."""
    added = (name for family in families() for name in family.names)
    return (*STS, *sts.LEE, *added, *(name + GEOMETRY for name in (*STS, *sts.LEE)))


def is_development(name: str) -> bool:
    """Return whether a checkpoint may be chosen on a task.

    A set of the user's own qualifies unless it trains a classifier or its name marks it as a test set (the word "test", or
    STS12 to STS16). A data set of the Hugging Face Hub must name a split, since test is the default.
    """
    kind, colon, place = name.partition(":")
    if not colon:
        return name.removesuffix(GEOMETRY) in DEVELOPMENT
    words = re.split(r"[^a-z0-9]+", place.partition("?")[0].rstrip("/").split("/")[-1].lower())
    if kind not in kinds() or kinds()[kind].trains or any(re.fullmatch(r"test|sts1[2-6]", word) for word in words):
        return False
    return kind != "hub" or ":" in place


def gold_of(name: str) -> str | None:
    """Return what the ratings of a task are (`PairTask.gold_is`), without its files; None for tasks without ratings."""
    kind, colon, place = name.partition(":")
    if not colon:
        return sts.HUMAN if name in (*STS, *sts.LEE) else None
    if kind not in ("pairs", "hub"):
        return None
    try:
        return _options(place)[1].get("gold", sts.RATINGS)
    except EvaluationError:  # a question mark in the name of a file that is elsewhere
        return sts.RATINGS


def available(data: str | Path | None = None) -> list[str]:
    """Return the names of the STS sets in a folder, without training splits; without a folder, of the Lee corpus."""
    if data is None:
        return list(sts.LEE)
    return [name for name in found(data) if name in STS and not name.endswith("-train")]


def found(data: str | Path) -> list[str]:
    """Return the names of all tasks, except geometry, with files in a folder."""
    folder, layout = located("sts", data)
    names = [name for name in STS if (folder / sts.FILES[layout][name]).exists()]
    return names + [name for family in families() for name in family.found(folder, layout, names)]


def _expand(names: Sequence[str], data: str | Path | None) -> list[str]:
    """Replace groups (``sts``) by their members with data in the folder; raise EvaluationError if a group has none."""
    groups = plugins.every("group")
    here = found(data) if data is not None and any(name in groups for name in names) else []
    chosen: list[str] = []
    for name in names:
        members = groups.get(name, (name,))
        missing = [member for member in members if name in groups and member not in here]
        if missing == [*members]:
            raise EvaluationError(f"the tasks {name!r} need data: --data is {data}, which contains none of them")
        if missing:
            logger.warning("skipped, not found in %s: %s", data, ", ".join(missing))
        chosen += [member for member in members if member not in missing]
    return list(dict.fromkeys(chosen))


def located(name: str, data: str | Path | None) -> tuple[Path, str]:
    """Return the folder with the files of a task, and its layout, "raw" or "senteval".

    Args:
        name: Name of the task, for the error.
        data: Folder of raw TSVs, SentEval's downstream folder, or the folder that contains downstream.

    Raises:
        EvaluationError: `data` is None, is not a folder, or has another layout.
    """
    if data is None:
        raise EvaluationError(f"task {name} needs data: give a SentEval downstream folder or one of raw TSVs (--data DIR)")
    folder = Path(data).expanduser()
    if not folder.is_dir():
        raise EvaluationError(f"data folder {folder} not found")
    if any((folder / file).is_file() for file in sts.FILES["raw"].values()):
        return folder, "raw"
    known_by = ("STS", "SICK", *(name for family in families() for name in family.folders))
    for candidate in (folder, folder / "downstream"):
        if any((candidate / name).is_dir() for name in known_by):
            return candidate, "senteval"
    raise EvaluationError(
        f"the data folder {folder} is neither a SentEval downstream folder (STS/, SICK/, MR/, ...) nor one of raw TSVs "
        "(STS12.raw.tsv, STSB.dev.raw.tsv, ...)"
    )


def absolute(name: str) -> str:
    """Make the place of KIND:PLACE, and the files among its options, absolute: workers run in other folders."""
    kind, colon, place = name.partition(":")
    if not colon or kind not in kinds() or kind == "hub":
        return name
    place, options = _options(place)
    options = {key: str(Path(value).resolve()) if Path(value).is_file() else value for key, value in options.items()}
    return f"{kind}:{shard_urls.absolute(place)}" + (f"?{shard_urls.format_options(options)}" if options else "")


def places(name: str) -> list[str]:
    """Return the paths and URLs of KIND:PLACE, and the values of its options, which may be files."""
    kind, colon, place = name.partition(":")
    if not colon or kind == "hub":
        return []
    place, options = _options(place)
    return [*shard_urls.places(place), *options.values()]


def choose(names: Sequence[str], data: str | Path | None, probing: Probing) -> list[Task]:
    """Return the tasks with these names or of these groups; without names, every STS set with data.

    Args:
        names: Names of tasks and groups.
        data: Data folder.
        probing: Settings of classifiers.

    Raises:
        EvaluationError: As for `make_tasks`, or the folder `data` contains no STS set, or no task reads it.
    """
    chosen = _expand(names or available(data), data)
    if not chosen:
        raise EvaluationError(f"the data folder {data} contains no STS set; name other tasks with --tasks")
    without_data = (*kinds(), *sts.LEE, *(name + GEOMETRY for name in sts.LEE))
    if data is not None and all(name.partition(":")[0] in without_data for name in chosen):
        raise EvaluationError(f"--data {data}: none of the tasks {', '.join(chosen)} reads it; leave it out")
    return make_tasks(chosen, data, probing)


def make_tasks(names: Sequence[str], data: str | Path | None = None, probing: Probing | None = None) -> list[Task]:
    """Create tasks from their names.

    Args:
        names: Task names, ``NAME-geometry`` for a set of pairs, or ``KIND:PLACE`` for a data set of the user's own.
        data: Data folder. The Lee tasks need none.
        probing: Settings of classifiers.

    Raises:
        EvaluationError: A name is unknown, a folder or file is missing, or a file has an invalid line.
    """
    loaded: dict[str, PairTask] = {}

    def pairs(name: str) -> PairTask:
        if name not in loaded:
            loaded[name] = sts.lee(name) if name in sts.LEE else PairTask(name, sts.read(name, *located(name, data)))
        return loaded[name]

    tasks = []
    for name in dict.fromkeys(names):
        with named(f"task {name}"):
            tasks.append(_make(name, data, pairs, probing or Probing()))
    title, count = Counter(task.name for task in tasks).most_common(1)[0] if tasks else ("", 0)
    if count > 1:
        raise EvaluationError(
            f"two tasks are named {title!r}, so one result would replace the other; rename a file or folder"
        )
    return tasks


def _make(name: str, data: str | Path | None, pairs: Pairs, probing: Probing) -> Task:
    kind, colon, place = name.partition(":")
    if colon and kind in kinds():
        return _own(kind, place, probing)
    if name not in known():
        near = did_you_mean(name, (*known(), *plugins.every("group")))
        raise EvaluationError(
            f"unknown task {name!r}.{near} Tasks: {', '.join(known())}. Your own data: "
            f"{', '.join(f'{kind}:PLACE' for kind in kinds())}"
        )
    for family in families():
        if name in family.names:
            return family.make(name, data, pairs, probing)
    base = name.removesuffix(GEOMETRY)
    # Pairs above 4 of 5 count as positive (SimCSE); for Lee, with few ratings that high, pairs above the middle.
    return pairs(base) if name == base else GeometryTask(pairs(base), 0.5 if base in sts.LEE else 4.0)


# ------------------------------------------------------------------------------------------------- data of the user's own


class Kind(NamedTuple):
    """Tasks named KIND:PLACE, with options in URL syntax (zero-shot:shards/cifar?classes=names.json)."""

    about: str
    make: Callable[[str, str, Options, Probing], Task]
    """Function of title, place, options and the settings of classifiers."""
    options: tuple[str, ...] = ()
    trains: bool = False
    """The task trains a classifier, so no checkpoint may be chosen on it."""


def _own(kind: str, place: str, probing: Probing) -> Task:
    about, make, allowed, _ = kinds()[kind]
    if not place:
        raise EvaluationError(f"task {kind}: lacks a place; {kind}:PLACE is for {about}")
    place, options = _options(place)
    for option in options:
        if option not in allowed:
            known_ones = ", ".join(allowed) or "none"
            raise EvaluationError(
                f"task {kind}:{place}: unknown option {option!r}.{did_you_mean(option, allowed)} Options: {known_ones}"
            )
    name = Path(place.split("::")[0]).name.removesuffix(".gz").removesuffix(".tsv").removesuffix(".tar")
    return make(f"{kind}:{metric_name(name)}", place, options, probing)


def _options(place: str) -> tuple[str, Options]:
    """Split a place from its options; the name of an existing file may contain a question mark."""
    place, _, query = (place, "", "") if Path(place).exists() else place.partition("?")
    try:
        return place, shard_urls.parse_options(query)
    except ValueError as error:
        raise EvaluationError(f"{place}?{query}: {error}; write ?NAME=VALUE&NAME=VALUE") from None


def number(option: str, text: str, kind: type[int | float] = int) -> int | float:
    """Parse the number of an option; raise EvaluationError for other texts."""
    try:
        return kind(text)
    except ValueError:
        raise EvaluationError(f"option {option}={text}: not a number") from None


def switch(title: str, options: Options, name: str) -> bool:
    """Parse a boolean option, by default false; raise EvaluationError unless it is "true" or "false"."""
    given = options.get(name, "false")
    if given not in ("true", "false"):
        raise EvaluationError(f"task {title}: option {name}={given}; expected true or false")
    return given == "true"


def _retrieval(title: str, place: str, options: Options, probing: Probing) -> Task:
    shared = switch(title, options, "shared")
    return RetrievalTask(title + "-shared" * shared, place, options.get("primary", "mean_r1"), shared)


def _contrastive(title: str, place: str, options: Options, probing: Probing) -> Task:
    batch = int(number("batch", options.get("batch", str(BATCH))))
    return ContrastiveTask(title + (f"-batch{batch}" if batch != BATCH else ""), place, batch)


def _zero_shot(title: str, place: str, options: Options, probing: Probing) -> Task:
    prompts = zero_shot.read_prompts(options["classes"]) if "classes" in options else zero_shot.Prompts(())
    templates = prompts.templates
    if file := options.get("templates"):
        templates = plugins.every("templates").get(file) or zero_shot.read_prompts(file).templates
        if not templates:
            raise EvaluationError(f"task {title}: {file} contains no templates; it needs {{'templates': ['... {{}} ...']}}")
        title += f"-{metric_name(Path(file).stem)}"  # a set measured with several lists has a score for each
    return zero_shot.ZeroShotTask(title, place, prompts.classes, templates)


for _name, _one in {
    "pairs": Kind(
        "rated sentence pairs in a TSV with the columns sentence1 sentence2 score, or a SemEval STS.input.X.txt",
        lambda title, place, options, probing: sts.pair_task(Path(place).expanduser(), **options),
        ("gold",),
    ),
    "hub": Kind(
        "rated sentence pairs of a Hugging Face dataset, NAME, NAME:SPLIT or NAME:CONFIG:SPLIT, or of its folder",
        lambda title, place, options, probing: hub_pairs(place, **options),
        ("gold",),
    ),
    "classify": Kind(
        "labelled texts in a TSV with the columns label text, or label sentence1 sentence2: a probe on frozen embeddings",
        lambda title, place, options, probing: ClassificationTask(
            title, read_labelled(place, probing.seed), probing, **options
        ),
        ("head",),
        trains=True,
    ),
    "retrieval": Kind("shards of images or audio with captions, both directions", _retrieval, ("primary", "shared")),
    "contrastive": Kind(
        "shards of images or audio with captions: the loss over batches at the model's logit scale", _contrastive, ("batch",)
    ),
    "zero-shot": Kind("shards of labelled images or audio", _zero_shot, ("classes", "templates")),
    "geometry": Kind("shards with captions", lambda title, place, options, probing: PairedGeometryTask(title, place)),
}.items():
    plugins.add("task", _name, _one)
