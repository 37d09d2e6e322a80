"""A page to look at models: ``python pipelines/explore.py --model DIR --against DIR --data SHARDS``."""

from __future__ import annotations

import logging
import re
import socket
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from itertools import chain
from pathlib import Path
from typing import Annotated, Any, NamedTuple

import numpy as np
import pandas as pd
import tyro
from scipy import stats

if not __package__:  # run as a file: this clone comes first, not an installed copy
    sys.path[0] = str(Path(__file__).resolve().parents[1])

from multicse.data.errors import cli_errors
from multicse.data.shards import RawSample
from multicse.data.streams import decode
from multicse.evaluation import registry, report
from multicse.evaluation.load import Model, load_model, parse
from multicse.evaluation.task import EvaluationError, embed, look_up, unit
from multicse.evaluation.tasks.paired_items import CHUNK, Sample, Samples
from multicse.evaluation.tasks.sts import PairTask
from multicse.trainers.engine.cluster import quiet

ADDRESS = "127.0.0.1"
SETTINGS = {
    "browser.gatherUsageStats": False,  # nobody is told of the page
    "client.toolbarMode": "minimal",
    "server.address": ADDRESS,
    "server.fileWatcherType": "none",
}
"""Of Streamlit."""


@dataclass(frozen=True)
class Arguments:
    """A page for this machine alone, at the printed address until Ctrl-C: what is near a sentence that you type, which rated
    pairs a model ranks worst, and where models lie between alignment and uniformity.

    Example: python pipelines/explore.py --model runs/demo/export --against bert@mean --data shards/captions
    """

    model: Annotated[str, tyro.conf.arg(metavar="MODEL")]
    """The model, named as for pipelines/evaluate.py: a folder, a hub name, with @POOLING or +whitening."""
    against: Annotated[tuple[str, ...], tyro.conf.arg(metavar="MODEL")] = ()
    """Models to show beside it."""
    data: Annotated[tuple[str, ...], tyro.conf.arg(metavar="SHARDS")] = ()
    """Packed sets to search. CLIP and CLAP find pictures and sounds by themselves, a model of texts by their captions or
    classes. Default: the sentences of the rated pairs."""
    evaluation_data: Annotated[Path | None, tyro.conf.arg(name="evaluation.data")] = None
    """Whose rated pairs are shown: a SentEval downstream folder, or one of raw TSVs. Default: the Lee corpus of gensim."""
    most: int = 2000
    """So many samples of a set are searched, the first ones."""
    device: str | None = None
    """Where the models run: cpu, cuda, ... Default: the GPU if there is one."""

    @property
    def models(self) -> list[str]:
        """Each model once, in the order given."""
        return list(dict.fromkeys((self.model, *self.against)))

    @property
    def tasks(self) -> list[str]:
        """The sets of rated pairs."""
        return registry.available(self.evaluation_data)


class Index(NamedTuple):
    """A set as one model sees it: a row for each sentence, picture, sound or caption."""

    vectors: np.ndarray  # (N, d), at unit length
    texts: list[str]  # of each row: the sentence, or what the set says of the item
    owners: list[int]  # of each row: the number of its sample in the set
    items: Samples | None = None  # pictures or sounds; None: texts are all there is


class Hit(NamedTuple):
    """What was found."""

    cosine: float
    text: str
    sample: int  # its number in the set


def index_set(model: Model, samples: Samples, most: int) -> Index:
    """The first `most` samples of a set: its sentences; its pictures or sounds where the model encodes them; else the texts
    that belong to them.

    Raises EvaluationError for a model of texts and items that have none.
    """
    itself = samples.modality != "text" and samples.modality in getattr(model, "modalities", ())
    vectors: list[np.ndarray] = []
    texts: list[str] = []
    owners: list[int] = []
    for start, chunk in zip(range(0, most, CHUNK), samples.chunks(CHUNK), strict=False):
        chunk = chunk[: most - start]
        said = [texts_of(sample, samples) for sample in chunk]
        if itself:
            said = [[" / ".join(one)] for one in said]
            vectors.append(embed(model, [sample.item for sample in chunk], samples.modality))
        texts += chain.from_iterable(said)
        owners += [number for number, one in enumerate(said, start) for _ in one]
    if not texts:
        raise EvaluationError(f"{samples.task} says nothing of its items, and {model.name} encodes texts only; give it CLIP")
    found = np.concatenate(vectors) if itself else look_up(model, texts)[0]
    return Index(unit(found), texts, owners, None if samples.modality == "text" else samples)


