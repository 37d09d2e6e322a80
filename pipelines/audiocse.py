"""AudioCSE (NonLing-CSE, NeurIPS 2022): SimCSE on text and, in every step, a contrastive step on unpaired sounds."""

from __future__ import annotations

from pipelines import parts
from pipelines.cli import main
from trainers.nonling import AudioConfig, AudioCSEConfig
from trainers.recipe import OptimConfig, Recipe


def bert_base() -> Recipe:
    """Table 2, BERT-base: text 64 at 3e-5, audio 48 at 2e-7."""
    return Recipe(
        name="audiocse/bert-base",
        method=AudioCSEConfig(audio=AudioConfig(weight=0.01)),
        encoder=parts.BERT_BASE,
        streams={"text": parts.wiki(64), "audio": parts.librispeech50(48)},
        optim={"text": OptimConfig(lr=3e-5), "audio": OptimConfig(lr=2e-7, schedule="cosine")},
        evaluation=parts.STS,
        run=parts.paper_run("audiocse/bert-base"),
    )


def roberta_base() -> Recipe:
    """Table 2, RoBERTa-base."""
    return parts.with_encoder(bert_base(), "roberta-base", parts.ROBERTA_BASE, text=(128, 2e-5), other=2e-7, weight=0.02)


def roberta_large() -> Recipe:
    """Table 2, RoBERTa-large; the weight is not in the paper, taken from RoBERTa-base."""
    return parts.with_encoder(bert_base(), "roberta-large", parts.ROBERTA_LARGE, text=(256, 1e-5), other=5e-6, weight=0.02)


def supervised_bert_base() -> Recipe:
    """Table 6: NLI triples, 3 epochs; the numbers are those of the released script."""
    return parts.supervised(bert_base(), "audio")


def simclr_bert_base() -> Recipe:
    """Table G.1: SimCLR in place of SupCon."""
    recipe = bert_base().replace("name", "audiocse/simclr-bert-base").replace("method.audio.loss", "simclr")
    return recipe.replace("run.output", "runs/audiocse/simclr-bert-base")


def released_bert_base() -> Recipe:
    """The released code's audio: mix-up, SpecAugment, patches of 24 without positions [DISAGREE 2.2, 2.9]."""
    recipe = bert_base().replace("name", "audiocse/released-bert-base").replace("method.variant", "released")
    recipe = recipe.replace("streams.audio.mixup_probability", 0.5).replace("streams.audio.mask_bins", 48)
    return recipe.replace("streams.audio.mask_frames", 192).replace("run.output", "runs/audiocse/released-bert-base")


def demo() -> Recipe:
    """Minutes on a laptop, offline: sentences of Wikipedia, synthesised sounds, the small encoder of this project."""
    return Recipe(
        name="audiocse/demo",
        method=AudioCSEConfig(text=parts.SMALL_TEXT, audio=AudioConfig(weight=1.0, frames=96, bins=32, mean=-8.0, std=4.0)),
        encoder=parts.SMALL,
        streams={"text": parts.offline_text(64), "audio": parts.offline_sounds(48)},
        optim={"text": parts.SMALL_OPTIM, "audio": OptimConfig(lr=3.5e-6, schedule="cosine")},
        evaluation=parts.offline_evaluation(every=50),
        run=parts.small_run("runs/audiocse/demo", max_steps=200),
    )


def smoke() -> Recipe:
    """Eight steps: what tests run."""
    return parts.smoke(demo(), "audiocse")


RECIPES = {
    "demo": demo,
    "smoke": smoke,
    "bert-base": bert_base,
    "roberta-base": roberta_base,
    "roberta-large": roberta_large,
    "supervised-bert-base": supervised_bert_base,
    "simclr-bert-base": simclr_bert_base,
    "released-bert-base": released_bert_base,
}

if __name__ == "__main__":
    main(RECIPES, __doc__)
