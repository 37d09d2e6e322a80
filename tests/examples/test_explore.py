"""Test examples/explore.py: the page has every row, its neighbours and the rated pairs, and loads nothing."""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path

import pytest

import multicse
from multicse.data.errors import DataError
from multicse.evaluation.load import load_model
from multicse.evaluation.registry import make_tasks
from tests.evaluation.evaluation_helpers import rated, texts, tiny_bert
from tests.worlds import example

pytest.importorskip("plotly", reason="the extra `explore`")


def test_a_page_of_two_models(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    given = texts(60)
    data = tmp_path / "x.jsonl"
    data.write_text("".join(json.dumps({"text": text, "kind": "ab"[i % 2]}) + "\n" for i, text in enumerate(given)))
    model = tiny_bert(tmp_path / "model")
    for name, options in {"before": {"dimensions": 4}, "after": {}}.items():
        multicse.embed(model, data, tmp_path / name, device="cpu", keep=["kind"], **options)
    pairs = tmp_path / "pairs.tsv"
    lines = ["score\tsentence1\tsentence2", *("\t".join(row) for row in rated(30))]
    pairs.write_text("\n".join(lines))
    folders = (str(tmp_path / "before"), str(tmp_path / "after"))
    page = tmp_path / "page.html"
    main = example("explore").main
    main(folders, page, colour="kind", query=(given[7],), pairs=f"pairs:{pairs}")
    text = page.read_text()
    assert all(json.dumps(one)[1:-1] in text for one in given), "hover texts"
    (task,) = make_tasks([f"pairs:{pairs}"], None)
    assert f"Spearman {task.score(load_model(str(model), device='cpu')).metrics['spearman']:.1f}" in text
    assert not re.search(r"<script[^>]* src=|<link[^>]* href=", text), "offline"
    shown = capsys.readouterr().out
    assert shown.count(f"1.000  {given[7]}\n") == 2
    with pytest.raises(DataError, match="--keep topic"):
        main(folders, page, colour="topic")
    with pytest.raises(DataError, match="has no vectors"):
        main((str(model),), page)


def test_without_plotly_the_remedy_is_printed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "plotly.colors", None)
    with pytest.raises(SystemExit, match=r"^error: the page needs plotly: pip install plotly$"):
        example("explore").main(("before",), tmp_path / "page.html")
