"""Explore models on a web page: ``python pipelines/explore.py --model DIR --against DIR --data SHARDS``."""

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

from multicse.commands import read_options
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
    "browser.gatherUsageStats": False,
    "client.toolbarMode": "minimal",
    "server.address": ADDRESS,
    "server.fileWatcherType": "none",
}
"""Settings of Streamlit."""


@dataclass(frozen=True)
class Arguments:
    """Explore models on a local web page.

    The page shows the nearest samples of a typed sentence, the rated pairs with the largest ranking errors, alignment and
    uniformity. It is served at the printed address on this machine until Ctrl-C.

    Example: python pipelines/explore.py --model runs/demo/export --against bert@mean --data shards/captions
    """

    model: Annotated[str, tyro.conf.arg(metavar="MODEL")]
    """Model, as for pipelines/evaluate.py: a folder or a Hugging Face model ID, optionally with @POOLING or +whitening."""
    against: Annotated[tuple[str, ...], tyro.conf.arg(metavar="MODEL")] = ()
    """Models to compare it with."""
    data: Annotated[tuple[str, ...], tyro.conf.arg(metavar="SHARDS")] = ()
    """Shards to search. CLIP and CLAP models search the images and audio clips themselves, text encoders their captions or
    class names. Default: the sentences of the rated pairs."""
    evaluation_data: Annotated[Path | None, tyro.conf.arg(name="evaluation.data")] = None
    """Folder of rated pairs: a SentEval downstream folder, or a folder of raw TSVs. Default: the Lee corpus of gensim."""
    most: int = 2000
    """Maximum number of samples to search per set; the first ones are used."""
    device: str | None = None
    """Device of the models: cpu, cuda, ... Default: the GPU if one is available, otherwise the CPU."""

    @property
    def models(self) -> list[str]:
        """Return the models without duplicates."""
        return list(dict.fromkeys((self.model, *self.against)))

    @property
    def tasks(self) -> list[str]:
        """Return the names of the sets of rated pairs."""
        return registry.available(self.evaluation_data)


class Index(NamedTuple):
    """Embeddings of a set by one model: one row per sentence, image, audio clip or caption."""

    vectors: np.ndarray
    """(N, d), with unit length."""
    texts: list[str]
    """Sentence, captions or class name of each row."""
    owners: list[int]
    """Number of the sample of each row."""
    items: Samples | None = None
    """The set, if its samples are images or audio clips."""


class Hit(NamedTuple):
    """Result of a search."""

    cosine: float
    text: str
    sample: int
    """Number of the sample in the set."""


def index_set(model: Model, samples: Samples, most: int) -> Index:
    """Embed the first samples of a set.

    Args:
        model: Model. If it encodes the modality of the samples, images or audio clips are embedded, otherwise their texts.
        samples: The set.
        most: Maximum number of samples.

    Raises:
        EvaluationError: If the model is a text encoder and the samples have no texts.
    """
    itself = samples.modality != "text" and samples.modality in getattr(model, "modalities", ())
    vectors: list[np.ndarray] = []
    texts: list[str] = []
    owners: list[int] = []
    for start, chunk in zip(range(0, most, CHUNK), samples.chunks(CHUNK), strict=False):
        chunk = chunk[: most - start]
        found = [_texts_of(sample, samples) for sample in chunk]
        if itself:
            found = [[" / ".join(one)] for one in found]
            vectors.append(embed(model, [sample.item for sample in chunk], samples.modality))
        texts += chain.from_iterable(found)
        owners += [number for number, one in enumerate(found, start) for _ in one]
    if not texts:
        raise EvaluationError(
            f"--data {samples.task} has no captions or classes, and {model.name} encodes only text; give a CLIP model"
        )
    embedded = np.concatenate(vectors) if itself else look_up(model, texts)[0]
    return Index(unit(embedded), texts, owners, None if samples.modality == "text" else samples)


def _texts_of(sample: Sample, samples: Samples) -> list[str]:
    """Return the sentence of a sample, the captions of an image or audio clip, or its class; nothing if it has neither."""
    if samples.modality == "text":
        return [sample.item]
    if {"json", "txt", "captions", "caption"} & set(sample.fields):
        return sample.captions()
    if "cls" not in sample.fields:
        return []
    label = sample.label()
    return [samples.classes[label] if label < len(samples.classes) else str(label)]


