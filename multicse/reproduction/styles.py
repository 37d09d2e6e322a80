"""Comparisons of models as Markdown and LaTeX, with the best score of a column in bold."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial

from multicse import plugins
from multicse.evaluation.tables import Style


def _column(
    dress: Callable[[str, str, str, bool], str], scores: Sequence[str], stars: Sequence[str], best: set[int]
) -> list[str]:
    """Return the cells; `dress` is a function of mean, standard deviation or "", stars, and whether it is the best."""
    parts = [score.partition(" ± ") for score in scores]
    return [dress(mean, sd, star, i in best) for i, ((mean, _, sd), star) in enumerate(zip(parts, stars, strict=True))]


def _markdown_cell(mean: str, sd: str, stars: str, best: bool) -> str:
    return (f"**{mean}**" if best else mean) + (f" ± {sd}" if sd else "") + stars.replace("*", r"\*")


def _markdown_table(head: Sequence[str], body: Sequence[Sequence[str]], legend: Sequence[str]) -> str:
    lines = [[*map(_escape, head)], ["---", *("---:" for _ in head[1:])]]
    lines += [[_escape(label), *cells] for label, *cells in body]
    return "\n".join([*("| " + " | ".join(line) + " |" for line in lines), *("\n" + _escape(line) for line in legend)])


def _escape(text: str) -> str:
    return "".join("\\" + c if c in r"\|*_`<" else c for c in " ".join(text.split()))


def _latex_cell(mean: str, sd: str, stars: str, best: bool) -> str:
    bold, mark = rf"\textbf{{{mean}}}" if best else mean, f"$^{{{stars}}}$" if stars else ""
    return bold + (rf" $\pm$ {sd}" if sd else "") + mark


def _latex_table(head: Sequence[str], body: Sequence[Sequence[str]], legend: Sequence[str]) -> str:
    import pandas as pd  # imported here: it takes half a second, and training does not need it

    frame = pd.DataFrame([cells for _, *cells in body], [label for label, *_ in body], head[1:])
    table = frame.style.format_index(escape="latex").format_index(escape="latex", axis="columns")
    return table.to_latex(column_format="l" + "r" * (len(head) - 1)) + "\n".join(f"% {line}" for line in legend)


plugins.add("style", "markdown", Style(partial(_column, _markdown_cell), _markdown_table))
plugins.add("style", "latex", Style(partial(_column, _latex_cell), _latex_table))
