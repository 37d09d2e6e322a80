"""SG-BERT (Kim et al., ACL 2021): self-guided contrastive learning without augmentation.

BERT is cloned: the [CLS] embedding of the trained copy learns to agree with the layers of the frozen copy.
"""

from __future__ import annotations

from typing import Any, ClassVar, Literal, Self

import torch
import torch.nn.functional as F
from pydantic import Field
from torch import Tensor, nn

from multicse.data.settings import refuse_idle
from multicse.data.streams.base import Batch
from multicse.models.adapters import frozen_copy
from multicse.models.pooling import Head, layer_stack, pooled_layers
from multicse.models.text_encoder import TextEncoder
from multicse.trainers import losses
from multicse.trainers.gather import gather, offset
from multicse.trainers.method import Method, MethodConfig, RecipeParts, StepOutput, check_texts


class SGBERTConfig(MethodConfig):
    """Settings of SG-BERT, and of the back-translation baselines in its tables."""

    citations: ClassVar[tuple[str, ...]] = ("kim2021selfguided",)

    name: Literal["sgbert"] = "sgbert"
    loss: Literal["sg", "opt1", "opt2", "opt3"] = "opt3"
    """Contrastive loss. `sg`: L_base. `opt1`, `opt2`: L_base without some of its terms. `opt3`: SG-OPT, all layers."""
    positive: Literal["teacher", "translation", "both"] = "teacher"
    """Positive of a sentence. `teacher`: the same text, encoded by BERT_F. `translation` (BT): a second text, encoded by
    BERT_T, with loss `sg`; BERT_F is used for L_reg only. `both` (BT + SG-OPT): the second text, encoded by BERT_F."""
    pooling: Literal["max", "mean"] | None = None
    """Pooling of all tokens of a teacher layer. If None, max; in the variant `released` mean [errata 3.1]."""
    first_layer: int = Field(0, ge=0)
    """First teacher layer that is used, up to the last layer. 0 is the embedding output, so all are used. The paper's
    transfer runs omit "the first several layers" (appendix A.3), here 0 to 3."""
    teacher_dropout: bool | None = None
    """Enable dropout of BERT_F in training. If None, disabled, except in the variant `released` [errata 3.2]."""
    head_width: int = Field(4096, ge=0)
    """Width of the projection head f (Linear-GELU-Linear-GELU), which is used in training only; 0: no head."""
    temperature: float = Field(0.01, gt=0)
    """Softmax temperature: cosine similarities are divided by it. Lower values put more weight on hard negatives."""
    regularisation: float = Field(0.1, ge=0)
    """Weight of L_reg (lambda), the squared distance between trained and frozen weights; 0 disables it."""

    @property
    def texts(self) -> int:
        """Number of texts per sample: 1, or 2 with back-translations."""
        return 1 if self.positive == "teacher" else 2

    def vectors(self) -> dict[str, tuple[str, ...]]:
        """Return the embeddings, if they are compared without a head."""
        return {} if self.head_width else {"text": ("c", "h")}

    def check_settings(self) -> None:
        """Check that the loss fits the positive and the variant."""
        if self.positive == "translation" and self.loss != "sg":
            raise ValueError(
                f"method.loss={self.loss!r}: method.positive 'translation' is the BT baseline; set loss to 'sg'"
            )
        if self.positive == "translation":
            idle = ["pooling", "first_layer", "teacher_dropout"]
            refuse_idle(self, idle, "both texts are encoded by BERT_T; set method.positive teacher or both", "method.")
        if self.variant == "released" and self.loss == "sg":
            raise ValueError(
                "method.variant='released' cannot train with method.loss 'sg': the released code has 2b rows of logits and "
                "b labels, and its cross-entropy raises [errata 3.3]. Use the variant 'fixed' (2b labels)."
            )
        if self.variant == "released" and self.loss != "opt3" and self.first_layer > 0:
            raise ValueError(
                f"method.first_layer={self.first_layer} with method.variant 'released': the released sampler draws a layer "
                "number but indexes a list that starts at first_layer, so it uses a wrong layer or fails. Use 'fixed'."
            )

    def check(self, recipe: RecipeParts, encoder: Any) -> None:
        """Check the number of texts per sample, and the number of layers."""
        hint = "original and translation" if self.texts == 2 else "one column, txt"
        check_texts(recipe, "text", (self.texts,), f"method.positive={self.positive!r}", hint)
        if encoder is not None:
            self.check_depth(int(encoder.num_hidden_layers))

    def check_depth(self, depth: int) -> None:
        """Raise ValueError if a model with `depth` layers after its embeddings does not have the first layer."""
        if self.first_layer > depth:
            raise ValueError(
                f"method.first_layer={self.first_layer}: the model's layers are 0 (embedding output) to {depth}"
            )

    def build(self, encoder: TextEncoder) -> SGBERT:
        """Return SG-BERT with `encoder` as BERT_T."""
        return SGBERT(encoder, self)