def nearest(index: Index, query: np.ndarray, k: int) -> list[Hit]:
    """Return the nearest samples, best first. Equal sentences are returned once, and items by their nearest caption.

    Args:
        index: The indexed set.
        query: (d,), embedding of the query.
        k: Number of samples.
    """
    cosines = index.vectors @ unit(query[None])[0]
    found: dict[int | str, Hit] = {}
    for row in np.argsort(-cosines, kind="stable"):
        hit = Hit(float(cosines[row]), index.texts[row], index.owners[row])
        found.setdefault(hit.text if index.items is None else hit.sample, hit)
        if len(found) == k:
            break
    return list(found.values())


def worst_pairs(task: PairTask, cosines: np.ndarray, k: int = 20) -> pd.DataFrame:
    """Return the pairs with the largest difference between their ranks by cosine and by rating, worst first.

    Args:
        task: Rated pairs.
        cosines: (N,), cosine similarity of each pair.
        k: Number of pairs.

    Returns:
        Table with a column ``off``, the difference of the ranks in percent of the set: at +60 the model ranks the pair above
        60 % more of the other pairs than the ratings do, so it overestimates the similarity. Equal values share a rank.
    """
    off = 100 * (stats.rankdata(cosines) - stats.rankdata(task.gold)) / len(cosines)
    rows = np.argsort(-np.abs(off), kind="stable")[:k]
    numbers = {"off": off[rows], "rating": task.gold[rows], "cosine": cosines[rows]}
    sides = {"sentence 1": task.pairs.first, "sentence 2": task.pairs.second}
    return pd.DataFrame(numbers | {name: [side[row] for row in rows] for name, side in sides.items()})


@cache
def _pair_task(name: str, arguments: Arguments) -> PairTask:
    """Return a set of rated pairs."""
    (task,) = registry.make_tasks([name], arguments.evaluation_data)
    assert isinstance(task, PairTask)
    return task


@cache
def _model_of(spec: str, arguments: Arguments) -> Model:
    """Load a model; whitening and flow are fitted on the sentences of the rated pairs."""
    sentences = chain.from_iterable(_pair_task(name, arguments).sentences() for name in arguments.tasks)
    return load_model(spec, device=arguments.device, fit=list(dict.fromkeys(sentences)))


@cache
def _index_of(spec: str, place: str, arguments: Arguments) -> Index:
    """Index shards, or the sentences of rated pairs."""
    model = _model_of(spec, arguments)
    if place in arguments.data:
        return index_set(model, Samples(place, place), arguments.most)
    sentences = _pair_task(place, arguments).sentences()[: arguments.most]
    return Index(unit(embed(model, sentences)), sentences, list(range(len(sentences))))


@cache
def _measured(spec: str, name: str, arguments: Arguments) -> report.Report:
    """Evaluate a model on a set of rated pairs: correlation, cosines, alignment and uniformity."""
    tasks = registry.make_tasks([name, name + registry.GEOMETRY], arguments.evaluation_data)
    return report.measure(spec, _model_of(spec, arguments), tasks)


def page(argv: Sequence[str]) -> None:
    """Draw the page; Streamlit calls this after every change."""
    import streamlit as st

    arguments = read_options(Arguments, argv)
    st.set_page_config("MultiCSE", layout="wide")
    views = {"Nearest": _show_nearest, "Worst pairs": _show_worst_pairs, "Alignment and uniformity": _show_geometry}
    view = views[st.sidebar.radio("Show", list(views))]
    name = st.sidebar.selectbox("Rated pairs", arguments.tasks)
    try:
        with st.spinner("computing …"):
            view(st, arguments, name)
    except ValueError as error:
        st.error(str(error))


def _show_nearest(st: Any, arguments: Arguments, name: str) -> None:
    """Show the nearest samples of the typed sentence, in one column per model."""
    k = st.sidebar.slider("How many", 1, 20, 6)
    query = st.text_input("Sentence", placeholder="Type a sentence, then Enter").strip()
    for spec, column in zip(arguments.models, st.columns(len(arguments.models)), strict=True):
        column.subheader(plain(spec))
        for place in (arguments.data or (name,)) if query else ():
            index = _index_of(spec, place, arguments)
            column.caption(plain(f"{place}, {len({*index.owners}):,} searched"))
            _show_hits(column, index, nearest(index, embed(_model_of(spec, arguments), [query])[0], k))


