"""SimCSE (Gao et al., EMNLP 2021): the positive of a sentence is the sentence itself under another dropout mask.

The optional masked-language-model term of the released code, off by default, is not implemented.
"""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal, Self

import torch
from pydantic import Field, model_validator
from torch import Tensor

from multicse.data.settings import Mark, Settings
from multicse.data.streams.base import Batch
from multicse.models.adapters import frozen, frozen_copy
from multicse.models.probes import check_folder
from multicse.models.text_encoder import TextEncoder
from multicse.models.text_folders import has_dropout, open_text_model
from multicse.trainers import losses
from multicse.trainers.gather import gather, offset
from multicse.trainers.method import Method, MethodConfig, RecipeParts, StepOutput, check_texts, named_updates

FROZEN = "frozen"
"""Value of `NegativesConfig.guide` for a copy of the initial encoder."""

log = logging.getLogger(__name__)


class NegativesConfig(Settings):
    """Negatives of a text contrast: which of them are left out, and the weights of the others."""

    margin: float | None = None
    """Leave out false negatives: negatives with a similarity to the anchor above the limit of margin_strategy. If None, all
    negatives are used."""
    margin_strategy: losses.MarginStrategy = "absolute"
    """Limit. `absolute`: similarity of the positive - margin. `relative`: similarity of the positive * (1 - margin).
    `threshold`: margin."""
    guide: Annotated[str, Mark("place", (FROZEN,))] | None = None
    """Model that measures these similarities: a folder or model ID with the encoder's tokenizer, or `frozen` for a copy of
    the initial encoder. If None, the trained encoder."""
    hardness: float = Field(0.0, ge=0)
    """Multiply the weight of each negative by exp(hardness * similarity); 0: equal weights."""

    @model_validator(mode="after")
    def _guide_needs_margin(self) -> Self:
        if self.guide is not None and self.margin is None:
            raise ValueError(f"guide={self.guide!r} has no effect without a margin; set margin, for example 0.1")
        return self

    def check(self, recipe: RecipeParts, setting: str) -> None:
        """Raise ValueError if a setting has no effect, or the guide cannot be loaded or does not fit encoder and texts.

        Args:
            recipe: Recipe with a transformer as encoder.
            setting: Path of these settings.
        """
        if self.margin_strategy != "absolute" and self.margin is None:
            raise ValueError(f"{setting}.margin_strategy={self.margin_strategy!r} has no effect; set {setting}.margin, too")
        if self.guide in (None, FROZEN):
            return
        try:
            *_, config, tokenizer = open_text_model(self.guide)
            if (Path(self.guide) / "modules.json").is_file():
                check_folder(self.guide)
        except Exception as error:  # the libraries raise a dozen kinds for a broken folder
            raise _of_guide(error, f"{setting}.guide") from None
        *_, own = open_text_model(recipe.encoder.path, recipe.encoder.scratch)
        if tokenizer.get_vocab() != own.get_vocab():
            raise ValueError(
                f"{setting}.guide={self.guide!r} has another vocabulary than encoder.path={recipe.encoder.path!r}; choose a "
                f"model with the encoder's tokenizer, or {FROZEN!r}"
            )
        for name, stream in recipe.streams.items():
            if (length := getattr(stream, "max_length", 0)) > config.longest_text:
                raise ValueError(
                    f"{setting}.guide={self.guide!r} supports {config.longest_text} tokens, but streams.{name}.max_length "
                    f"is {length}; reduce it, or choose another guide"
                )

    def load_guide(self, encoder: TextEncoder) -> TextEncoder | None:
        """Return the frozen guide, or None if the trained encoder measures the similarities."""
        if self.guide is None:
            return None
        if self.guide == FROZEN:
            return frozen_copy(encoder)
        try:
            guide = TextEncoder.from_pretrained(self.guide)
        except ValueError as error:
            raise _of_guide(error) from None
        guide.prompt_tokens = encoder.prompt_tokens  # prompts are tokenized by the trained encoder
        return frozen(guide, checkpoint=False)

    def false_negatives(self, anchors: Tensor, candidates: Tensor, positives: Tensor) -> Tensor:
        """Return the mask of `losses.false_negatives`, (N, C).

        Args:
            anchors: Embeddings of the guide, (N, d).
            candidates: Embeddings of the guide, (C, d).
            positives: Column of the positive of each anchor, (N,).
        """
        assert self.margin is not None  # callers check it
        similarities = losses.cosine_similarity(anchors, candidates)
        return losses.false_negatives(similarities, positives, self.margin, self.margin_strategy)

    def left_out(self, z: Tensor, judged: Tensor | None) -> Tensor | None:
        """Return the false negatives of `losses.simcse` in the batch of all workers, (B, M) or (B, 2 M), or None.

        Args:
            z: Views of this worker, (B, 2, d), or (B, 3, d) with hard negatives.
            judged: Embeddings of the guide, (B, V, d'). If None, the views measure the similarities.
        """
        if self.margin is None:
            return None
        judged = (z if judged is None else judged).detach()
        candidates = gather(judged)[:, 1:].transpose(0, 1).flatten(0, 1)  # z2, z3
        return self.false_negatives(judged[:, 0], candidates, torch.arange(len(z), device=z.device) + offset(len(z)))


