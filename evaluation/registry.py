"""Task names: which there are, which a folder has data for, and how a name becomes a task."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NamedTuple
from urllib.parse import parse_qsl, urlencode

from multicse import load_plugins
from multicse.data import shard_urls
from multicse.data.errors import DataError, did_you_mean
from multicse.evaluation.tables import SEVEN
from multicse.evaluation.task import EvaluationError, Probing, Task
from multicse.evaluation.tasks import sts, zero_shot
from multicse.evaluation.tasks.classification import ClassificationTask
from multicse.evaluation.tasks.geometry import GeometryTask, PairedGeometryTask
from multicse.evaluation.tasks.hub import hub_pairs
from multicse.evaluation.tasks.labelled_texts import read_labelled
from multicse.evaluation.tasks.retrieval import BATCH, ContrastiveTask, RetrievalTask
from multicse.evaluation.tasks.sts import PairTask

STS = (*SEVEN[:5], "stsb-train", "stsb-dev", "stsb-test", "sickr-train", "sickr-dev", "sickr")
DEVELOPMENT = ("stsb-dev", "sickr-dev", "lee-dev")
GROUPS = {"sts": SEVEN}
"""Tasks by the name of all of them. `load_plugins` adds to these, to `FAMILIES` and to `KINDS`."""
GEOMETRY = "-geometry"

# Ratings above which a pair counts as positive for alignment: 4 of 5 (SimCSE); for Lee, whose raters seldom went that
# high, the middle of the scale.
THRESHOLDS = {"lee": 0.5}


Pairs = Callable[[str], PairTask]
"""The task of rated pairs of a name."""


class Family(NamedTuple):
    """Named tasks that a plugin adds: `make` takes a name, the data folder, sets of pairs by name, and how to probe.

    `found` takes a data folder, its layout and the sets of pairs in it, and returns the names whose data is there.
    """

    names: tuple[str, ...]
    found: Callable[[Path, str, Sequence[str]], list[str]]
    make: Callable[[str, str | Path | None, Pairs, Probing], Task]
    folders: tuple[str, ...] = ()
    """Folders by one of which SentEval's layout is known."""


FAMILIES: list[Family] = []


def known() -> tuple[str, ...]:
    """Every task name that is not of the form KIND:PLACE."""
    return (*_scored(), *(name + GEOMETRY for name in (*STS, *sts.LEE)))


def _scored() -> list[str]:
    """The names without those of geometry."""
    load_plugins()
    return [*STS, *sts.LEE, *(name for family in FAMILIES for name in family.names)]


def is_development(name: str) -> bool:
    """Whether a checkpoint may be chosen on this task: only on development pairs, and on the geometry of these.

    Of the user's own sets all may that train nothing and do not call themselves a test set (by a word of their name, or by
    being one of STS12 to STS16); a set of the Hub must name a split, since test is the default.
    """
    load_plugins()
    kind, colon, place = name.partition(":")
    if not colon:
        return name.removesuffix(GEOMETRY) in DEVELOPMENT
    words = re.split(r"[^a-z0-9]+", place.partition("?")[0].rstrip("/").split("/")[-1].lower())
    if kind not in KINDS or KINDS[kind].trains or any(re.fullmatch(r"test|sts1[2-6]", word) for word in words):
        return False
    return kind != "hub" or place in DEVELOPMENT or ":" in place


def available(data: str | Path | None = None) -> list[str]:
    """Names of the STS sets found: those of the folder `data`, or the Lee corpus when none is given.

    Training splits, geometry and the tasks of plugins are left out; they are there when asked for.
    """
    if data is None:
        return list(sts.LEE)
    return [name for name in found(data) if name in STS and not name.endswith("-train")]


def found(data: str | Path) -> list[str]:
    """Names of all sets that the folder `data` has files for, geometry left out."""
    folder, layout = locate(data)
    names = [name for name in STS if (folder / sts.FILES[layout][name]).exists()]
    return names + [name for family in FAMILIES for name in family.found(folder, layout, names)]


