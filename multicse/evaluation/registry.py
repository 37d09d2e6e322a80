"""Known names of tasks, names with data in a folder, and construction of a task from its name."""

from __future__ import annotations

import logging
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path

from multicse import plugins
from multicse.data import shard_urls
from multicse.data.errors import did_you_mean
from multicse.data.settings import marks
from multicse.evaluation.kind import Family, Kind, Options, split
from multicse.evaluation.report import SEVEN
from multicse.evaluation.task import EvaluationError, Task
from multicse.evaluation.tasks import sts
from multicse.evaluation.tasks.geometry import GeometryTask
from multicse.evaluation.tasks.paired_items import named
from multicse.evaluation.tasks.sts import Layout, PairTask

logger = logging.getLogger(__name__)

STS = tuple(sts.FILES)
DEVELOPMENT = ("stsb-dev", "sickr-dev", "lee-dev")
GEOMETRY = "-geometry"
SEED = 1111
"""Default seed of splits and classifiers."""
plugins.add("group", "sts", SEVEN)


def kinds() -> Mapping[str, type[Kind]]:
    """Return the kinds of tasks on a user's own data, by name."""
    return plugins.every("task")


def families() -> dict[str, type[Family]]:
    """Return the families of tasks with fixed names, by the names of the tasks."""
    return {name: family for family in plugins.every("family").values() for name in family.names}


def known() -> tuple[str, ...]:
    """Return every task name that is not of the form KIND:PLACE."""
    return (*STS, *sts.LEE, *families(), *(name + GEOMETRY for name in (*STS, *sts.LEE)))


def is_development(task: str) -> bool:
    """Return whether a checkpoint may be chosen on a task.

    A set of the user's own qualifies unless it trains a classifier or its name marks it as a test set (the word "test", or
    STS12 to STS16). A data set of the Hugging Face Hub must name a split, since test is the default.
    """
    kind, place, _ = split(task)
    if place is None:
        return kind.removesuffix(GEOMETRY) in DEVELOPMENT
    words = re.split(r"[^a-z0-9]+", place.rstrip("/").split("/")[-1].lower())
    if kind not in kinds() or any(re.fullmatch(r"test|sts1[2-6]", word) for word in words):
        return False
    return kinds()[kind].may_be_development(place)


def gold_of(task: str) -> str | None:
    """Return what the ratings of a task are (`PairTask.gold_is`), without its files; None for tasks without ratings."""
    try:
        kind, place, options = split(task)
    except EvaluationError:  # a question mark in the name of a file that is elsewhere
        kind, place, options = task.partition(":")[0], task, {}
    if place is None:
        return sts.HUMAN if kind in (*STS, *sts.LEE) else None
    field = kinds()[kind].model_fields.get("gold") if kind in kinds() else None
    return None if field is None else options.get("gold", field.default)


def available(data: str | Path | None = None) -> list[str]:
    """Return the names of the STS sets in a folder, without training splits; without a folder, of the Lee corpus."""
    if data is None:
        return list(sts.LEE)
    return [name for name in found(data) if name in STS and not name.endswith("-train")]


def found(data: str | Path) -> list[str]:
    """Return the names of all tasks, except geometry, with files in a folder."""
    folder, layout = located("sts", data)
    names = [name for name in STS if (folder / layout.files[name]).exists()]
    return names + [name for family in plugins.every("family").values() for name in family.found(folder, names)]


def _expand(tasks: Sequence[str], data: str | Path | None) -> list[str]:
    """Replace groups (``sts``) by their members with data in the folder; raise EvaluationError if a group has none."""
    groups = plugins.every("group")
    here = found(data) if data is not None and any(task.partition("?")[0] in groups for task in tasks) else []
    chosen: list[str] = []
    for task in tasks:
        name, mark, options = task.partition("?")
        if name not in groups:
            chosen.append(task)
            continue
        missing = [member for member in groups[name] if member not in here]
        if missing == [*groups[name]]:
            raise EvaluationError(f"the tasks {name!r} need data: --data is {data}, which contains none of them")
        if missing:
            logger.warning("skipped, not found in %s: %s", data, ", ".join(missing))
        chosen += [f"{member}{mark}{options}" for member in groups[name] if member not in missing]
    return list(dict.fromkeys(chosen))


