"""GCLSR's attention importance, and words on their colours."""

from __future__ import annotations

from typing import Any

import matplotlib
import numpy as np
import pytest
from matplotlib.text import Text

from multicse.reproduction.figures.words import word_importance


def words_of(sentences: Any) -> dict[str, Text]:
    return {text.get_text(): text for text in word_importance(sentences).texts}


def test_words_are_coloured_by_their_share_of_the_sentence() -> None:
    texts = words_of([(["one", "$two$", "three"], [1.0, 2.0, 4.0]), (["four", "five"], [30.0, 15.0])])
    assert list(texts) == ["one", "$two$", "three", "four", "five"]
    colours = {word: text.get_bbox_patch().get_facecolor() for word, text in texts.items()}  # type: ignore[union-attr]
    expected = dict(zip(texts, (0.25, 0.5, 1.0, 1.0, 0.5), strict=True))
    for word, share in expected.items():
        assert colours[word] == pytest.approx(matplotlib.colormaps["cividis"](share))
    assert texts["one"].get_color() == "white" and texts["three"].get_color() == "black"
    left = [texts[word].get_position() for word in ("one", "$two$", "three")]
    assert left[0][0] < left[1][0] < left[2][0] and len({y for _, y in left}) == 1
    assert texts["four"].get_position()[1] < left[0][1]


def test_long_sentences_wrap_and_nothing_overlaps_or_leaves_the_page() -> None:
    words = [f"word{i}" * (1 + i % 3) for i in range(40)]
    figure = word_importance([(words, np.arange(40.0)), (["end"], [0.0])])
    figure.draw_without_rendering()
    boxes = [text.get_bbox_patch().get_window_extent() for text in figure.texts]  # type: ignore[union-attr]
    assert len({round(box.y0) for box in boxes}) > 3
    assert all(box.x0 >= 0 and box.x1 <= figure.bbox.x1 and box.y1 <= figure.bbox.y1 for box in boxes)
    assert not any(a.overlaps(b) for i, a in enumerate(boxes) for b in boxes[:i])
    assert min(box.y0 for box in boxes) > figure.axes[0].get_window_extent().y1