class SelfGuidance(nn.Module):
    """The teacher BERT_F, the projection head f, and the loss between a sentence embedding and the teacher's layers.

    BERT_F is a copy of the encoder's initial model; parameters that are not trained are shared.
    """

    def __init__(self, encoder: TextEncoder, config: SGBERTConfig) -> None:
        super().__init__()
        self.config = config
        size, width = encoder.hidden_size, config.head_width
        self.head = nn.Sequential(Head(size, width, nn.GELU()), Head(width, width, nn.GELU())) if width else nn.Identity()
        config.check_depth(len(layer_stack(encoder.model)))
        self.pooling = config.pooling or ("mean" if config.variant == "released" else "max")
        self.prompt_tokens = encoder.prompt_tokens
        self.teacher = frozen_copy(encoder.model)

    def train(self, mode: bool = True) -> Self:
        """Set the training mode; the teacher stays in evaluation mode, except in the released code [errata 3.2]."""
        super().train(mode)
        wakes = self.config.variant == "released" if self.config.teacher_dropout is None else self.config.teacher_dropout
        for part in self.teacher.children() if wakes else ():
            part.train(mode)
        return self

    def views(self, c: Tensor, ids: Tensor, mask: Tensor, host_mask: Tensor) -> Tensor:
        """Return embeddings and their positives before the head f, (B, 1 + K, d), with K layers for SG-OPT, otherwise K = 1.

        Args:
            c: Sentence embeddings of BERT_T, (B, d).
            ids: Token ids for BERT_F, (B, L).
            mask: Attention mask, (B, L).
            host_mask: Copy of the mask on the CPU, (B, L).
        """
        layers = pooled_layers(self.teacher, ids, mask, self.pooling, self.prompt_tokens, host_mask)
        h = layers[:, self.config.first_layer :]  # h_ik
        if self.config.loss != "opt3":  # sigma: one random layer per sentence and step
            picked = torch.randint(h.shape[1], (len(h), 1), device=h.device)
            h = h.take_along_dim(picked[..., None], dim=1)
        return torch.cat([c[:, None], h], dim=1)

    def loss(self, c: Tensor, h: Tensor) -> Tensor:
        """Compute a loss over the sentences of all workers, a scalar; phi(u, v) = exp(cos(u, v) / temperature).

        `sg` is L_base: NT-Xent over {c_1..c_b, h_1..h_b}, the mean over its 2b members [errata 3.3]. `opt2` is the mean over
        i of -log( phi(c_i, h_i) / sum_j phi(c_i, h_j) ); the denominator of `opt1` also contains phi(c_i, c_j) for j != i.

        Args:
            c: Embeddings after the head f, (B, w).
            h: Positives after the head f, (B, K, w).
        """
        t, first = self.config.temperature, offset(len(c))
        if self.config.loss == "sg":
            views = torch.stack([c, h[:, 0]], 1)
            views_all = gather(views)
            sentences = torch.arange(len(views_all), device=c.device)  # each is a separate class
            return losses.supcon(views, views_all, sentences, t, first)
        h_all = gather(h)
        if self.config.loss == "opt3":
            return self._sg_opt(c, h_all)
        candidates, left_out = h_all[:, 0], None
        own = torch.arange(len(c), device=c.device)[:, None] + first
        if self.config.loss == "opt1":
            candidates = torch.cat([candidates, gather(c)])
            left_out = torch.arange(len(candidates), device=c.device) == own + len(h_all)  # c_i itself
        elif self.config.variant == "released":  # [errata 3.4] its negatives lack h_0, and for c_0 h_1
            left_out = torch.arange(len(candidates), device=c.device) == (own == 0).long()
        return losses.info_nce(c, candidates, t, first, left_out)

    @losses.full_precision
    def _sg_opt(self, c: Tensor, h_all: Tensor) -> Tensor:
        """Compute L_opt3 of c (N, w) and h_all (M, K, w), the mean over anchors i and layers k.

        A term is -log( phi(c_i, h_ik) / ( phi(c_i, h_ik) + sum_{m != i} sum_n phi(c_i, h_mn) ) ). The other layers of the
        anchor's sentence are neither positives nor negatives. One matrix product N x (M K) computes all layers.
        """
        row = torch.arange(len(c), device=c.device)
        own = row + offset(len(c))
        similarities = losses.cosine_similarity(c, h_all.flatten(0, 1))
        logits = (similarities / self.config.temperature).unflatten(1, h_all.shape[:2])  # (N, M, K)
        itself = torch.arange(len(h_all), device=c.device) == own[:, None]
        negatives = logits.masked_fill(itself[..., None], -torch.inf).flatten(1).logsumexp(1, keepdim=True)
        return -F.logsigmoid(logits[row, own] - negatives).mean()

    def distance(self, model: nn.Module) -> dict[str, Tensor]:
        """Return L_reg, ||theta_F - theta_T||^2, as loss ``regularisation``; empty if its weight is 0."""
        if self.config.regularisation == 0:
            return {}
        pairs = zip(model.parameters(), self.teacher.parameters(), strict=True)
        # `mse_loss` keeps no copy of the differences for the backward pass. Weights that are not trained are equal.
        parts = [F.mse_loss(a, b, reduction="sum") for a, b in pairs if a.requires_grad]
        return {"regularisation": torch.stack(parts).sum()}


