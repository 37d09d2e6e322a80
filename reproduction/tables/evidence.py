"""The main claim of each paper, and of MultiCSE: five seeds, one budget of compute, settings chosen alike, a verdict.

For every trained row the same few learning rates are tried on the development task. Steps are counted so that all rows of a
table cost as much as the plain contrast of text does in `STEPS` (CLIP's: as CLIP; GCLSR's: as GCLSR).
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from multicse.evaluation.load import CENTRING
from multicse.pipelines import multicse, nonlingcse, parts, sgbert
from multicse.reproduction.tables import clip_mini, gclsr_mini, mocoutrl, nonling_mini
from multicse.reproduction.tables import sgbert as sgbert_tables
from multicse.reproduction.tables.offline import Offline
from multicse.reproduction.tables.table import Claim, Row, Table
from multicse.trainers.method import MethodConfig
from multicse.trainers.multicse import MultiCSEConfig
from multicse.trainers.nonling import NonLingSettings
from multicse.trainers.recipe import Recipe
from multicse.trainers.sgbert import SGBERTConfig
from multicse.trainers.simcse import SimCSEConfig

STEPS = 200
"""Of the plain contrast at the small scale."""
EVALUATIONS = 6
"""Of a run."""
RATES = (0.3, 1.0, 3.0)
SEEDS = (1, 2, 3, 4, 5)
CAPTION = 16
"""Tokens of one, about; SimCSE on captions reads them twice."""
FITTED = 20_000
"""Sentences of the training text that whitening and its kin are fitted on, as when a model is exported."""
BERT = "google-bert/bert-base-uncased"
STS = ("sts12", "sts13", "sts14", "stsb-test")
STSB = {"streams.text.shards": sgbert_tables.STSB, "streams.text.batch_size": 16, "streams.text.max_length": 128}

UNTRAINED = Row("untrained", model=f"{BERT}@mean")
WHITENED = Row("untrained, whitening", model=f"{BERT}@mean+whitening:shards/wiki1m")
WHITENED_CLS = Row("untrained [CLS], whitening", model=f"{BERT}@cls+whitening:shards/wiki1m")
WHITENED_BY_STSB = Row("untrained, whitening of STS-B's sentences", model=f"{BERT}@mean+whitening:{sgbert_tables.STSB}")
BASELINES = (
    UNTRAINED,
    *(Row(f"untrained, {how}", model=f"{BERT}@mean+{how}:shards/wiki1m") for how in CENTRING),
    WHITENED,
)
"""What takes no training."""
TEXT = Row("SimCSE", "simcse/bert-base")
SUPCONS = {"-paper": "SupCon as printed", "-released": "SupCon as released", "": "SupCon repaired"}


def claims(rows: tuple[Row, ...], against: Row, what: str) -> tuple[Claim, ...]:
    """That each of these rows is better than one."""
    return tuple(Claim(f"{row.label} {what}", row.label, against.label) for row in rows)


def text_table(title: str, rows: tuple[Row, ...], said: tuple[Claim, ...]) -> Table:
    """Rows that are measured by the STS sets at hand."""
    return Table(title, STS, rows, average=True, claims=said, rates=RATES, seeds=SEEDS)


NONLING = tuple(
    Row(f"{name}, {supcon}", f"{paper}/bert-base{variant}")
    for paper, name in (("visualcse", "images"), ("audiocse", "sounds"))
    for variant, supcon in SUPCONS.items()
)
SG_TEXT = Row("SimCSE", "simcse/bert-base", STSB)
SG = (Row("SG-OPT", "sgbert/bert-base"), Row("SG", "sgbert/bert-base-sg"))
CLIP, CYCLIP = Row("CLIP", "cyclip/clip"), (Row("CyCLIP", "cyclip/cyclip"), Row("CLIPs", "cyclip/clip-s"))
NO_PWVA = Row("GCLSR without PWVA", "gclsr/pwva-att-gp", {"method.augmentation": "none"})
PWVA = (Row("GCLSR", "gclsr/pwva-att-gp"),)
PLAIN = Row("MoCoUTRL without perturbation", "mocoutrl/bert-base-both-plain")
PERTURBED = (Row("MoCoUTRL", "mocoutrl/bert-base-both"),)
PARTS = {name: Row(f"text, {name}" if name != "text" else name, f"multicse/bert-base-{name}") for name in multicse.PARTS}
ADDED = tuple(row for name, row in PARTS.items() if name != "text")
EXPORTED = tuple(
    replace(row, label=f"{row.label}, whitened when exported", changes={"export.whiten": True})
    for row in (PARTS["text"], PARTS["guided"], SG[0])
)
CAPTIONS = ("image_to_text_r10", "text_to_image_r10")

TABLES = {
    "nonlingcse": text_table(
        "Do unpaired images or sounds help the contrast of text, with each of the three SupCons?",
        (*BASELINES, TEXT, *NONLING),
        claims(NONLING, TEXT, "beats text alone"),
    ),
    "sgbert": text_table(
        "Does self-guidance beat two dropout masks, on the sentences of STS-B?",
        (*BASELINES, SG_TEXT, *SG),
        (*claims(SG, SG_TEXT, "beats SimCSE"), *claims(SG[:1], SG[1], "beats SG")),
    ),
    "clip": Table(
        "Do cyclic consistency, and SimCSE on captions, help CLIP?",
        tuple(f"retrieval:shards/coco#{metric}" for metric in CAPTIONS),
        (CLIP, *CYCLIP),
        ("TR R@10", "IR R@10"),
        average=True,
        claims=claims(CYCLIP, CLIP, "beats CLIP"),
        rates=RATES,
        seeds=SEEDS,
        mini=tuple(f"retrieval:{{shards}}/emoji-test#{metric}" for metric in CAPTIONS),  # coco-test has 39 pictures
    ),
    "gclsr": text_table(
        "Does augmenting word vectors help GCLSR?", (NO_PWVA, *PWVA), claims(PWVA, NO_PWVA, "beats the same without PWVA")
    ),
    "mocoutrl": text_table(
        "Does the perturbation of targets help MoCoUTRL?",
        (*BASELINES, PLAIN, *PERTURBED),
        claims(PERTURBED, PLAIN, "beats the same without perturbation"),
    ),
    "multicse": text_table(
        "Which parts of MultiCSE help the contrast of text, and does it beat whitening?",
        (*BASELINES, WHITENED_CLS, WHITENED_BY_STSB, SG[0], *PARTS.values(), *EXPORTED),
        (
            *claims((*ADDED, *EXPORTED[:2]), PARTS["text"], "beats text alone"),
            *claims((*PARTS.values(), *EXPORTED[:2]), WHITENED, "beats whitening"),
            *claims(EXPORTED[1:], SG[0], "beats SG-OPT"),
            *claims(EXPORTED[1:2], WHITENED_CLS, "beats whitening of [CLS]"),
            *claims(EXPORTED[2:], WHITENED_BY_STSB, "beats whitening of the same text"),
        ),
    ),
}


def mini(recipe: Recipe, offline: Offline) -> Recipe:
    """The row on the small encoder and the data at hand, at equal compute."""
    if recipe.paper == "cyclip":
        small = clip_mini.mini(recipe, offline)
        items = (clip_mini.VIT.input.size // clip_mini.VIT.patch_size) ** 2
        share = (CAPTION + items) / (2 * CAPTION + items) if small.flat()["method.captions"] else 1.0
        return small.replace("run.max_steps", round(clip_mini.STEPS * share))
    if recipe.paper == "mocoutrl":
        return mocoutrl.mini(recipe, offline).changed(length(STEPS))
    if recipe.paper == "gclsr":  # without augmentation one view serves as both
        small = gclsr_mini.mini(recipe, offline)
        steps = STEPS if small.flat()["method.augmentation"] == "none" else STEPS // 2
        more = {"encoder.vectors": gclsr_mini.word_vectors(offline, None, 300, 20)} | length(steps)
        return small.changed({"streams.text.shards": offline.wikipedia(), "streams.text.batch_size": 256} | more)
    if recipe.paper == "multicse":
        base = nonling_mini.mini(nonlingcse.bert_base(), offline)
        small = multicse.composed(base, recipe.name.partition("/bert-base-")[2], "small")
        small = small.changed({"name": "multicse/mini", "export": recipe.export})
    elif recipe.streams["text"].shards == sgbert_tables.STSB:
        small = sgbert_tables.mini(recipe if recipe.paper == "sgbert" else sgbert.bert_base(), offline)
        if recipe.paper == "simcse":
            small = small.changed({"name": "simcse/mini", "method": parts.SMALL_TEXT})
    else:
        small = nonling_mini.mini(recipe, offline)
    steps = round(STEPS * share_of_contrast(small))
    return small.changed(length(steps))


def length(steps: int) -> dict[str, int]:
    """What a run of so many steps sets."""
    return {"run.max_steps": steps, "run.epochs": 1000, "evaluation.every": steps // EVALUATIONS}


def share_of_contrast(recipe: Recipe) -> float:
    """What two passes over the texts cost, forward and back, in all that a step of the recipe costs; counted in tokens.

    A backward costs two forwards (Kaplan et al. 2020), and all positions as much as the longest text may have.
    """
    text: Any = recipe.streams["text"]
    tokens = text.batch_size * text.max_length
    cost = text_passes(recipe.method, text.n_texts) * tokens
    if isinstance(recipe.method, NonLingSettings):
        for name, config in recipe.method.nonling.items():
            cost += 6 * recipe.streams[name].batch_size * config.tokens(recipe.method.variant)
    return 6 * tokens / cost


def text_passes(method: MethodConfig, texts: int) -> int:
    """Forward passes that a text costs: a view is one, and two more for its backward."""
    if isinstance(method, SGBERTConfig):
        return 3 + 1
    guided = isinstance(method, MultiCSEConfig) and method.guidance > 0
    assert isinstance(method, SimCSEConfig | NonLingSettings)
    return 3 * max(2, texts) + guided


def mini_model(spec: str, offline: Offline) -> str:
    """The small encoder, with what is fitted fitted on the beginning of the training text."""
    pooling, _, how = spec.partition("@")[2].partition(":")[0].partition("+")
    plain = f"{parts.SMALL_ENCODER}@{pooling}"
    if not how:
        return plain
    if spec.endswith(sgbert_tables.STSB):
        return f"{plain}+{how}:{offline.stsb()}"
    return f"{plain}+{how}:{offline.lines(offline.sentences(FITTED), f'wiki-{FITTED}')}"
