"""SG-BERT (Kim et al., ACL 2021): BERT guides itself. A trained copy learns that its [CLS] agrees with the layers of a
frozen copy; nothing is augmented.
"""

from __future__ import annotations

import copy
from typing import Any, ClassVar, Literal, Self

import torch
from pydantic import Field
from torch import Tensor, nn

from multicse.data.streams.base import Batch
from multicse.models.adapters import frozen
from multicse.models.pooling import Head, layer_stack, pooled_layers
from multicse.models.text_encoder import TextEncoder
from multicse.trainers import losses
from multicse.trainers.gather import gather, offset
from multicse.trainers.method import Method, MethodConfig, RecipeParts, StepOutput, check_texts


class SGBERTConfig(MethodConfig):
    """Settings of SG-BERT, and of the back-translation baselines of its tables."""

    citations: ClassVar[tuple[str, ...]] = ("kim2021selfguided",)

    name: Literal["sgbert"] = "sgbert"
    """Name of the method; fixed, since the other settings belong to it."""
    loss: Literal["sg", "opt1", "opt2", "opt3"] = "opt3"
    """`sg`: L_base (NT-Xent). `opt1` and `opt2` leave terms out of it. `opt3`: SG-OPT, all layers at once."""
    positive: Literal["teacher", "translation", "both"] = "teacher"
    """`teacher`: the text through BERT_F. `translation` (BT): a second text through BERT_T, loss `sg`; BERT_F serves L_reg
    alone. `both` (BT + SG-OPT): the second text through BERT_F."""
    pooling: Literal["max", "mean"] | None = None
    """How the tokens of a teacher's layer, [CLS] and [SEP] among them, become one vector. None: max, in `released` its
    default mean [errata 3.1]."""
    first_layer: int = Field(0, ge=0)
    """First of the teacher's layers that are compared with, up to the last; 0, the embedding output: all. The paper's
    transfer runs leave out the first (appendix A.3)."""
    teacher_dropout: bool | None = None
    """Whether BERT_F has dropout in training. None: no, in `released` yes [errata 3.2]."""
    head_width: int = Field(4096, ge=0)
    """Width of the projection head f, Linear-GELU-Linear-GELU, which serves training only; 0: no head."""
    temperature: float = Field(0.01, gt=0)
    """What cosines are divided by in the loss; a lower one weighs the nearest negatives more."""
    regularisation: float = Field(0.1, ge=0)
    """Factor of L_reg (lambda); 0: without."""

    @property
    def texts(self) -> int:
        """Texts a sample has: 1, with back-translations 2."""
        return 1 if self.positive == "teacher" else 2

    def vectors(self) -> dict[str, tuple[str, ...]]:
        return {} if self.head_width else {"text": ("c", "h")}

    def check_settings(self) -> None:
        if self.positive == "translation" and self.loss != "sg":
            raise ValueError(
                f"method.loss={self.loss!r}: method.positive 'translation' is the BT baseline; set loss to 'sg'"
            )
        if self.variant == "released" and self.loss == "sg":
            raise ValueError(
                "method.variant='released' cannot train with method.loss 'sg': the released code has 2b rows of logits and "
                "b labels, and its cross-entropy raises [errata 3.3]. Use the variant 'fixed' (2b labels)."
            )
        if self.variant == "released" and self.loss != "opt3" and self.first_layer > 0:
            raise ValueError(
                f"method.first_layer={self.first_layer} with method.variant 'released': the released sampler draws a "
                "layer's number and looks it up in what begins at the first layer, so it takes another or none. Use 'fixed'."
            )

    def check(self, recipe: RecipeParts, encoder: Any) -> None:
        hint = "original and translation" if self.texts == 2 else "one column, txt"
        check_texts(recipe, "text", (self.texts,), f"method.positive={self.positive!r}", hint)
        if encoder is not None:
            self.check_depth(int(encoder.num_hidden_layers))

    def check_depth(self, depth: int) -> None:
        """Raise ValueError where a model with `depth` layers behind its embeddings lacks the first layer."""
        if self.first_layer > depth:
            raise ValueError(
                f"method.first_layer={self.first_layer}: the model's layers are 0 (embedding output) to {depth}"
            )

    def build(self, encoder: TextEncoder) -> SGBERT:
        return SGBERT(encoder, self)


