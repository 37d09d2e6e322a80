"""What the tables of mocoutrl.toml are measured and drawn by."""

from __future__ import annotations

from functools import partial
from pathlib import Path

import numpy as np
from matplotlib.figure import Figure

from multicse.evaluation.encoders.encoder import FolderEncoder
from multicse.evaluation.figures.basic import COLOURS, legend, new_figure
from multicse.evaluation.load import Model, load_model
from multicse.evaluation.tasks.labelled_texts import Labelled, read_labelled
from multicse.reproduction.figures.vectors import on_circle
from multicse.reproduction.tables.table import Table, Values, read_tables, small_recipe
from multicse.reproduction.tasks.class_geometry import ClassGeometryTask
from multicse.reproduction.tasks.finetune import FinetuneTask, Training

DISTANCES = ("intra_class_distance", "inter_class_distance", "mean_cosine")
BINS = 36  # of angles
TOKENS = 5  # of each text
SUPERVISED = Training(epochs=3, lr=1e-4)


def circle(spec: str, table: Table, data: Path) -> dict[str, float]:
    """Figure 2's numbers of a model: the columns, and by ``distance I`` and ``angle CLASS I`` what is drawn."""
    return _circle(load_model(spec), table, _labelled(table))


def supervised_circle(spec: str, table: Table, data: Path) -> dict[str, float]:
    """The same after training the model and the probe's head with the labels."""
    model, labelled = load_model(spec), _labelled(table)
    assert isinstance(model, FolderEncoder)
    trained, _, _ = FinetuneTask("supervised", labelled, SUPERVISED, "three-layers").train(model)
    return _circle(trained, table, labelled)


def _labelled(table: Table) -> Labelled:
    return read_labelled(table.columns[0].partition(":")[2].partition("#")[0])


def _circle(model: Model, table: Table, labelled: Labelled) -> dict[str, float]:
    texts, labels = ([getattr(row, name) for row in labelled.parts["test"]] for name in ("text", "label"))
    score = ClassGeometryTask("figure", texts, labels).score(model)
    found = {column: score.metrics[column.partition("#")[2]] for column in table.columns}
    counts = np.asarray(score.details["intra_counts"])
    found |= {f"distance {i}": 100 * float(share) for i, share in enumerate(counts / counts.sum())}
    assert isinstance(model, FolderEncoder)
    tokens = token_states(model, texts)
    x, y = on_circle(tokens.reshape(-1, tokens.shape[-1])).T
    angles, classes = np.arctan2(y, x).reshape(len(texts), -1), np.asarray(labels)
    for name in ("all", *labelled.classes[:4]):
        density = np.histogram(angles[(classes == name) | (name == "all")], BINS, (-np.pi, np.pi), density=True)[0]
        found |= {f"angle {name} {i}": float(value) for i, value in enumerate(density)}
    return found


def token_states(model: FolderEncoder, texts: list[str], seed: int = 0) -> np.ndarray:
    """States (N, 5, d) behind the last layer of five random tokens of each text, of which one may be drawn twice."""
    rng = np.random.default_rng(seed)
    drawn: list[np.ndarray] = []
    for start in range(0, len(texts), 64):  # the states of all tokens of all texts would be gigabytes
        states = model.model.encode(texts[start : start + 64], output_value="token_embeddings", show_progress_bar=False)
        drawn += [one[rng.integers(len(one), size=TOKENS)].float().cpu().numpy() for one in states]
    return np.stack(drawn)


def figure_2(table: Table, values: Values) -> Figure:
    """Figure 2: a row a model; distances within a class, angles of random tokens, and those of four classes."""
    figure = new_figure(13, 3 * len(values))
    for panels, (label, found) in zip(figure.subplots(len(values), 3, squeeze=False), values.items(), strict=True):
        panels[0].set(title=label, xlabel="distance of two vectors of a class", ylabel="% of pairs", xlim=(0, 2))
        panels[0].stairs(_series(found, "distance "), np.linspace(0, 2, 11), fill=True, color=COLOURS[0])
        names = dict.fromkeys(key.split(" ")[1] for key in found if key.startswith("angle "))
        for i, name in enumerate(names):
            axes = panels[1 if name == "all" else 2]
            axes.stairs(_series(found, f"angle {name} "), np.linspace(-np.pi, np.pi, BINS + 1), color=COLOURS[i], label=name)
        for axes in panels[1:]:
            axes.set(xlabel="angle of a token (radians)", ylabel="density", xlim=(-np.pi, np.pi))
            legend(axes)
    return figure


def _series(found: dict[str, list[float]], prefix: str) -> list[float]:
    return [float(np.mean(runs)) for key, runs in found.items() if key.startswith(prefix)]


FILE = Path(__file__).with_suffix(".toml")
TABLES = read_tables(FILE, globals())
mini = partial(small_recipe, FILE)
"""100 steps of 16 sentences of Wikipedia, our own table of words. Rows that differ in the encoder alone are one run."""