def texts_of(sample: Sample, samples: Samples) -> list[str]:
    """A sentence itself; the captions of a picture or sound, else the name or number of its class, else nothing."""
    if samples.modality == "text":
        return [sample.item]
    if {"json", "txt"} & set(sample.fields):
        return sample.captions()
    if "cls" not in sample.fields:
        return []
    label = sample.label()
    return [samples.classes[label] if label < len(samples.classes) else str(label)]


def nearest(index: Index, query: np.ndarray, k: int) -> list[Hit]:
    """The k samples nearest to a vector (d,), best first; of one item's captions the nearest counts, and a sentence once."""
    cosines = index.vectors @ unit(query[None])[0]
    found: dict[int | str, Hit] = {}
    for row in np.argsort(-cosines, kind="stable"):
        hit = Hit(float(cosines[row]), index.texts[row], index.owners[row])
        found.setdefault(hit.text if index.items is None else hit.sample, hit)
        if len(found) == k:
            break
    return list(found.values())


def worst_pairs(task: PairTask, cosines: np.ndarray, k: int = 20) -> pd.DataFrame:
    """The k pairs whose rank by cosine (N,) is farthest from their rank by rating, worst first; equal values share a rank.

    ``off`` is the difference in hundredths of the set: at +60 the model ranks the pair above 60 % more of the others than
    people do, so it takes the sentences for too similar.
    """
    off = 100 * (stats.rankdata(cosines) - stats.rankdata(task.gold)) / len(cosines)
    rows = np.argsort(-np.abs(off), kind="stable")[:k]
    numbers = {"off": off[rows], "rating": task.gold[rows], "cosine": cosines[rows]}
    sides = {"sentence 1": task.pairs.first, "sentence 2": task.pairs.second}
    return pd.DataFrame(numbers | {name: [side[row] for row in rows] for name, side in sides.items()})


@cache
def pair_task(name: str, arguments: Arguments) -> PairTask:
    """Rated pairs."""
    (task,) = registry.make_tasks([name], arguments.evaluation_data)
    assert isinstance(task, PairTask)
    return task


@cache
def model_of(spec: str, arguments: Arguments) -> Model:
    """The model; whitening and flow are fitted on the sentences of the rated pairs."""
    sentences = chain.from_iterable(pair_task(name, arguments).sentences() for name in arguments.tasks)
    return load_model(spec, device=arguments.device, fit=list(dict.fromkeys(sentences)))


@cache
def index_of(spec: str, place: str, arguments: Arguments) -> Index:
    """The index of shards, or of the sentences of rated pairs."""
    model = model_of(spec, arguments)
    if place in arguments.data:
        return index_set(model, Samples(place, place), arguments.most)
    sentences = pair_task(place, arguments).sentences()[: arguments.most]
    return Index(unit(embed(model, sentences)), sentences, list(range(len(sentences))))


@cache
def measured(spec: str, name: str, arguments: Arguments) -> report.Measured:
    """Correlations, cosines and geometry of a set of rated pairs."""
    tasks = registry.make_tasks([name, name + registry.GEOMETRY], arguments.evaluation_data)
    return report.measure(spec, model_of(spec, arguments), tasks)


def page(argv: Sequence[str]) -> None:
    """What Streamlit runs at every change on the page."""
    import streamlit as st

    arguments = tyro.cli(Arguments, args=argv)
    st.set_page_config("MultiCSE", layout="wide")
    views = {"Nearest": show_nearest, "Worst pairs": show_worst_pairs, "Alignment and uniformity": show_geometry}
    view = views[st.sidebar.radio("Show", list(views))]
    name = st.sidebar.selectbox("Rated pairs", arguments.tasks)
    try:
        with st.spinner("computing …"):
            view(st, arguments, name)
    except ValueError as error:
        st.error(str(error))


def show_nearest(st: Any, arguments: Arguments, name: str) -> None:
    """What is near the sentence typed, a column a model."""
    k = st.sidebar.slider("How many", 1, 20, 6)
    query = st.text_input("Sentence", placeholder="Type a sentence, then Enter").strip()
    for spec, column in zip(arguments.models, st.columns(len(arguments.models)), strict=True):
        column.subheader(plain(spec))
        for place in (arguments.data or (name,)) if query else ():
            index = index_of(spec, place, arguments)
            column.caption(plain(f"{place}, {len({*index.owners}):,} searched"))
            show_hits(column, index, nearest(index, embed(model_of(spec, arguments), [query])[0], k))


