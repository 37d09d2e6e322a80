"""The script for a first hour on a GPU, here on a CPU in a small size, so that it does not fail in that hour."""

from __future__ import annotations

import gzip
import json
from itertools import pairwise
from pathlib import Path

import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode
from transformers import BertConfig, BertModel

from benchmarks.speed import first_gpu_hour
from benchmarks.speed.first_gpu_hour import PARTS, Size, peak, shares, transformer, vision
from multicse.data.offline.sentences import wiki_sentences


@pytest.mark.cluster  # minutes on a busy machine
def test_all_of_it_runs_on_a_cpu(tmp_path: Path, offline: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(offline)
    models = Size(layers=2, width=64, caption_width=64, image=32, patch=16, image_patch=16)
    size = models._replace(texts=8, pairs=4, images=4, processes=1, seconds=0.1, steps=4)
    write_sentences_and_sts(tmp_path / "data")
    found = first_gpu_hour.measure(["text"], size, tmp_path, tmp_path / "data")
    assert json.loads((tmp_path / "first_gpu_hour.json").read_text()) == found
    rows = {"text": found["parts"]["text"]["rows"]}
    for name in (name for name in PARTS if name not in ("text", "tests", "compile")):  # the last two take minutes on a CPU
        first_gpu_hour.run_part(name, size, tmp_path / "data", tmp_path / "rows.json")
        rows[name] = json.loads((tmp_path / "rows.json").read_text())
    assert not any("error" in row for part in rows.values() for row in part), rows
    assert [rows[name][0]["batch"] for name in ("text", "pairs", "image")] == [8, 4, "8 + 4"]
    for row in (rows[name][0] for name in ("text", "pairs", "image")):
        assert all(row[name] > 0 for name in ("samples/s", "TFLOP/s", "one reader / step"))
        assert row["kernels"] + row["copies"] + row["idle"] == pytest.approx(1)
    assert all(rows[name][0]["fed by 1 processes, samples/s"] > 0 for name in ("pairs", "image"))
    assert [row["run.sharded"] for row in rows["sharded"]] == [False, True]
    assert [row["steps"] for row in rows["train"]] == [4, 4]
    assert (tmp_path / "first_gpu_hour.md").read_text().count("| SimCSE, BERT-base | 8 |") == 1


def write_sentences_and_sts(folder: Path) -> None:
    """The files that the part `train` reads, in small."""
    sentences = wiki_sentences()[:200]
    (folder / "text_unlabeled").mkdir(parents=True)
    (folder / "sts").mkdir()
    with gzip.open(folder / "text_unlabeled/wiki_combined.en.txt.gz", "wt") as file:
        file.write("\n".join(sentences))
    rows = [f"main\tx\t{n}\t{n % 6}\t{a}\t{b}" for n, (a, b) in enumerate(pairwise(sentences[:24]))]
    for split in ("dev", "test"):
        text = "\n".join(["dataset\tsubset\trow\tscore\tsentence1\tsentence2", *rows])
        (folder / f"sts/STSB.{split}.raw.tsv").write_text(text)


def test_without_a_gpu_it_ends_with_a_sentence(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    if torch.cuda.is_available():
        pytest.skip("there is a GPU")
    first_gpu_hour.main(out=tmp_path / "out")
    assert "No GPU" in capsys.readouterr().out and not (tmp_path / "out").exists()


def test_operations_are_those_that_torch_counts_and_open_clip_publishes() -> None:
    """docs/model_profile.csv of open_clip: a forward pass of ViT-B/32 has 8.82 GFLOP for the image and 5.96 for the text."""
    config = BertConfig(hidden_size=32, num_hidden_layers=2, num_attention_heads=2, intermediate_size=128, vocab_size=9)
    model = BertModel(config, add_pooling_layer=False)
    with FlopCounterMode(display=False) as counted:
        model(torch.ones(1, 7, dtype=torch.long)).last_hidden_state.sum()
    assert transformer(2, 32, [7]) == pytest.approx(3 * counted.get_total_flops())
    assert vision(Size(), 32) / 3 == pytest.approx(8.82e9, rel=0.002)
    assert transformer(12, 512, [77]) / 3 == pytest.approx(5.96e9, rel=0.002)


def test_time_goes_to_kernels_copies_and_idleness() -> None:
    """A copy beside a kernel costs nothing, and two kernels at once count once."""
    spans = [("gemm", 0.0, 4.0), ("gelu", 2.0, 5.0), ("Memcpy HtoD", 4.0, 7.0), ("Memset", 9.0, 10.0)]
    assert shares(spans, 20.0) == pytest.approx({"kernels": 0.25, "copies": 0.15, "idle": 0.6})


@pytest.mark.parametrize(
    ("card", "tera"),
    [("NVIDIA H100 80GB HBM3", 989), ("NVIDIA H100 PCIe", 756), ("NVIDIA A100-SXM4-40GB", 312), ("Quadro", None)],
)
def test_peaks_are_found_by_name(card: str, tera: float | None) -> None:
    assert peak(card) == (tera and tera * 1e12)
