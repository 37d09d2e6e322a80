"""What a sweep found: its trials against their parameters, over training, and one after the other.

All functions take plain records (`trials.Trial`) and the name of the score, and show scores as they are stored.
Trials that failed or have no score are left out. Raises ValueError, with the reason, for what cannot be drawn.
"""

from __future__ import annotations

import textwrap
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any, Literal, NamedTuple

import matplotlib
import numpy as np
from matplotlib.axes import Axes
from matplotlib.cm import ScalarMappable
from matplotlib.colors import LinearSegmentedColormap, Normalize
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patheffects import Normal, Stroke
from matplotlib.ticker import MaxNLocator, NullLocator, PercentFormatter

from evaluation.figures.basic import COLOURS, new_figure
from trainers.tuning.parameter_axes import Parameter, parameter_axes
from trainers.tuning.trials import Trial, best_trial, ranked, show, varied

FEWEST, ROUGH = 8, 50  # trials: without as many importance is not estimated, or not well
NUMBERED = 50  # trials whose numbers fit below an axis
AS_IT_STANDS = "the recipe as it stands"

# The good ones dark, since light lines are lost on white; the lightest yellow is left out.
SCORES = LinearSegmentedColormap.from_list("scores", matplotlib.colormaps["viridis_r"](np.linspace(0.06, 1, 256)))
BEST: dict[str, Any] = {"marker": "*", "markersize": 15, "color": COLOURS[3], "markeredgecolor": "black"}
STANDING: dict[str, Any] = {"marker": "D", "markersize": 7, "color": "white", "markeredgecolor": "black"}
FINISHED: dict[str, Any] = {"marker": "o", "markersize": 6, "alpha": 0.8}
STOPPED: dict[str, Any] = {"marker": "v", "markersize": 6, "markerfacecolor": "none"}

Defaults = Mapping[str, Mapping[str, Any]]
"""Pipeline -> dotted path -> the value of the recipe as it stands; paths that no trial changes do not matter."""


class SweepFigures(NamedTuple):
    """The figures of a sweep by name, and for each that cannot be drawn one line with the reason."""

    figures: list[tuple[str, Figure]]
    left_out: list[str]


def sweep_figures(trials: Sequence[Trial], metric: str, defaults: Defaults | None = None) -> SweepFigures:
    """All figures of a sweep; those over parameters are one a pipeline, named after it where there are several."""
    pipelines = _pipelines(trials)
    drawn: list[tuple[str, partial[Figure]]] = []
    for pipeline, own in pipelines.items():
        end = f"_{pipeline}" if len(pipelines) > 1 else ""
        for draw in (parallel_coordinates, parameter_importance, score_against):
            drawn.append((f"{draw.__name__}{end}", partial(draw, own, metric, defaults)))
    drawn += [("best_so_far", partial(best_so_far, trials, metric))]
    drawn += [("learning_curves", partial(learning_curves, trials, metric))]
    found = SweepFigures([], [])
    for name, figure in drawn:
        try:
            found.figures.append((name, figure()))
        except ValueError as error:
            found.left_out.append(f"{name}: {error}")
    return found


# ----------------------------------------------------------------------------------------------------- over parameters


def parallel_coordinates(trials: Sequence[Trial], metric: str, defaults: Defaults | None = None) -> Figure:
    """A line a trial through its values, an axis a parameter, to its score at the right; coloured by score.

    Trials stopped early are thin. The best is outlined; the recipe as it stands is dashed, and is drawn where `defaults`
    tell its values. Raises ValueError for fewer than two trials or two varied parameters, and for several pipelines.
    """
    shown = _ended(trials)
    parameters = parameter_axes(shown, _one(shown, defaults))
    if len(shown) < 2 or len(parameters) < 2:
        raise ValueError(f"needs two trials with a score and two parameters, got {len(shown)} and {len(parameters)}")
    scores = np.array([trial.score for trial in shown])
    figure = new_figure(max(6.5, 1.45 * len(parameters) + 3), 5)
    axes = figure.add_subplot()
    columns = [*parameters, Parameter(metric, "linear", scores, ())]
    heights = np.stack([column.heights() for column in columns], axis=1)
    _rulers(axes, columns)
    colours, extend = _colours(scores)
    best = best_trial(shown)
    for trial, line in sorted(zip(shown, heights, strict=True), key=lambda pair: pair[0].score):
        _parallel_line(axes, trial, line, _colour(colours, trial.score), trial is best)
    figure.colorbar(colours, ax=axes, label=metric, extend=extend, pad=0.02)
    stopped = Line2D([], [], color="0.4", linewidth=0.8, label="stopped early")
    whole = Line2D([], [], color="0.4", linewidth=2, label="ran to the end")
    chosen = Line2D([], [], **BEST, linewidth=3, label="best")
    standing = Line2D(
        [], [], **STANDING | {"color": "black", "markerfacecolor": "white"}, linestyle="--", label=AS_IT_STANDS
    )
    _legend(figure, [whole, stopped, chosen, standing], shown)
    return figure