def show_hits(column: Any, index: Index, hits: list[Hit]) -> None:
    """A table of sentences; pictures in rows; sounds below each other."""
    if index.items is None:
        show_table(column, pd.DataFrame(hits).drop(columns="sample").round(3), 340)
        return
    raw = [index.items.shards.sample(hit.sample) for hit in hits]
    fields = [sample.fields for sample in raw if isinstance(sample, RawSample)]
    captions = [plain(f"{hit.cosine:.3f} {hit.text}") for hit in hits]
    if index.items.modality == "image":
        column.image([decode.member(one, decode.IMAGES, "") for one in fields], captions, width=120)
        return
    for one, caption in zip(fields, captions, strict=True):
        extension, sound = decode.member_with_extension(one, decode.SOUNDS, "")
        column.caption(caption)
        column.audio(sound, f"audio/{extension}")


def show_table(place: Any, rows: pd.DataFrame, width: int) -> None:
    """Rows of numbers and texts; texts are as many pixels wide and four lines high."""
    texts = {name: {"width": width} for name in rows.select_dtypes(exclude="number")}
    place.dataframe(rows, hide_index=True, column_config=texts, row_height=76)


def plain(text: str) -> str:
    """The text in Markdown, which Streamlit takes titles and captions for."""
    return re.sub(r"([\\`*_\[\]$:~<#])", r"\\\1", text)


def show_worst_pairs(st: Any, arguments: Arguments, name: str) -> None:
    """The pairs that each model ranks worst."""
    st.caption("off: by how many hundredths of all pairs the model ranks a pair higher (+) or lower (−) than people do")
    for spec in arguments.models:
        done = measured(spec, name, arguments)
        st.subheader(plain(f"{spec}: Spearman {done.report['results'][name]['spearman']:.2f}"))
        worst = worst_pairs(pair_task(name, arguments), done.examples[name])
        show_table(st, worst.round({"off": 0, "rating": 2, "cosine": 3}), 310)


def show_geometry(st: Any, arguments: Arguments, name: str) -> None:
    """The models between alignment and uniformity, and the numbers."""
    geometry = name + registry.GEOMETRY
    reports = {spec: measured(spec, name, arguments).report for spec in arguments.models}
    tasks = registry.make_tasks([geometry], arguments.evaluation_data)
    for _, figure in report.scatter({spec: [one] for spec, one in reports.items()}, tasks):
        st.pyplot(figure, width=700)
    rows = {spec: one["results"][name] | one["results"][geometry] for spec, one in reports.items()}
    columns = ["spearman", "alignment", "uniformity", "mean_cosine"]
    st.dataframe(pd.DataFrame(rows).T[columns].astype(float).round(3))


def script(argv: Sequence[str]) -> str:
    """The file that Streamlit takes."""
    return f"from multicse.pipelines.explore import page\n\npage({list(argv)!r})\n"


def serve(argv: Sequence[str]) -> None:
    """Serve the page at a free port, whose address is printed, until Ctrl-C. Raises EvaluationError without Streamlit."""
    try:
        import streamlit as st
        import uvicorn
    except ImportError as error:
        raise EvaluationError(f"{error.name} is not installed; pip install 'multicse[explore]'") from error
    for name, value in SETTINGS.items():
        st.config.set_option(name, value)
    with tempfile.TemporaryDirectory() as folder, socket.create_server((ADDRESS, 0)) as listening:
        file = Path(folder) / "page.py"  # Streamlit puts its folder in front of all modules
        file.write_text(script(argv), encoding="utf-8")
        print("http://{}:{}".format(*listening.getsockname()), flush=True)
        uvicorn.Server(uvicorn.Config(st.App(file), log_level="error")).run([listening])


@cli_errors
def main(argv: list[str] | None = None) -> int:
    """The command line; 2 when the input was bad."""
    argv = sys.argv[1:] if argv is None else argv
    arguments = tyro.cli(Arguments, args=argv)
    logging.basicConfig(level=logging.WARNING, format="%(message)s")
    try:
        quiet()
        for spec in arguments.models:
            parse(spec)
        for place in arguments.data:
            Samples(place, place)
        if not arguments.tasks or arguments.most < 1:
            raise EvaluationError(
                f"--evaluation.data has the sets {arguments.tasks}, --most is {arguments.most}; both are needed"
            )
        serve(argv)
    except KeyboardInterrupt:
        pass
    return 0


if __name__ == "__main__":
    sys.exit(main())