class SelfGuidance(nn.Module):
    """BERT_F and the projection head f: what a sentence vector learns to agree with, and its loss.

    BERT_F is the encoder's model as it comes in; what of it is not trained is shared, not copied.
    """

    def __init__(self, encoder: TextEncoder, config: SGBERTConfig) -> None:
        super().__init__()
        self.config = config
        size, width = encoder.hidden_size, config.head_width
        self.head = nn.Sequential(Head(size, width, nn.GELU()), Head(width, width, nn.GELU())) if width else nn.Identity()
        config.check_depth(len(layer_stack(encoder.model)))  # which not every model has
        self.pooling = config.pooling or ("mean" if config.variant == "released" else "max")
        self.prompt_tokens = encoder.prompt_tokens
        shared = {id(p): p for p in encoder.model.parameters() if not p.requires_grad}
        self.teacher = frozen(copy.deepcopy(encoder.model, shared), checkpoint=False)

    def train(self, mode: bool = True) -> Self:
        """[errata 3.2] The released fit loop's ``train()`` reaches BERT_F and wakes its dropout."""
        super().train(mode)
        wakes = self.config.variant == "released" if self.config.teacher_dropout is None else self.config.teacher_dropout
        for part in self.teacher.children() if wakes else ():
            part.train(mode)
        return self

    def views(self, c: Tensor, ids: Tensor, mask: Tensor, host_mask: Tensor) -> Tensor:
        """Before f: vectors c (B, d) and their positives, layers of BERT_F for the tokens ids, mask (B, L): (B, 1 + K, d),
        K layers for SG-OPT, else 1."""
        layers = pooled_layers(self.teacher, ids, mask, self.pooling, self.prompt_tokens, host_mask)
        h = layers[:, self.config.first_layer :]  # h_ik
        if self.config.loss != "opt3":  # sigma: one random layer per sentence and step
            picked = torch.randint(h.shape[1], (len(h), 1), device=h.device)
            h = h.take_along_dim(picked[..., None], dim=1)
        return torch.cat([c[:, None], h], dim=1)

    def loss(self, c: Tensor, h: Tensor) -> Tensor:
        """The loss `config.loss` of vectors c (B, w) and positives h (B, K, w) behind f, gathered across workers."""
        h_all, t, first = gather(h), self.config.temperature, offset(len(c))
        match self.config.loss:
            case "sg":
                return losses.sg(c, h[:, 0], gather(c), h_all[:, 0], t, first)
            case "opt1":
                return losses.sg_opt1(c, gather(c), h_all[:, 0], t, first)
            case "opt2":  # [errata 3.4]
                formula = losses.sg_opt2_released if self.config.variant == "released" else losses.info_nce
                return formula(c, h_all[:, 0], t, first)
            case "opt3":
                return losses.sg_opt3(c, h_all, t, first)

    def distance(self, model: nn.Module) -> dict[str, Tensor]:
        """L_reg, ||theta_F - theta_T||^2, of BERT_T; none with lambda 0."""
        if self.config.regularisation == 0:
            return {}
        pairs = zip(model.parameters(), self.teacher.parameters(), strict=True)
        trained, fixed = zip(*(pair for pair in pairs if pair[0].requires_grad), strict=True)  # of the others it is 0
        return {"regularisation": losses.squared_distance(trained, fixed)}


class SGBERT(Method):
    """One stream ``text``: ``input_ids``, ``attention_mask`` (B, V, L), V = 1, or 2 with back-translations.

    BERT_T is `encoder`, its embeddings frozen; its vector c is what `encoder.pooling` says (the paper:
    ``cls_before_pooler``), without a head. BERT_F is in `guide`; they share the frozen embeddings.
    """

    sentence_encoder: TextEncoder

    def __init__(self, encoder: TextEncoder, config: SGBERTConfig) -> None:
        if encoder.head is not None:
            raise ValueError("encoder.pooling 'cls' has a head behind it and SG-BERT has none; use 'cls_before_pooler'")
        encoder.embeddings.requires_grad_(False)  # its dropout stays
        super().__init__()
        self.sentence_encoder, self.config = encoder, config
        self.guide = SelfGuidance(encoder, config)

    @property
    def loss_weights(self) -> dict[str, float]:
        return {"regularisation": self.config.regularisation}

    def encode(self, stream: str, batch: Batch) -> dict[str, Tensor]:
        """``c`` (B, d) and its positives ``h`` (B, K, d), behind f: K layers for SG-OPT, else 1."""
        texts = batch.texts()
        if self.config.positive == "translation":  # both texts through BERT_T
            views = self.sentence_encoder.pooled(*(t.flatten(0, 1) for t in texts)).unflatten(0, texts[0].shape[:2])
        else:
            c = self.sentence_encoder.pooled(*(tensor[:, 0] for tensor in texts))
            views = self.guide.views(c, *(tensor[:, -1] for tensor in texts))
        z = self.guide.head(views)  # one call: the gradient of its large weights is made once
        return {"c": z[:, 0], "h": z[:, 1:]}

    def losses(self, features: dict[str, dict[str, Tensor]], batches: dict[str, Batch]) -> StepOutput:
        return StepOutput({"text": self.guide.loss(features["text"]["c"], features["text"]["h"])})

    def penalties(self) -> dict[str, Tensor]:
        return self.guide.distance(self.sentence_encoder.model)
