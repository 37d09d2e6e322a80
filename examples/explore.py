"""Look at vectors that `embed` wrote: one page with a map, neighbours and rated pairs, which opens offline in any browser.

    python pipelines/embed.py models/small-bert-en runs/offline/text --out before
    python pipelines/embed.py runs/demo/export runs/offline/text --out after
    python examples/explore.py before after --query "a fast animal" --pairs lee --out page.html

It needs plotly: pip install -e ".[explore]".
"""

from __future__ import annotations

import html
import json
from glob import escape, glob
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import pyarrow.parquet as pq
import tyro
from sklearn.cluster import KMeans
from sklearn.manifold import TSNE

from multicse.data.errors import DataError
from multicse.evaluation.load import Model, load_model
from multicse.evaluation.registry import make_tasks
from multicse.evaluation.task import EvaluationError, unit
from multicse.evaluation.tasks.sts import PairTask


def read(folder: str) -> dict[str, dict[str, object]]:
    """Return the rows of a folder of vectors by key."""
    files = sorted(glob(f"{escape(folder)}/*.parquet"))
    if not files:
        raise DataError(f"{folder} has no vectors; write them with pipelines/embed.py")
    return {str(row["key"]): row for row in pq.read_table(files).to_pylist()}


def model_of(folder: str) -> Model:
    """Load the model whose vectors a folder contains."""
    return load_model(json.loads((Path(folder) / "dataset.json").read_text())["embedding"]["of"])


def shown(text: object) -> str:
    """Return the start of a text for the page."""
    return html.escape(str(text)[:120])


def main(
    vectors: Annotated[tyro.conf.Positional[tuple[str, ...]], tyro.conf.arg(metavar="VECTORS")],
    out: Path = Path("page.html"),
    colour: str | None = None,
    query: tuple[str, ...] = (),
    pairs: str | None = None,
    data: Path | None = None,
    most: int = 2000,
) -> None:
    """Write a page with a map of the rows for each folder of vectors; the pointer shows a row and its three neighbours.

    Args:
        vectors: Folders that `embed` wrote for the same rows, for example by a model before and after training.
        out: File of the page.
        colour: Column that colours the rows, which `embed --keep` has copied. Default: eight clusters of the last folder.
        query: Sentences whose nearest rows are printed; this loads the models.
        pairs: Task of rated pairs (lee, stsb-dev, pairs:FILE) to show similarity against rating; this loads the models.
        data: Folder of the task, if it needs one.
        most: Maximum number of rows: the first ones that all folders have.
    """
    try:
        from plotly.colors import qualitative
        from plotly.subplots import make_subplots
    except ModuleNotFoundError:
        raise SystemExit("error: the page needs plotly: pip install plotly") from None

    found = [read(folder) for folder in vectors]
    keys = [key for key in found[-1] if all(key in rows for rows in found)][:most] if found else []
    if len(keys) < 40:
        raise DataError(f"the folders have {len(keys)} rows in common, and a map needs 40; embed the same data")
    last = [found[-1][key] for key in keys]
    if colour is not None and colour not in last[0]:
        raise DataError(f"--colour {colour}: no such column; embed the data with --keep {colour}")
    texts = [row.get("text") or row["key"] for row in last]
    sets = [unit(np.array([rows[key]["vector"] for key in keys])) for rows in found]
    groups = [row[colour] for row in last] if colour else KMeans(8, n_init=4, random_state=0).fit_predict(sets[-1]).tolist()
    names = sorted({str(group) for group in groups})
    page = make_subplots(2 if pairs else 1, len(vectors), subplot_titles=vectors)
    for column, (folder, own) in enumerate(zip(vectors, sets, strict=True), 1):
        cosines = own @ own.T
        hover = ["<br>- ".join(shown(texts[near]) for near in np.argsort(-row)[:4]) for row in cosines]
        x, y = TSNE(metric="precomputed", init="random", random_state=0).fit_transform(np.clip(1 - cosines, 0, 2)).T
        for name, color in zip(names, qualitative.Dark24 * len(names), strict=False):
            at = [row for row, group in enumerate(groups) if str(group) == name]
            points = {"x": x[at], "y": y[at], "text": [hover[row] for row in at], "hoverinfo": "text", "mode": "markers"}
            legend = {"name": name, "legendgroup": name, "showlegend": column == 1}
            page.add_scatter(**points, **legend, marker={"color": color, "size": 5}, row=1, col=column)
        if not (query or pairs):
            continue
        model = model_of(folder)
        for sentence in query:
            near = own @ unit(model.encode([sentence])[:, : own.shape[1]])[0]
            print(f"{folder}: {sentence}")
            print("".join(f"  {near[row]:.3f}  {texts[row]}\n" for row in np.argsort(-near)[:5]))
        if pairs:
            (task,) = make_tasks([pairs], data)
            if not isinstance(task, PairTask):
                raise EvaluationError(f"--pairs {pairs} has no rated pairs; give lee, stsb-dev or pairs:FILE")
            hover = [
                f"{shown(one)}<br>{shown(other)}" for one, other in zip(task.pairs.first, task.pairs.second, strict=True)
            ]
            points = {"x": task.gold, "y": task.similarities(model), "text": hover, "hoverinfo": "text", "mode": "markers"}
            page.add_scatter(**points, showlegend=False, marker={"color": "#555", "size": 4}, row=2, col=column)
            page.update_xaxes(title=f"rating; Spearman {task.score(model).metrics['spearman']:.1f}", row=2, col=column)
            page.update_yaxes(title="cosine similarity", row=2, col=column)
    page.update_xaxes(showticklabels=False, row=1).update_yaxes(showticklabels=False, row=1)
    page.update_layout(height=1000 if pairs else 550, template="plotly_white")
    page.write_html(out, include_plotlyjs=True)
    print(f"written to {out}")


def parser() -> Any:
    """Return the parser of the command line."""
    return tyro.extras.get_parser(main)


if __name__ == "__main__":
    tyro.cli(main)