def expand(names: Sequence[str], data: str | Path | None = None) -> tuple[list[str], list[str]]:
    """Names with groups (``sts``) replaced by their members that the folder has, and those it lacks."""
    load_plugins()
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
    load_plugins()
    folder = Path(data).expanduser()
    if not folder.is_dir():
        raise EvaluationError(f"no data folder {folder}")
    if any((folder / file).is_file() for file in sts.RAW_FILES.values()):
        return folder, "raw"
    known_by = ("STS", "SICK", *(name for family in FAMILIES for name in family.folders))
    for candidate in (folder, folder / "downstream"):
        if any((candidate / name).is_dir() for name in known_by):
            return candidate, "senteval"
    raise EvaluationError(
        f"the data folder {folder} is neither a SentEval downstream folder (no STS/, SICK/, MR/, ... in it) nor a folder of "
        "raw TSVs (no STS12.raw.tsv, STSB.dev.raw.tsv, SICK.test.raw.tsv, ... in it)"
    )


def absolute(name: str) -> str:
    """KIND:PLACE with the place, and files among its options, absolute: workers run in other folders."""
    load_plugins()
    kind, colon, place = name.partition(":")
    if not colon or kind not in KINDS or kind == "hub":
        return name
    place, options = _options(place)
    options = {key: str(Path(value).resolve()) if Path(value).is_file() else value for key, value in options.items()}
    return f"{kind}:{shard_urls.absolute(place)}" + (f"?{urlencode(options, safe='/')}" if options else "")


def make_tasks(names: Sequence[str], data: str | Path | None = None, probing: Probing | None = None) -> list[Task]:
    """Tasks by name, in order. The Lee tasks need no `data`; ``<name>-geometry`` is alignment and uniformity on it;
    ``KIND:PLACE`` is a set of the user's own (`KINDS`).

    Raises EvaluationError for an unknown name (with the nearest known one), a missing folder or file, and bad lines.
    """
    loaded: dict[str, PairTask] = {}

    def pairs(name: str) -> PairTask:
        if name not in loaded:
            loaded[name] = sts.lee(name) if name in sts.LEE else PairTask(name, sts.read(name, *located(name, data)))
        return loaded[name]

    tasks = []
    for name in dict.fromkeys(names):
        try:
            tasks.append(_make(name, data, pairs, probing or Probing()))
        except DataError as error:
            raise EvaluationError(f"task {name}: {error}") from error
    titles = [task.name for task in tasks]
    for title in titles:
        if titles.count(title) > 1:
            raise EvaluationError(
                f"two tasks are called {title!r}, so one result would hide the other; rename a file or folder"
            )
    return tasks


def _make(name: str, data: str | Path | None, pairs: Pairs, probing: Probing) -> Task:
    load_plugins()
    kind, colon, place = name.partition(":")
    if colon and kind in KINDS:
        return _own(kind, place, probing)
    if name not in known():
        raise EvaluationError(
            f"unknown task {name!r}.{did_you_mean(name, (*known(), *GROUPS))} Tasks are {', '.join(_scored())}; with "
            f"{GEOMETRY} at the end of a set of pairs its alignment and uniformity; sets of your own are "
            f"{', '.join(f'{kind}:PLACE' for kind in KINDS)}"
        )
    for family in FAMILIES:
        if name in family.names:
            return family.make(name, data, pairs, probing)
    base = name.removesuffix(GEOMETRY)
    return pairs(base) if name == base else GeometryTask(pairs(base), THRESHOLDS.get(base.split("-")[0], 4.0))


def located(name: str, data: str | Path | None) -> tuple[Path, str]:
    """`locate` for the task of a name. Raises EvaluationError where no folder is given."""
    if data is None:
        raise EvaluationError(
            f"task {name} needs data: give a SentEval downstream folder or a folder of raw TSVs (--data DIR); "
            f"without data there are {', '.join(sts.LEE)}"
        )
    return locate(data)


# ------------------------------------------------------------------------------------------------- data of the user's own

Options = dict[str, str]


class Kind(NamedTuple):
    """Tasks called KIND:PLACE, with options as a URL has them (zero-shot:shards/cifar?classes=names.json).

    `make` takes title, place, options and the classifiers' settings. On a kind that `trains` no checkpoint may be chosen.
    """

    about: str
    make: Callable[[str, str, Options, Probing], Task]
    options: tuple[str, ...] = ()
    trains: bool = False


