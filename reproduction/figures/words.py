"""Words coloured by weight, and the weight that GCLSR's attention gives them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import torch
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.cm import ScalarMappable
from matplotlib.colors import Normalize
from matplotlib.figure import Figure
from matplotlib.text import Text

from multicse.evaluation.figures.basic import COLOURS, finite, legend, new_figure
from multicse.models.word_module import importance

WIDTH, LINE, MARGIN, SPACE = 8.0, 0.4, 0.15, 0.08  # inches
SIZE, PAD = 11, 0.2  # of the font in points; around a word, in font sizes


def attention_importance(vectors: np.ndarray) -> np.ndarray:
    """What GCLSR's attention gives each word of a sentence, of their vectors (L, d); there is no padding."""
    words = torch.from_numpy(np.asarray(vectors, dtype=float))[None]
    return importance(words, torch.ones(words.shape[:2]), words.shape[1])[0].numpy()


def word_importance(sentences: Sequence[tuple[Sequence[str], Sequence[float] | np.ndarray]]) -> Figure:
    """Sentences as (words, weights), one below the other, every word on a colour by its weight. (GCLSR, Figure 3.)

    Weights grow with the length of a sentence, so each sentence is divided by its largest absolute weight.
    """
    if not sentences:
        raise ValueError("there are no sentences to draw")
    shares = [_shares(np.asarray(weights, dtype=float)) for _, weights in sentences]
    lowest = min(0.0, *(float(share.min()) for share in shares))
    colour = ScalarMappable(Normalize(lowest, 1), "cividis")
    figure = new_figure(WIDTH, 1)
    figure.set_layout_engine("none")
    texts: list[tuple[Text, float, float]] = []
    y = 0.0
    for (words, _), share in zip(sentences, shares, strict=True):
        x = 0.0
        for word, rgba in zip(words, colour.to_rgba(share), strict=True):
            text = _word(figure, word, rgba)
            width = _inches(figure, text)
            if x and x + width > WIDTH - 2 * MARGIN:
                x, y = 0.0, y + LINE
            texts.append((text, x, y))
            x += width + SPACE
        y += 1.5 * LINE
    height = y + 0.9
    figure.set_size_inches(WIDTH, height)
    for text, left, below in texts:
        text.set_position(((MARGIN + left) / WIDTH, 1 - (MARGIN + below + LINE / 2) / height))
    scale = figure.add_axes((0.2, 0.5 / height, 0.6, 0.12 / height))
    figure.colorbar(colour, cax=scale, orientation="horizontal", label="weight, as a share of the sentence's largest")
    return figure


def augmented_vector(word: np.ndarray, changed: Mapping[str, np.ndarray]) -> Figure:
    """A word's vector (d,), and what augmentations make of it, name -> (d,), a panel each. (GCLSR, Figure 2.)"""
    figure = new_figure(8, 1.6 * len(changed))
    panels = figure.subplots(len(changed), sharex=True, squeeze=False)[:, 0]
    for axes, (name, vector) in zip(panels, changed.items(), strict=True):
        axes.plot(finite("word", word), color=COLOURS[6], linewidth=0.8, label="word")
        axes.plot(finite(name, vector), color=COLOURS[3], linewidth=0.8, label="augmented")
        axes.set_title(name)
    panels[-1].set_xlabel("component")
    legend(panels[0])
    return figure


def _shares(weights: np.ndarray) -> np.ndarray:
    largest = np.abs(weights).max()
    return weights / largest if largest else weights


def _word(figure: Figure, word: str, rgba: np.ndarray) -> Text:
    dark = float(rgba[:3] @ [0.299, 0.587, 0.114]) < 0.5
    return figure.text(
        0,
        0,
        word,
        fontsize=SIZE,
        color="white" if dark else "black",
        verticalalignment="center",
        bbox={"facecolor": rgba, "edgecolor": "none", "boxstyle": f"square,pad={PAD}"},
        parse_math=False,
    )


def _inches(figure: Figure, text: Text) -> float:
    """Width of a word with its box."""
    canvas = figure.canvas
    assert isinstance(canvas, FigureCanvasAgg)
    pad = 2 * PAD * SIZE / 72
    return text.get_window_extent(canvas.get_renderer()).width / figure.dpi + pad