def _rulers(axes: Axes, columns: Sequence[Parameter]) -> None:
    """Upright lines with the values beside them; names on top."""
    for x, column in enumerate(columns):
        axes.axvline(x, color="0.3", linewidth=1, zorder=1)
        for height, label in column.ticks():
            axes.plot([x - 0.025, x + 0.025], [height, height], color="0.3", linewidth=1, zorder=5)
            box = {"facecolor": "white", "edgecolor": "none", "alpha": 0.75, "pad": 0.8}
            text = axes.annotate(
                label, (x, height), (9, 0), textcoords="offset points", fontsize=8, va="center", bbox=box, zorder=6
            )
            text.set_parse_math(False)
    axes.set_xticks(range(len(columns)), [_wrapped(column.path) for column in columns], fontsize=9)
    for name in axes.get_xticklabels():
        name.set_parse_math(False)
    axes.xaxis.tick_top()
    axes.tick_params(axis="x", length=0, pad=6)
    axes.yaxis.set_major_locator(NullLocator())
    axes.spines[:].set_visible(False)
    axes.set(xlim=(-0.15, len(columns) - 1 + 0.45), ylim=(-0.05, 1.05))


def _parallel_line(axes: Axes, trial: Trial, line: np.ndarray, colour: Any, best: bool) -> None:
    width = 0.8 if trial.status == "stopped" else 2.0
    look: dict[str, Any] = {"color": colour, "linewidth": width, "label": trial.label, "zorder": 2}
    xs = np.arange(len(line))
    if trial.as_it_stands:
        look |= {"color": "black", "linestyle": "--", "linewidth": 1.6, "zorder": 4}
        axes.plot(xs, line, **STANDING | {"linestyle": "none", "zorder": 7})
    if best:
        outline = [Stroke(linewidth=5, foreground=COLOURS[3]), Normal()]
        look |= {"linewidth": 2.5, "zorder": 3} | ({} if trial.as_it_stands else {"path_effects": outline})
        axes.plot(xs[-1:], line[-1:], **BEST | {"linestyle": "none", "zorder": 8})
    axes.plot(xs, line, **look)