@torch.no_grad()
def judged_by(guide: TextEncoder | None, batch: Batch) -> dict[str, Tensor]:
    """Return ``judged`` (B, V, d'), the embeddings of the guide; V = 2 for a single text. Empty without a guide.

    Args:
        guide: Result of `NegativesConfig.load_guide`.
        batch: Tokens (B, V, L).
    """
    if guide is None:
        return {}
    pooled = guide.pooled(*(tensor.flatten(0, 1) for tensor in batch.texts()))
    return {"judged": _views(guide.project(pooled).unflatten(0, batch["input_ids"].shape[:2]))}


def _views(tokens: Tensor) -> Tensor:
    return tokens.expand(-1, 2, -1) if tokens.shape[1] == 1 else tokens


def _of_guide(error: Exception, setting: str = "negatives.guide") -> ValueError:
    return ValueError(f"{setting}: {str(error).removeprefix('encoder.path: ')}")


def check_hard_negatives(config: SimCSEConfig, recipe: RecipeParts, stream: str, setting: str) -> None:
    """Raise ValueError if `hard_negative_log_weight`, whose path is `setting`, has no effect on a stream without triples."""
    texts: Any = recipe.streams[stream]
    if config.hard_negative_log_weight and texts.n_texts < 3:
        raise ValueError(
            f"{setting}={config.hard_negative_log_weight} has no effect: streams.{stream}.columns={texts.columns} "
            "contains no contradictions. Set supervised to True and name three columns, or set it to 0"
        )


class SimCSEConfig(MethodConfig):
    """Settings of SimCSE, and of the text loss of all methods that extend it."""

    citations: ClassVar[tuple[str, ...]] = ("gao2021simcse",)

    name: Literal["simcse"] = "simcse"
    variant: Literal["fixed"] = "fixed"
    supervised: bool = False
    """If False, one text per sample, encoded twice. If True, (premise, entailment) or (premise, entailment,
    contradiction)."""
    temperature: float = Field(0.05, gt=0)
    """Softmax temperature: cosine similarities are divided by it. Lower values put more weight on hard negatives."""
    head: Literal["mlp", "none"] = "mlp"
    """Head after the pooling. `mlp`: Linear + tanh, used in training only if unsupervised, exported if supervised.
    `none`: no head."""
    hard_negative_log_weight: float = 0.0
    """Logarithm of the weight of a sample's own contradiction, added to its logit."""
    negatives: NegativesConfig = NegativesConfig()
    """Masking of false negatives and weights of hard negatives."""

    def vectors(self) -> dict[str, tuple[str, ...]]:
        """Return the views, if they are computed without a training-only head."""
        return {"text": ("views",)} if self.supervised or self.head == "none" else {}

    def check(self, recipe: RecipeParts, encoder: Any, setting: str = "method.supervised") -> None:
        """Check the texts per sample, which `setting` (the path of `supervised`) determines, the guide and the dropout."""
        hint = "a pair or a triple, for example sent0 sent1 hard_neg" if self.supervised else "one column, txt"
        check_texts(recipe, "text", (2, 3) if self.supervised else (1,), f"{setting}={self.supervised}", hint)
        check_hard_negatives(self, recipe, "text", setting.replace("supervised", "hard_negative_log_weight"))
        if encoder is None:
            return
        self.negatives.check(recipe, setting.replace("supervised", "negatives"))
        start = recipe.encoder
        dropout = start.lora.dropout or has_dropout(encoder, start.hidden_dropout, start.attention_dropout)
        if not self.supervised and not dropout:
            log.warning(
                "encoder.path: without dropout both views of a sentence are equal, so the loss only separates sentences; "
                "set encoder.attention_dropout to 0.1, or encoder.lora.dropout with encoder.lora.rank"
            )

    def build(self, encoder: TextEncoder) -> SimCSE:
        """Return SimCSE with `encoder`."""
        return SimCSE(encoder, self)


