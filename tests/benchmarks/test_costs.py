"""The arithmetic of benchmarks/costs.py, and its FLOPs against the sum of the matrix products that a BERT has."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
import torch
from transformers import BertConfig

from benchmarks import costs
from pipelines import simcse


def test_hours() -> None:
    """An A100 at 30 % does 3.3696e17 FLOP an hour."""
    assert costs.gpu_hours(3.3696e17, costs.GPUS["A100"].bf16, 0.3) == pytest.approx(1.0)
    assert costs.gpu_hours(3.3696e17, costs.GPUS["A100"].bf16, 0.15) == pytest.approx(2.0)
    assert costs.gpu_step_seconds(3e11, 1000, 1e14, 0.3, 1e-5) == pytest.approx(0.01)  # its kernels start no faster
    assert costs.gpu_step_seconds(3e12, 1000, 1e14, 0.3, 1e-5) == pytest.approx(0.1)
    assert costs.hours_at(15_625, 112, 1_000) == pytest.approx(1_750_000 / 1_000 / 3_600)
    assert costs.sweep_hours(2.0, 32, 0.35) == pytest.approx(22.4)
    assert costs.sweep_hours(2.0, 2, 0.35) == 2.0  # trial 0 runs to its end
    assert (costs.cores(100, 50), costs.cores(101, 50), costs.cores(1, 50)) == (2, 3, 1)


@pytest.mark.parametrize("share", [0.0, 1.01, -0.3, float("nan")])
def test_shares_are_shares(share: float) -> None:
    with pytest.raises(ValueError, match="--utilisation"):
        costs.gpu_hours(1e18, 1e14, share)
    with pytest.raises(ValueError, match="--share"):
        costs.sweep_hours(1.0, 32, share)


def test_rates_of_ones_own() -> None:
    assert costs.rates_given(["visualcse=812.5", "clap=30"]) == {"visualcse": 812.5, "clap": 30.0}
    for wrong in ("visualsce=812", "visualcse", "visualcse=fast", "visualcse=-3"):
        with pytest.raises(ValueError, match="PAPER=SAMPLES_PER_SECOND"):
            costs.rates_given([wrong])
    with pytest.raises(ValueError, match="above 0"):
        costs.hours_at(10, 10, 0.0)


def test_padding() -> None:
    """A batch of one is as long as a text is on average; a larger one is longer, and none is longer than the limit."""
    lengths = costs.LENGTHS["sts-b"]
    grid = np.interp(np.linspace(0, 100, 100_001), costs.QUANTILES, lengths)
    assert costs.padded_length(lengths, 1, 128, draws=20_000) == round(grid.mean())
    # The longest of n is below x as often as all n are: the mean is the area above that.
    below = np.searchsorted(grid, np.arange(0, 70.01, 0.01)) / len(grid)
    assert costs.padded_length(lengths, 16, 128, draws=20_000) == pytest.approx((1 - below**16).sum() * 0.01, abs=1)
    assert costs.padded_length(lengths, 64, 24) == 24
    assert costs.padded_length((7,) * len(costs.QUANTILES), 64, 128) == 7


def test_recipes_at_the_size_of_their_data() -> None:
    steps = {name: paper.recipe.steps(paper.samples) for name, paper in costs.papers().items()}
    assert steps == {
        "simcse": 15_625,
        "visualcse": 15_625,
        "audiocse": 15_625,
        "sgbert": 1_079,
        "cyclip": 35_084 * 64,
        "clap": 48 * 90,
        "gclsr": 20 * 20,
        "mocoutrl": 2_312_500,
    }


def small(rows: int) -> costs.Paper:
    config = BertConfig(vocab_size=1200, hidden_size=64, num_hidden_layers=3, num_attention_heads=4, intermediate_size=160)
    return costs.Paper(simcse.bert_base(), config, 1_000, "wikipedia", rows)


def test_flops_of_a_bert() -> None:
    """Forward, and twice as much backward: 4 projections, 2 of the perceptron, 2 products of attention, the head."""
    torch.set_num_threads(1)
    cost = costs.measure("simcse", small(2), rounds=1, core_rate=1e11)
    texts, length, width, inner, layers = 2 * 64, 32, 64, 160, 3
    products = 4 * width * width + 2 * width * inner + 2 * length * width
    expected = 3 * 2 * texts * (layers * length * products + width * width)
    assert cost.step_flops == pytest.approx(expected, rel=0.02)  # and the similarities
    assert cost.steps == 16 and cost.tokens == {"text": 32} and cost.batches == {"text": 64}
    assert cost.flops == 16 * cost.step_flops and cost.implied is None
    assert cost.core_share == pytest.approx(cost.step_flops / cost.step_seconds / 1e11)
    parameters = sum(p.numel() for p in costs.build(small(2)).parameters())
    assert cost.parameters == parameters


def test_samples_are_multiplied_up() -> None:
    counts = [costs.measure("simcse", small(rows), rounds=1, core_rate=1e11).step_flops for rows in (2, 6)]
    assert counts[0] == pytest.approx(counts[1], rel=0.02)


def test_what_every_batch_costs_is_counted_once() -> None:
    assert costs.line(less=10 + 3 * 7, more=10 + 4 * 7, rows=4, size=64) == 10 + 64 * 7


def test_products_in_place_are_counted() -> None:
    """GCLSR's filters add to what is there."""
    out, x, y = torch.zeros(5, 7), torch.ones(5, 3), torch.ones(3, 7)
    with costs.counted() as counter:
        out.addmm_(x, y)
    assert counter.get_total_flops() == 2 * 5 * 3 * 7