def _own(kind: str, place: str, probing: Probing) -> Task:
    about, make, allowed, _ = KINDS[kind]
    if not place:
        raise EvaluationError(f"task {kind}: names no place; {kind}:PLACE is for {about}")
    place, options = _options(place)
    for option in options:
        if option not in allowed:
            raise EvaluationError(
                f"task {kind}:{place}: unknown option {option!r}.{did_you_mean(option, allowed)} Options: "
                f"{', '.join(allowed) or 'none'}"
            )
    name = Path(place.split("::")[0]).name.removesuffix(".gz").removesuffix(".tsv").removesuffix(".tar")
    return make(f"{kind}:{_metric_name(name)}", place, options, probing)


def _options(place: str) -> tuple[str, Options]:
    """A place and its options; a file that exists may have a question mark in its name."""
    place, _, query = (place, "", "") if Path(place).exists() else place.partition("?")
    return place, dict(parse_qsl(query))


def _metric_name(text: str) -> str:
    return re.sub(r"[^a-zA-Z0-9_.-]+", "-", text)


def number(option: str, text: str, kind: type[int | float] = int) -> int | float:
    """The value of an option. Raises EvaluationError for text that is no number of the kind."""
    try:
        return kind(text)
    except ValueError:
        raise EvaluationError(f"option {option}={text}: that is no number") from None


def switch(title: str, options: Options, name: str) -> bool:
    """Whether an option is true; by default it is not. Raises EvaluationError for what is neither true nor false."""
    given = options.get(name, "false")
    if given not in ("true", "false"):
        raise EvaluationError(f"task {title}: option {name}={given}; it is true or false")
    return given == "true"


def _retrieval(title: str, place: str, options: Options, probing: Probing) -> Task:
    shared = switch(title, options, "shared")
    return RetrievalTask(title + "-shared" * shared, place, options.get("primary", "mean_r1"), shared)


def _contrastive(title: str, place: str, options: Options, probing: Probing) -> Task:
    batch = int(number("batch", options.get("batch", str(BATCH))))
    return ContrastiveTask(title + (f"-batch{batch}" if batch != BATCH else ""), place, batch)


def _zero_shot(title: str, place: str, options: Options, probing: Probing) -> Task:
    prompts = zero_shot.Prompts(())
    if "classes" in options:
        prompts = zero_shot.read_prompts(options["classes"], options.get("set"))
    templates = prompts.templates
    if file := options.get("templates"):
        templates = zero_shot.TEMPLATE_LISTS.get(file) or zero_shot.read_prompts(file).templates
        if not templates:
            raise EvaluationError(f"task {title}: {file} holds no templates; it needs {{'templates': ['... {{}} ...']}}")
        title += f"-{_metric_name(Path(file).stem)}"  # a set measured with several lists has a number for each
    return zero_shot.ZeroShotTask(title, place, prompts.classes, templates)


KINDS = {
    "pairs": Kind(
        "rated sentence pairs in a TSV with the columns sentence1 sentence2 score, or a SemEval STS.input.X.txt",
        lambda title, place, options, probing: sts.pair_task(Path(place).expanduser()),
    ),
    "hub": Kind(
        "rated sentence pairs of a Hugging Face dataset, NAME, NAME:SPLIT or NAME:CONFIG:SPLIT, or of its folder",
        lambda title, place, options, probing: hub_pairs(place),
    ),
    "classify": Kind(
        "labelled texts in a TSV with the columns label text, or label sentence1 sentence2: a probe on frozen vectors",
        lambda title, place, options, probing: ClassificationTask(
            title, read_labelled(place, probing.seed), probing, **options
        ),
        ("head",),
        trains=True,
    ),
    "retrieval": Kind("shards of images or sounds with captions, both directions", _retrieval, ("primary", "shared")),
    "contrastive": Kind("the same: the loss over batches of pairs at the model's logit scale", _contrastive, ("batch",)),
    "zero-shot": Kind("shards of labelled images or sounds", _zero_shot, ("classes", "set", "templates")),
    "geometry": Kind("shards with captions", lambda title, place, options, probing: PairedGeometryTask(title, place)),
}