class SimCSE(Method):
    """SimCSE on the stream ``text``: ``input_ids``, ``attention_mask`` (B, V, L); V = 1 unsupervised, 2 or 3 supervised."""

    sentence_encoder: TextEncoder

    def __init__(self, encoder: TextEncoder, config: SimCSEConfig) -> None:
        super().__init__()
        self.sentence_encoder = encoder
        self.text = config
        self.judge = config.negatives.load_guide(encoder)
        if config.head == "mlp":
            encoder.add_head(only_trains=not config.supervised)

    def encode(self, stream: str, batch: Batch) -> dict[str, Tensor]:
        """Return ``views`` (B, V, d) after the head, and ``judged`` (B, V, d'), the guide's embeddings, if there is one."""
        return {"views": self.projected(self.pooled(batch)), **judged_by(self.judge, batch)}

    def pooled(self, batch: Batch) -> Tensor:
        """Return embeddings (B, V, d) before the head; V = 2 for a single text.

        All views share one forward pass, with rows interleaved: x1, x1, x2, x2, ...
        """
        texts = [_views(tensor) for tensor in batch.texts()]
        return self.sentence_encoder.pooled(*(tensor.flatten(0, 1) for tensor in texts)).unflatten(0, texts[0].shape[:2])

    def projected(self, pooled: Tensor) -> Tensor:
        """Return the embeddings (B, V, d) after the head."""
        return self.sentence_encoder.project(pooled.flatten(0, 1)).unflatten(0, pooled.shape[:2])

    def losses(self, features: dict[str, dict[str, Tensor]], batches: dict[str, Batch]) -> StepOutput:
        """Return the loss ``text``."""
        return StepOutput({"text": self.text_loss(features["text"], batches["text"])})

    def text_loss(self, features: dict[str, Tensor], batch: Batch) -> Tensor:
        """Compute the contrastive loss of the sentences of all workers, a scalar.

        Args:
            features: ``views`` of this worker, (B, V, d), and ``judged`` if there is a guide.
            batch: Their batch.
        """
        z, text = features["views"], self.text
        z_all = gather(z)
        return losses.simcse(
            z[:, 0],
            z_all[:, 1],
            z_all[:, 2] if z.shape[1] == 3 else None,
            text.temperature,
            text.hard_negative_log_weight,
            offset(len(z)),
            text.negatives.hardness,
            text.negatives.left_out(z, features.get("judged")),
        )


class MixedSimCSEConfig(SimCSEConfig):
    """Settings of supervised SimCSE on pairs or triples and SimCSE on plain sentences, in one optimizer step."""

    name: Literal["simcse-mixed"] = "simcse-mixed"  # type: ignore[assignment]  # another method
    supervised: Literal[True] = True
    """The stream `nli` contains (premise, entailment) or (premise, entailment, contradiction), the stream `text` one text
    per sample, encoded twice."""
    nli_weight: float = Field(1.0, ge=0)
    """Weight of the loss of the stream `nli`."""

    def updates(self) -> dict[str, tuple[str, ...]]:
        """Return one update on both streams."""
        return named_updates(("nli", "text"))

    def vectors(self) -> dict[str, tuple[str, ...]]:
        """Return the views of both streams."""
        return {"nli": ("views",), "text": ("views",)}

    def check(self, recipe: RecipeParts, encoder: Any, setting: str = "method.supervised") -> None:
        """Check the numbers of texts per sample, and the guide."""
        check_texts(recipe, "nli", (2, 3), "method.name='simcse-mixed'", "a pair or a triple: sent0 sent1 hard_neg")
        check_hard_negatives(self, recipe, "nli", "method.hard_negative_log_weight")
        check_texts(recipe, "text", (1,), "method.name='simcse-mixed'", "one column, txt")
        if encoder is not None:
            self.negatives.check(recipe, "method.negatives")

    def build(self, encoder: TextEncoder) -> MixedSimCSE:
        """Return the method with `encoder`."""
        return MixedSimCSE(encoder, self)


class MixedSimCSE(SimCSE):
    """SimCSE on the streams ``nli`` (B, 2 or 3, L) and ``text`` (B, 1, L), which share no negatives."""

    text: MixedSimCSEConfig

    @property
    def loss_weights(self) -> dict[str, float]:
        """Return the weight of the stream ``nli``."""
        return {"nli": self.text.nli_weight}

    def losses(self, features: dict[str, dict[str, Tensor]], batches: dict[str, Batch]) -> StepOutput:
        """Return one loss per stream, named after it."""
        return StepOutput({name: self.text_loss(feature, batches[name]) for name, feature in features.items()})