def test_kernels_are_counted() -> None:
    x = torch.ones(4, 6)
    with costs.Launches() as launches:
        y = x.view(6, 4).t().unsqueeze(0).expand(2, 4, 6)  # views
        (y.sum() * 2).exp()
    assert launches.count == 3


def test_tables() -> None:
    cost = costs.Cost(
        name="visualcse",
        row="visualcse/bert-base",
        precision="fp16",
        batches={"text": 64, "image": 48},
        tokens={"text": 32},
        steps=1000,
        parameters=1,
        turns={"image": costs.Turn(9e12, 90.0, 1.0, 500), "text": costs.Turn(3e12, 30.0, 1.0, 500)},
        core_rate=1.2e11,
        stated=costs.Stated("a card", 1000.0, 1.2e14),
    )
    a = costs.Arguments(utilisation=(0.5,))
    costs.fill(cost, a)
    assert cost.gpu_hours["A100"]["50%"] == pytest.approx(1000 * 12e12 / 156e12 / 3600)
    assert cost.fp32_gpu_hours["A100"]["50%"] / cost.gpu_hours["A100"]["50%"] == pytest.approx(16)
    assert cost.implied == pytest.approx(0.1) and "10.0%" in costs.check_table([cost])
    lines = costs.cost_table([cost], a).splitlines()
    assert len(lines) == 3 and len({line.count("|") for line in lines}) == 1 and "*" not in lines[2]
    # On an A100 a step takes 1/13 s: 624 images a second, which a core at 100 makes in 6.24.
    assert "| 624, 7 |" in costs.stream_table([cost], {"image": 100.0}, 0.5, 1e-5)
    bound = dataclasses.replace(cost, turns={"text": costs.Turn(1e6, 1.0, 1.0, 1000)})
    costs.fill(bound, a)
    assert bound.gpu_hours["H100"]["50%"] == pytest.approx(1000 * 0.01 / 3600)
    assert "*" in costs.cost_table([bound], a).splitlines()[2]


def test_what_streams_cost() -> None:
    """Every stream of the tables is measured, on bytes that it can read."""
    rates = costs.stream_rates(0.01)
    assert set(rates) == set(costs.STORED) == {kind for kinds in costs.STREAMS.values() for kind in kinds}
    assert all(1 < rate < 1e5 for rate in rates.values()) and rates["audio_text"] < rates["audio_text_48k"]