class SGBERT(Method):
    """SG-BERT on the stream ``text``: ``input_ids``, ``attention_mask`` (B, V, L), V = 1, or 2 with back-translations.

    BERT_T is `encoder` with frozen embeddings and without a head; `encoder.pooling` determines its embedding c (the paper:
    ``cls``). BERT_F is in `guide` and shares the frozen embeddings.
    """

    sentence_encoder: TextEncoder

    def __init__(self, encoder: TextEncoder, config: SGBERTConfig) -> None:
        if encoder.head is not None:
            raise ValueError("encoder.pooling='pooler' adds a head, which SG-BERT does not have; use 'cls'")
        encoder.embeddings.requires_grad_(False)  # their dropout stays enabled
        super().__init__()
        self.sentence_encoder, self.config = encoder, config
        self.guide = SelfGuidance(encoder, config)

    @property
    def loss_weights(self) -> dict[str, float]:
        """Return the weight of L_reg."""
        return {"regularisation": self.config.regularisation}

    def encode(self, stream: str, batch: Batch) -> dict[str, Tensor]:
        """Return ``c`` (B, w) and its positives ``h`` (B, K, w) after the head f; K layers for SG-OPT, otherwise K = 1."""
        texts = batch.texts()
        if self.config.positive == "translation":  # both texts through BERT_T
            views = self.sentence_encoder.pooled(*(t.flatten(0, 1) for t in texts)).unflatten(0, texts[0].shape[:2])
        else:
            c = self.sentence_encoder.pooled(*(tensor[:, 0] for tensor in texts))
            views = self.guide.views(c, *(tensor[:, -1] for tensor in texts))
        z = self.guide.head(views)  # in one call, so that the gradient of its large weights is computed once
        return {"c": z[:, 0], "h": z[:, 1:]}

    def losses(self, features: dict[str, dict[str, Tensor]], batches: dict[str, Batch]) -> StepOutput:
        """Return the loss ``text``."""
        return StepOutput({"text": self.guide.loss(features["text"]["c"], features["text"]["h"])})

    def penalties(self) -> dict[str, Tensor]:
        """Return L_reg (`SelfGuidance.distance`)."""
        return self.guide.distance(self.sentence_encoder.model)