def _show_hits(column: Any, index: Index, hits: list[Hit]) -> None:
    """Show sentences as a table, images in rows and audio clips below each other."""
    if index.items is None:
        _show_table(column, pd.DataFrame(hits).drop(columns="sample").round(3), 340)
        return
    raw = [index.items.shards.sample(hit.sample) for hit in hits]
    fields = [sample.fields for sample in raw if isinstance(sample, RawSample)]
    captions = [plain(f"{hit.cosine:.3f} {hit.text}") for hit in hits]
    if index.items.modality == "image":
        column.image([decode.member(one, decode.IMAGES, "") for one in fields], captions, width=120)
        return
    for one, caption in zip(fields, captions, strict=True):
        extension, content = decode.member_with_extension(one, decode.SOUNDS, "")
        column.caption(caption)
        column.audio(content, f"audio/{extension}")


def _show_table(place: Any, rows: pd.DataFrame, width: int) -> None:
    """Show a table with columns of text that are `width` pixels wide and four lines high."""
    texts = {name: {"width": width} for name in rows.select_dtypes(exclude="number")}
    place.dataframe(rows, hide_index=True, column_config=texts, row_height=76)


def plain(text: str) -> str:
    """Escape a text for titles and captions, which Streamlit renders as Markdown."""
    return re.sub(r"([\\`*_\[\]$:~<#])", r"\\\1", text)


def _show_worst_pairs(st: Any, arguments: Arguments, name: str) -> None:
    """Show the pairs with the largest ranking errors of each model."""
    st.caption("off: difference between the ranks by cosine and by rating, in % of all pairs (+ overestimates similarity)")
    for spec in arguments.models:
        done = _measured(spec, name, arguments)
        st.subheader(plain(f"{spec}: Spearman {done[name]['spearman']:.2f}"))
        worst = worst_pairs(_pair_task(name, arguments), done.examples[name])
        _show_table(st, worst.round({"off": 0, "rating": 2, "cosine": 3}), 310)


def _show_geometry(st: Any, arguments: Arguments, name: str) -> None:
    """Show alignment and uniformity of the models as a figure and a table."""
    geometry = name + registry.GEOMETRY
    reports = {spec: _measured(spec, name, arguments) for spec in arguments.models}
    tasks = registry.make_tasks([geometry], arguments.evaluation_data)
    for _, figure in report.scatter({spec: [one] for spec, one in reports.items()}, tasks):
        st.pyplot(figure, width=700)
    rows = {spec: one[name] | one[geometry] for spec, one in reports.items()}
    columns = ["spearman", "alignment", "uniformity", "mean_cosine"]
    st.dataframe(pd.DataFrame(rows).T[columns].astype(float).round(3))


def script(argv: Sequence[str]) -> str:
    """Return the script for Streamlit."""
    return f"from multicse.commands.explore import page\n\npage({list(argv)!r})\n"


def serve(argv: Sequence[str]) -> None:
    """Serve the page on a free port until Ctrl-C, and print its address.

    Raises:
        EvaluationError: If Streamlit is not installed.
    """
    try:
        import streamlit as st
        import uvicorn
    except ImportError as error:
        raise EvaluationError(f"explore needs the package {error.name}: pip install 'multicse[explore]'") from error
    for name, value in SETTINGS.items():
        st.config.set_option(name, value)
    with tempfile.TemporaryDirectory() as folder, socket.create_server((ADDRESS, 0)) as listening:
        file = Path(folder) / "page.py"  # Streamlit adds its folder to the front of sys.path
        file.write_text(script(argv), encoding="utf-8")
        print("http://{}:{}".format(*listening.getsockname()), flush=True)
        uvicorn.Server(uvicorn.Config(st.App(file), log_level="error")).run([listening])


@cli_errors
def main(argv: list[str] | None = None) -> int:
    """Run the command line."""
    argv = sys.argv[1:] if argv is None else argv
    arguments = read_options(Arguments, argv)
    logging.basicConfig(level=logging.WARNING, format="%(message)s")
    try:
        quiet()
        for spec in arguments.models:
            parse(spec)
        for place in arguments.data:
            Samples(place, place)
        if not arguments.tasks:
            raise EvaluationError(
                f"--evaluation.data {arguments.evaluation_data}: no rated pairs found; give another folder"
            )
        if arguments.most < 1:
            raise EvaluationError(f"--most {arguments.most}: give a number of at least 1")
        serve(argv)
    except KeyboardInterrupt:
        pass
    return 0