def score_against(trials: Sequence[Trial], metric: str, defaults: Defaults | None = None) -> Figure:
    """Score of every trial against each parameter, one panel each; logarithmic where values span more than 30 times.

    Choices are spread a little sideways. Raises ValueError for fewer than two trials, no varied parameter, and several
    pipelines.
    """
    shown = _ended(trials)
    parameters = parameter_axes(shown, _one(shown, defaults))
    if len(shown) < 2 or not parameters:
        raise ValueError(f"needs two trials with a score and a varied parameter, got {len(shown)} and {len(parameters)}")
    wide = len(parameters) if len(parameters) <= 3 else -(-len(parameters) // -(-len(parameters) // 4))
    high = -(-len(parameters) // wide)
    figure = new_figure(max(5.0, 3.2 * wide), 3.1 * high + 0.5)
    grid = figure.subplots(high, wide, sharey=True, squeeze=False)
    for axes, parameter in zip(grid.flat, parameters, strict=False):
        _score_panel(axes, parameter, shown)
    for axes in grid.flat[len(parameters) :]:
        axes.remove()
    for axes in grid[:, 0]:
        axes.set_ylabel(metric)
    _legend(figure, _marks(shown, COLOURS[0]), shown)
    return figure


def _score_panel(axes: Axes, parameter: Parameter, trials: Sequence[Trial]) -> None:
    parameter.scale(axes)
    best = best_trial(trials)
    for i, (trial, place) in enumerate(zip(trials, parameter.places, strict=True)):
        x = place + (i % 5 - 2) * 0.06 if parameter.kind == "choice" else place
        _mark(axes, x, trial, COLOURS[0], trial is best)
        if trial.as_it_stands:
            axes.axhline(trial.score, color="black", linestyle=":", linewidth=1, zorder=1)
    axes.set_xlabel(_wrapped(parameter.path, 30), parse_math=False)


def parameter_importance(trials: Sequence[Trial], metric: str, defaults: Defaults | None = None, seed: int = 0) -> Figure:
    """A bar a parameter: its share of the variance of the score that parameters explain alone; see `importances`."""
    shares = importances(trials, defaults, seed)
    figure = new_figure(7, 0.42 * len(shares) + 1.8)
    axes = figure.add_subplot()
    bars = axes.barh(list(shares), list(shares.values()), color=COLOURS[0], height=0.65)
    axes.bar_label(bars, fmt=lambda share: f"{100 * share:.0f} %", padding=4)
    axes.invert_yaxis()
    axes.spines[["top", "right"]].set_visible(False)
    for label in axes.get_yticklabels():
        label.set_parse_math(False)
    axes.xaxis.set_major_formatter(PercentFormatter(1, symbol=" %"))
    axes.set(xlim=(0, 1.12), xticks=np.linspace(0, 1, 6))
    axes.set_xlabel(f"share of the explained variance of {metric}", parse_math=False)
    _caption(figure, _importance_caption(_complete(trials, defaults)))
    return figure


def _importance_caption(trials: Sequence[Trial]) -> str:
    stopped = sum(trial.status == "stopped" for trial in trials)
    early = f", {stopped} of them stopped early, which count with the score they had" if stopped else ""
    rough = " So few trials give a rough guide." if len(trials) < ROUGH else ""
    return f"fANOVA (Optuna), main effects, on {len(trials)} trials{early}.{rough}"


def importances(trials: Sequence[Trial], defaults: Defaults | None = None, seed: int = 0) -> dict[str, float]:
    """Path -> share of the variance of the score that the parameter alone explains, largest first; the sum is 1.

    fANOVA (Hutter, Hoos and Leyton-Brown, ICML 2014) as Optuna has it: a forest of 64 trees, whose main effects are taken
    over the range of the values tried, logarithmic where they span more than 30 times. Trials stopped early count with the
    score they had; a trial that lacks a parameter's value does not count. The same trials and seed give the same shares.

    Raises ValueError for fewer than 8 trials, fewer than two varied parameters, equal scores, and several pipelines.
    """
    shown = _complete(trials, defaults)
    parameters = parameter_axes(shown, _one(shown, defaults))
    if len(shown) < FEWEST:
        raise ValueError(f"needs at least {FEWEST} trials with a score, got {len(shown)}")
    if len(parameters) < 2:
        raise ValueError(f"needs two varied parameters to compare, got {len(parameters)}")
    scores = [trial.score for trial in shown]
    if min(scores) == max(scores):
        raise ValueError(f"all {len(shown)} trials have the score {show(scores[0])}, so no parameter matters")
    return _fanova(parameters, scores, seed)


def _complete(trials: Sequence[Trial], defaults: Defaults | None) -> list[Trial]:
    """The trials whose value of every varied parameter is known."""
    shown = _ended(trials)
    known = _one(shown, defaults)
    paths = varied(shown)
    return [trial for trial in shown if all(path in trial.changes or path in known for path in paths)]


def _fanova(parameters: Sequence[Parameter], scores: Sequence[float], seed: int) -> dict[str, float]:
    import optuna
    from optuna.distributions import BaseDistribution, CategoricalDistribution, FloatDistribution

    distributions: dict[str, BaseDistribution] = {}
    columns: dict[str, list[Any]] = {}
    for parameter in parameters:
        # Optuna's evaluator works in the values as they are, so a logarithmic axis is given as logarithms.
        places = parameter.places.astype(int) if parameter.kind == "choice" else parameter.heights()
        columns[parameter.path] = places.tolist()
        choices = tuple(range(len(parameter.names)))
        distributions[parameter.path] = CategoricalDistribution(choices) if choices else FloatDistribution(0, 1)
    with _quiet():
        study = optuna.create_study(direction="maximize")
        for i, score in enumerate(scores):
            params = {path: column[i] for path, column in columns.items()}
            study.add_trial(optuna.create_trial(params=params, distributions=distributions, value=score))
        evaluator = optuna.importance.FanovaImportanceEvaluator(seed=seed)
        found = optuna.importance.get_param_importances(study, evaluator=evaluator)
    return {path: float(share) for path, share in found.items()}


@contextmanager
def _quiet() -> Iterator[None]:
    """Without Optuna's line about every new study."""
    import optuna

    before = optuna.logging.get_verbosity()
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    try:
        yield
    finally:
        optuna.logging.set_verbosity(before)


# ----------------------------------------------------------------------------------------------------------- over time


def best_so_far(trials: Sequence[Trial], metric: str) -> Figure:
    """Score of every trial in the order in which they ended, the best so far as steps, the recipe as it stands dashed.

    Several pipelines differ by colour. Without the times of all ends the order is that of the numbers.
    Raises ValueError when no trial has ended with a score.
    """
    shown = _ended(trials)
    if not shown:
        raise ValueError("no trial has ended with a score")
    timed = all(trial.ended_at is not None for trial in shown)
    shown.sort(key=lambda trial: (trial.ended_at or 0.0 if timed else 0.0, trial.number))
    figure = new_figure(min(11.0, max(6.5, 0.2 * len(shown) + 3)), 4.5)
    axes = figure.add_subplot()
    pipelines = _pipelines(shown)
    for i, (pipeline, own) in enumerate(pipelines.items()):
        _progress(axes, [shown.index(trial) for trial in own], own, COLOURS[i % len(COLOURS)], pipeline)
    axes.set(xlabel=f"trials in the order {'in which they ended' if timed else 'of their numbers'}", ylabel=metric)
    if len(shown) <= NUMBERED:
        size = 9 if len(shown) <= 25 else 7
        axes.set_xticks(range(len(shown)), [str(trial.number) for trial in shown], fontsize=size)
    else:
        axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    handles = [Line2D([], [], color="0.3", drawstyle="steps-post", label="best so far"), *_marks(shown, "0.3")]
    if any(trial.as_it_stands for trial in shown):
        handles[-1] = Line2D([], [], **STANDING | {"color": "0.3", "markerfacecolor": "white"}, ls="--", label=AS_IT_STANDS)
    if len(pipelines) > 1:
        handles += [Line2D([], [], color=COLOURS[i % len(COLOURS)], lw=4, label=name) for i, name in enumerate(pipelines)]
    _legend(figure, handles, shown)
    return figure


def _progress(axes: Axes, places: Sequence[int], trials: Sequence[Trial], colour: str, pipeline: str) -> None:
    """One pipeline's points, the steps of its best, and the line of its recipe."""
    most = max(trial.seeds for trial in trials)  # see `ranked`
    top = np.fmax.accumulate([trial.score if trial.seeds == most else np.nan for trial in trials])
    axes.step(places, top, where="post", color=colour, linewidth=1.8, zorder=2, label=pipeline)
    best = best_trial(trials)
    for place, trial in zip(places, trials, strict=True):
        _mark(axes, place, trial, colour, trial is best)
        if trial.as_it_stands:
            axes.axhline(trial.score, color=colour, linestyle="--", linewidth=1.2, zorder=1)


def learning_curves(trials: Sequence[Trial], metric: str) -> Figure:
    """Score over the steps of every trial, a panel a pipeline, coloured by the best score; crosses end what was stopped.

    Raises ValueError when no trial was evaluated.
    """
    shown = [trial for trial in trials if trial.scored and trial.points]
    if not shown:
        raise ValueError("no trial was evaluated")
    pipelines = _pipelines(shown)
    figure = new_figure(5 * len(pipelines) + 2, 4.8)
    panels = figure.subplots(1, len(pipelines), sharey=True, squeeze=False)[0]
    colours, extend = _colours(np.array([trial.score for trial in shown]))
    for axes, (pipeline, own) in zip(panels, pipelines.items(), strict=True):
        best = best_trial(own)
        for trial in reversed(ranked(own)):  # the best on top
            _curve(axes, trial, _colour(colours, trial.score), trial is best)
        axes.set_xlabel("step")
        axes.xaxis.set_major_locator(MaxNLocator(integer=True, nbins=6))
        if len(pipelines) > 1:
            axes.set_title(pipeline)
    panels[0].set_ylabel(metric)
    figure.colorbar(colours, ax=panels, label=f"best {metric} of the trial", extend=extend, pad=0.02)
    handles = [Line2D([], [], color="0.4", marker="x", label="stopped early")]
    handles += [Line2D([], [], **BEST | {"color": "0.2", "markerfacecolor": COLOURS[3]}, linewidth=3, label="best")]
    handles += [Line2D([], [], color="black", linestyle="--", linewidth=1.8, label=AS_IT_STANDS)]
    _legend(figure, handles, shown)
    return figure


def _curve(axes: Axes, trial: Trial, colour: Any, best: bool) -> None:
    steps, scores = zip(*trial.points, strict=True)
    look: dict[str, Any] = {"color": colour, "linewidth": 1.3, "label": trial.label}
    if len(steps) == 1:
        look |= {"marker": ".", "markersize": 5}
    if trial.as_it_stands:
        look |= {"color": "black", "linestyle": "--", "linewidth": 1.8}
    if best:
        top = int(np.argmax(scores))
        look |= {"linewidth": 3}
        axes.plot(steps[top], scores[top], **BEST | {"linestyle": "none", "zorder": 5})
    axes.plot(steps, scores, **look)
    if trial.status == "stopped":
        axes.plot(steps[-1], scores[-1], color=look["color"], marker="x", markersize=6, linestyle="none", zorder=4)


# --------------------------------------------------------------------------------------------------------- shared parts


def _ended(trials: Sequence[Trial]) -> list[Trial]:
    return [trial for trial in trials if trial.ended and trial.scored]


def _pipelines(trials: Sequence[Trial]) -> dict[str, list[Trial]]:
    found: dict[str, list[Trial]] = {}
    for trial in trials:
        found.setdefault(trial.pipeline, []).append(trial)
    return found


def _one(trials: Sequence[Trial], defaults: Defaults | None) -> Mapping[str, Any]:
    """The defaults of the pipeline of all trials. Raises ValueError when there are several, which share no axes."""
    names = list(_pipelines(trials))
    if len(names) > 1:
        raise ValueError(f"the trials are of several pipelines ({', '.join(names)}); draw those of each alone")
    return (defaults or {}).get(names[0], {}) if names else {}


def _colours(scores: np.ndarray) -> tuple[ScalarMappable, Literal["neither", "min"]]:
    """A colour by score. Scores far below the others (Tukey's fence) share the lowest, or all others would look alike."""
    low, quarter, three, high = np.quantile(scores, [0, 0.25, 0.75, 1])
    fence = quarter - 1.5 * (three - quarter)
    clipped = low < fence < high
    bottom = float(scores[scores >= fence].min()) if clipped else float(low)
    return ScalarMappable(Normalize(bottom, float(high)), SCORES), "min" if clipped else "neither"


def _colour(colours: ScalarMappable, score: float) -> tuple[float, ...]:
    return tuple(float(part) for part in colours.to_rgba(np.array([score]))[0])


def _mark(axes: Axes, x: float, trial: Trial, colour: str, best: bool) -> None:
    """The point of a trial: its marker tells how it ended; a diamond is the recipe as it stands, a star the best."""
    look = STANDING if trial.as_it_stands else STOPPED if trial.status == "stopped" else FINISHED
    if best:
        axes.plot(x, trial.score, **BEST | {"linestyle": "none", "zorder": 4, "markersize": 17})
    if best and not trial.as_it_stands:
        look = look | {"markersize": 3, "alpha": 1.0}
    axes.plot(x, trial.score, **{"color": colour} | look | {"linestyle": "none", "zorder": 5, "label": trial.label})


def _marks(trials: Sequence[Trial], colour: str) -> list[Line2D]:
    """What the markers of `_mark` mean."""
    looks = {"ran to the end": FINISHED, "stopped early": STOPPED, "best": BEST, AS_IT_STANDS: STANDING}
    return [Line2D([], [], **{"color": colour} | look | {"linestyle": "none"}, label=name) for name, look in looks.items()]


def _legend(figure: Figure, handles: Sequence[Line2D], trials: Sequence[Trial]) -> None:
    """A legend above the axes, of what these trials have."""
    absent = set()
    if not any(trial.status == "stopped" for trial in trials):
        absent.add("stopped early")
    if not any(trial.as_it_stands for trial in trials):
        absent.add(AS_IT_STANDS)
    kept = [handle for handle in handles if handle.get_label() not in absent]
    columns = max(2, int(figure.get_figwidth() / 1.6))  # inches that the longest name takes
    box = figure.legend(handles=kept, loc="outside upper center", ncols=min(len(kept), columns), frameon=False, fontsize=9)
    for text in box.get_texts():
        text.set_parse_math(False)


def _caption(figure: Figure, text: str) -> None:
    lines = textwrap.fill(text, int(figure.get_figwidth() * 14))
    figure.supxlabel(lines, fontsize=8, color="0.3", x=0.02, horizontalalignment="left")


def _wrapped(path: str, width: int = 15) -> str:
    """A dotted path on lines of `width` characters, broken behind dots."""
    lines = [""]
    for part in path.replace(".", ".\0").split("\0"):
        if lines[-1] and len(lines[-1]) + len(part) > width:
            lines.append("")
        lines[-1] += part
    return "\n".join(lines)
