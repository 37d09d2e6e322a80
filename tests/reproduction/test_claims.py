"""Every number of a claim on the first pages has a stored result behind it, and is said with its verdict."""

from __future__ import annotations

import json
import re
from functools import cache

import numpy as np
import pytest
from scipy import stats

from multicse.reproduction import reproduce
from multicse.reproduction.tables.render import Verdict
from tests.conftest import ROOT

TSDAE = "TSDAE beats SimCSE on STS (the paper claims it on four domains)"
SAID = [
    ("README.md", r"SG-OPT beats SG: (\S+), (\w+)", "sgbert", "SG-OPT beats SG"),
    ("README.md", r"sentence training helps CLIP: (\S+) recall, (\w+)", "clip", "CLIPs beats CLIP"),
    ("README.md", r"CyCLIP beats CLIP: (\S+), (\w+)", "clip", "CyCLIP beats CLIP"),
    ("README.md", r"attention and groups help: (\S+), (\w+)", "gclsr", "all three beat none of them"),
    ("README.md", r"perturbation help: (\S+), \S+, \S+, (\w+)", "mocoutrl", "MoCoUTRL beats MoCoUTRL without token loss"),
    ("README.md", r"perturbation help: \S+, (\S+), \S+, (\w+)", "mocoutrl", "MoCoUTRL beats MoCoUTRL without momentum"),
    ("README.md", r"perturbation help: \S+, \S+, (\S+), (\w+)", "mocoutrl", "MoCoUTRL beats MoCoUTRL without perturbation"),
    (
        "docs/papers/mocoutrl.md",
        r"were (\S+) points above the untrained encoder: (\w+)",
        "mocoutrl",
        "MoCoUTRL beats the untrained encoder",
    ),
    ("docs/papers/mocoutrl.md", r"encoder: \w+, and (\S+) below SimCSE: (\w+)", "mocoutrl", "MoCoUTRL beats SimCSE"),
    ("docs/papers/mocoutrl.md", r"token loss changes (\S+) \(", "mocoutrl", "MoCoUTRL beats MoCoUTRL without token loss"),
    ("docs/papers/mocoutrl.md", r"momentum (\S+) \(0.0", "mocoutrl", "MoCoUTRL beats MoCoUTRL without momentum"),
    (
        "docs/papers/mocoutrl.md",
        r"perturbation of targets (\S+) \(",
        "mocoutrl",
        "MoCoUTRL beats MoCoUTRL without perturbation",
    ),
    (
        "docs/results/results.md",
        r"MoCoUTRL gains (\S+) points over the untrained",
        "mocoutrl",
        "MoCoUTRL beats the untrained encoder",
    ),
    ("docs/results/results.md", r"untrained encoder\*\*, (\S+) less than SimCSE", "mocoutrl", "MoCoUTRL beats SimCSE"),
    ("README.md", r"SimCSE\+\+ (\S+), (\w+)", "simcsepp", "SimCSE++ beats SimCSE"),
    ("README.md", r"TSDAE on STS \(which its paper does not claim\) (\S+), (\w+) \|", "tsdae", TSDAE),
    ("README.md", r"images help text: (\S+) \(alternating updates\), (\w+)", "uml", "UML, alternating beats text alone"),
    ("README.md", r"audio help text: (\S+) to \S+, (\w+)", "nonlingcse", "audio, SupCon as released beats text alone"),
    ("README.md", r"audio help text: \S+ to (\S+), (\w+)", "nonlingcse", "audio, SupCon as printed beats text alone"),
    ("docs/papers/sg-bert.md", r"SG-OPT was (\S+) points above SG: (\w+)", "sgbert", "SG-OPT beats SG"),
    ("docs/papers/sg-bert.md", r"SG was (\S+) above back-translation \(\S+ to \S+\): (\w+)", "sgbert", "SG beats BT"),
    ("docs/papers/sg-bert.md", r"SG-OPT was (\S+) below flow: (\w+)", "sgbert", "SG-OPT beats flow"),
    ("docs/papers/sg-bert.md", r"It was (\S+) above SimCSE", "sgbert", "SG-OPT beats SimCSE (the paper has no such row)"),
    (
        "docs/papers/sg-bert.md",
        r"was (\S+) points above SG-OPT",
        "sgbert",
        "SG-OPT beats whitening of the same sentences (the paper has no such row)",
    ),
    (
        "docs/results/results.md",
        r"SG-OPT gains (\S+) points over SimCSE",
        "sgbert",
        "SG-OPT beats SimCSE (the paper has no such row)",
    ),
    ("docs/results/results.md", r"over SimCSE and (\S+) over SG", "sgbert", "SG-OPT beats SG"),
    ("docs/papers/clip.md", r"CyCLIP's recall was (\S+) points below CLIP's", "clip", "CyCLIP beats CLIP"),
    ("docs/papers/clip.md", r"training cost CLIP (\S+) points .{14}: (\w+)", "clip", "CLIPs beats CLIP"),
    ("docs/papers/clip.md", r"CyCLIPs against CyCLIP was (\S+) .{14}: (\w+)", "clip", "CyCLIPs beats CyCLIP"),
    ("docs/results/results.md", r"captions costs CLIP (\S+) points", "clip", "CLIPs beats CLIP"),
    ("docs/papers/simcse-pp.md", r"both (-\S+) \(-0.38 to -0.10\)", "simcsepp", "SimCSE++ beats SimCSE"),
    ("docs/papers/simcse-pp.md", r"dropout (-\S+) \(95 %", "simcsepp", "SimCSE, plain negatives beats SimCSE"),
    ("docs/papers/uml.md", r"images change SimCSE by (-\S+) \(95 %", "uml", "UML, alternating beats text alone"),
    (
        "docs/papers/gclsr.md",
        r"together were (\S+) below none of them [^:]+: \+1.6\): (\w+)",
        "gclsr",
        "all three beat none of them",
    ),
    ("docs/papers/gclsr.md", r"whole model adds (\S+): (\w+)", "gclsr", "GCLSR beats GCLSR without PWVA"),
    (
        "docs/explanation/better.md",
        r"\| SimCSE \| (\S+) \(−0.3 to \+0.5\), (\w+) \|",
        "tuned",
        "SimCSE beats the untouched model",
    ),
    (
        "docs/explanation/better.md",
        r"\| SG-OPT \| (\S+) \(−1.1 to −0.2\), (\w+) \|",
        "tuned",
        "SG-OPT beats the untouched model",
    ),
    (
        "docs/explanation/better.md",
        r"\(CIFAR-10\) \| (\S+) \(−0.2 to \+0.5\), (\w+) \|",
        "tuned",
        "SimCSE with images beats the untouched model",
    ),
    (
        "docs/explanation/better.md",
        r"paragraphs of a function \| (\S+) \(−0.2 to \+0.5\), (\w+) \|",
        "tuned",
        "pairs of captions beat the untouched model",
    ),
    (
        "docs/explanation/better.md",
        r"(\S+) \(\+1.3 to \+3.9\), (\w+) \|",
        "tuned-docs",
        "SimCSE beats the untouched model",
    ),
    (
        "docs/explanation/better.md",
        r"(\S+) \(0.0 to \+6.0\), (\w+) \|",
        "tuned-docs",
        "pairs of paragraphs beat the untouched model",
    ),
    ("docs/explanation/better.md", r"(\S+) \(−3.2 to \+1.0\), (\w+) \|", "tuned-docs", "SG-OPT beats the untouched model"),
    ("docs/explanation/better.md", r"documentation: (\S+), −1.8 to", "tuned-docs", "pairs of paragraphs beat SimCSE"),
    ("docs/results/results.md", r"SimCSE (\S+) \(\+1.3 to \+3.9\)", "tuned-docs", "SimCSE beats the untouched model"),
    ("docs/papers/tsdae.md", r"(\S+) less than SimCSE: (\w+)", "tsdae", TSDAE),
    ("docs/papers/tsdae.md", r"and (\S+) less than whitening", "tsdae", "TSDAE beats whitening on STS"),
]
"""Page, sentence with a number and perhaps a verdict, file of results, claim."""