def located(task: str, data: str | Path | None) -> tuple[Path, Layout]:
    """Return the folder with the files of a task, and its layout.

    Args:
        task: Name of the task, for the error.
        data: Data folder, or a folder that contains it.

    Raises:
        EvaluationError: `data` is None, is not a folder, or has none of the layouts.
    """
    layouts: list[Layout] = [*plugins.every("layout").values()]
    if data is None:
        raise EvaluationError(f"task {task} needs data: give {' or '.join(one.about for one in layouts)} (--data DIR)")
    folder = Path(data).expanduser()
    if not folder.is_dir():
        raise EvaluationError(f"data folder {folder} not found")
    for layout in layouts:
        if (root := layout.root(folder)) is not None:
            return root, layout
    raise EvaluationError(f"the data folder {folder} is not {' or '.join(one.about for one in layouts)}")


def absolute(task: str) -> str:
    """Make the place of KIND:PLACE, and the files among its options, absolute: workers run in other folders."""
    kind, place, options = split(task)
    if place is None or kind not in kinds():
        return task
    marked = {name: mark.kind for name, mark in marks(kinds()[kind]).items() if mark is not None}
    for name, value in options.items():
        if marked.get(name) == "place" and Path(value).is_file():
            options[name] = str(Path(value).resolve())
    place = shard_urls.absolute(place) if "place" in marked else place
    return f"{kind}:{place}" + (f"?{shard_urls.format_options(options)}" if options else "")


def places(task: str) -> list[str]:
    """Return the paths and URLs of KIND:PLACE, and the values of its options that may be files."""
    kind, place, options = split(task)
    if place is None or kind not in kinds():
        return []
    marked = {name for name, mark in marks(kinds()[kind]).items() if mark is not None}
    own = shard_urls.places(place) if "place" in marked else []
    return [*own, *(value for name, value in options.items() if name in marked)]


def choose(tasks: Sequence[str], data: str | Path | None, seed: int = SEED) -> list[Task]:
    """Return the tasks with these names or of these groups; without names, every STS set with data.

    Args:
        tasks: Names of tasks and groups.
        data: Data folder.
        seed: Seed of splits and classifiers.

    Raises:
        EvaluationError: As for `make_tasks`, or the folder `data` contains no STS set, or no task reads it.
    """
    chosen = _expand(tasks or available(data), data)
    if not chosen:
        raise EvaluationError(f"the data folder {data} contains no STS set; name other tasks with --tasks")
    without_data = (*kinds(), *sts.LEE, *(name + GEOMETRY for name in sts.LEE))
    if data is not None and all(split(name).name in without_data for name in chosen):
        raise EvaluationError(f"--data {data}: none of the tasks {', '.join(chosen)} reads it; leave it out")
    return make_tasks(chosen, data, seed)


def make_tasks(tasks: Sequence[str], data: str | Path | None = None, seed: int = SEED) -> list[Task]:
    """Create tasks from their names.

    Args:
        tasks: Task names, ``NAME-geometry`` for a set of pairs, or ``KIND:PLACE`` for a data set of the user's own, each
            with options (``?OPTION=VALUE``) that the task has.
        data: Data folder. The Lee tasks need none.
        seed: Seed of splits and classifiers.

    Raises:
        EvaluationError: A name is unknown, a folder or file is missing, or a file has an invalid line.
    """

    @cache
    def pairs(name: str) -> PairTask:
        """Read a set of pairs once, also for its geometry."""
        if name in sts.LEE:
            return sts.lee(name)
        folder, layout = located(name, data)
        return PairTask(name, layout.read(name, folder / layout.files[name]))

    def make(task: str) -> Task:
        name, place, options = split(task)
        if place is not None and name in kinds():
            if not place:
                raise EvaluationError(f"task {name}: lacks a place; {name}:PLACE is for {kinds()[name].about()}")
            return kinds()[name].read(f"{name}:{place}", options, place=place).make(seed)
        if place is None and name in families():
            return families()[name].read(name, options).make(name, data, pairs, seed)
        if place is not None or name not in known():
            near = did_you_mean(task, (*known(), *plugins.every("group")))
            raise EvaluationError(
                f"unknown task {task!r}.{near} Tasks: {', '.join(known())}. Your own data: "
                f"{', '.join(f'{kind}:PLACE' for kind in kinds())}"
            )
        Options.read(name, options)  # has none
        base = name.removesuffix(GEOMETRY)
        # Pairs above 4 of 5 count as positive (SimCSE); for Lee, with few ratings that high, pairs above the middle.
        return pairs(base) if name == base else GeometryTask(pairs(base), 0.5 if base in sts.LEE else 4.0)

    made: list[Task] = []
    for task in dict.fromkeys(tasks):
        with named(f"task {task}"):
            made.append(make(task))
    title, count = Counter(task.name for task in made).most_common(1)[0] if made else ("", 0)
    if count > 1:
        raise EvaluationError(
            f"two tasks are named {title!r}, so one result would replace the other; rename a file or folder"
        )
    return made
