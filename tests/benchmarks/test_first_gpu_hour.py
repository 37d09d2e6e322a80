"""The script for a first hour on a GPU, here on a CPU in a small size, so that it does not fail in that hour."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode
from transformers import BertConfig, BertModel

from benchmarks.speed import first_gpu_hour
from benchmarks.speed.first_gpu_hour import Size, peak, shares, transformer, vision


def test_all_of_it_runs_on_a_cpu(tmp_path: Path, offline: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(offline)
    size = Size(layers=2, width=64, texts=8, caption_width=64, image=32, patch=16, pairs=4, seconds=0.1)
    first_gpu_hour.write(first_gpu_hour.measure(size), tmp_path)
    found = json.loads((tmp_path / "first_gpu_hour.json").read_text())
    assert [row["batch"] for row in found["rows"]] == [8, 4]
    for row in found["rows"]:
        assert all(row[name] > 0 for name in ("samples/s", "theirs, samples/s", "TFLOP/s", "one reader / step"))
        assert row["kernels"] + row["copies"] + row["idle"] == pytest.approx(1)
    assert (tmp_path / "first_gpu_hour.md").read_text().count("| CLIP ViT-B/32 | 4 |") == 1


def test_without_a_gpu_it_ends_with_a_sentence(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    if torch.cuda.is_available():
        pytest.skip("there is a GPU")
    first_gpu_hour.main(tmp_path / "out")
    assert "No GPU" in capsys.readouterr().out and not (tmp_path / "out").exists()


def test_operations_are_those_that_torch_counts_and_open_clip_publishes() -> None:
    """docs/model_profile.csv of open_clip: a forward pass of ViT-B/32 has 8.82 GFLOP for the image and 5.96 for the text."""
    config = BertConfig(hidden_size=32, num_hidden_layers=2, num_attention_heads=2, intermediate_size=128, vocab_size=9)
    model = BertModel(config, add_pooling_layer=False)
    with FlopCounterMode(display=False) as counted:
        model(torch.ones(1, 7, dtype=torch.long)).last_hidden_state.sum()
    assert transformer(2, 32, [7]) == pytest.approx(3 * counted.get_total_flops())
    assert vision(Size()) / 3 == pytest.approx(8.82e9, rel=0.002)
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