@cache
def verdicts(paper: str) -> dict[str, Verdict]:
    kept = json.loads((ROOT / "docs" / "results" / f"evidence-{paper}.json").read_text())
    return {one.says: one for one in reproduce._judged(kept)}


@pytest.mark.parametrize(("page", "sentence", "paper", "claim"), SAID)
def test_a_sentence_about_a_claim(page: str, sentence: str, paper: str, claim: str) -> None:
    found = re.search(sentence, " ".join((ROOT / page).read_text().split()))
    assert found, "the sentence is gone: remove it here"
    number, verdict = found[1].replace("−", "-"), verdicts(paper)[claim]
    assert verdict.test is not None
    digits = len(number.partition(".")[2])
    wanted = verdict.test.difference
    assert float(number) == pytest.approx(wanted if number[0] in "+-" else abs(wanted), abs=0.51 * 10**-digits)
    if len(found.groups()) > 1:
        assert found[2] == verdict.word


def test_every_verdict_of_the_readme_is_checked() -> None:
    """A row of the table of methods that says a verdict is one of `SAID`."""
    rows = [
        line
        for line in (ROOT / "README.md").read_text().splitlines()
        if re.search(r", (open|confirmed|\w*contra\w+|inconcl\w+) \|$", line)
    ]
    assert len(rows) == 7
    for row in rows:
        assert any(re.search(sentence, row) for page, sentence, *_ in SAID if page == "README.md"), row


def test_what_tuned_models_forget() -> None:
    """Means and 95 % intervals by seed, and what whitening loses, in the order of the sentences."""
    models = json.loads((ROOT / "docs" / "results" / "forgetting.json").read_text())["models"]
    page = " ".join((ROOT / "docs/results/results.md").read_text().split()).replace("−", "-")
    (text,) = re.findall(r"By seed against the untouched model: (.*?)not corrected", page)
    base = models["untouched"][0]["results"]
    wanted, means = list[float](), list[float]()
    for label in ("SimCSE", "SimCSE, images", "SG-OPT", "pairs of captions"):
        for task in ("sts13", "stsb-test"):
            scores = [run["results"][task]["spearman"] - base[task]["spearman"] for run in models[label]]
            low, high = stats.t.interval(0.95, len(scores) - 1, np.mean(scores), stats.sem(scores))
            wanted += [np.mean(scores), low, high]
            means.append(abs(np.mean(scores)))
    assert [float(number) for number in re.findall(r"[+-]?\d\.\d", text)] == pytest.approx(wanted, abs=0.051)
    lost = [base[task]["spearman"] - models["whitening"][0]["results"][task]["spearman"] for task in ("sts13", "stsb-test")]
    better = " ".join((ROOT / "docs/explanation/better.md").read_text().split())
    for sentence in (page, better):
        assert [float(number) for number in re.findall(r"loses (\d\.\d) and (\d\.\d)", sentence)[0]] == pytest.approx(
            lost, abs=0.051
        )
    assert max(means) < 0.3 and "they are within 0.3 of the untouched model" in better


def test_the_rows_on_distilbert() -> None:
    """Their means over columns, on both pages, and their order."""
    kept = json.loads((ROOT / "docs" / "results" / "mini-evidence-distilbert.json").read_text())
    means = {run["label"]: float(np.mean([*run["scores"].values()])) for run in kept["results"]}
    methods = ("SG-OPT", "SG", "untrained, flow of STS-B's sentences", "BT")
    rows = (*methods, "untrained, whitening of STS-B's sentences", "untrained")
    page = " ".join((ROOT / "docs/results/results.md").read_text().split())
    said = re.findall(
        r"paper's order: SG-OPT (\S+), SG (\S+), flow (\S+), \D+ (\S+), whitening (\S+), untrained (\S+)\. Flow", page
    )
    assert [float(number) for number in said[0]] == pytest.approx([means[row] for row in rows], abs=0.051)
    for name in ("docs/results/results.md", "docs/papers/sg-bert.md"):
        page = " ".join((ROOT / name).read_text().split())
        said = re.findall(r"order is the paper's: SG-OPT (\S+), SG (\S+), .*?flow (\S+), .*?whitening (\S+)\. ", page)
        assert [float(number) for number in said[0]] == pytest.approx(
            [means[row] for row in rows if row not in ("BT", "untrained")], abs=0.051
        )
