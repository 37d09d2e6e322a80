"""Image towers: CLIP's vision transformer (Radford et al. 2021) and others."""

from __future__ import annotations

from typing import Any, ClassVar, Literal

import torch
from pydantic import Field
from torch import Tensor

from multicse.data.settings import Place
from multicse.data.streams.inputs import ImageInput
from multicse.models.clip_layers import init_clip_vision, last_clip_layer
from multicse.models.tower import Modality, Tower, TowerConfig, check_preprocessor, saved_config


class ViTTower(TowerConfig):
    """CLIP's vision transformer; the defaults are ViT-B/32.

    `path` is a folder or model ID of CLIP, or of a vision encoder with a CLS token: ViT, DeiT, DINOv2. It defines sizes and
    activations, which `input` must match; patch_size, width, layers and heads are then not used.
    """

    modality: ClassVar[Modality] = "image"

    kind: Literal["vit"] = "vit"
    """Kind of the tower; fixed, since its other settings belong to it."""
    input: ImageInput = ImageInput()
    patch_size: int = Field(32, gt=0)
    """Height and width of a patch in pixels."""
    width: int = Field(768, gt=0)
    """Dimension of the hidden states; a multiple of the heads."""
    layers: int = Field(12, gt=0)
    """Number of transformer layers."""
    heads: int = Field(12, gt=0)
    """Attention heads per layer."""
    dropout: float = Field(0.0, ge=0, lt=1)
    """Dropout of the attention weights in training; CLIP uses 0."""
    path: Place | None = None
    """Folder or model ID of a pretrained tower. If None, weights are initialised randomly."""

    def config(self) -> Any:
        """Return the configuration of the vision transformer."""
        from transformers import CLIPVisionConfig  # here: takes a third of a second, too long for --help

        if self.path is None:
            if self.input.size % self.patch_size:
                raise ValueError(
                    f"method.tower.patch_size: {self.patch_size} does not divide method.tower.input.size {self.input.size}"
                )
            return CLIPVisionConfig(
                image_size=self.input.size,
                patch_size=self.patch_size,
                hidden_size=self.width,
                intermediate_size=4 * self.width,
                num_hidden_layers=self.layers,
                num_attention_heads=self.heads,
                attention_dropout=self.dropout,
                hidden_act="quick_gelu",
            )
        kinds = ("clip", "clip_vision_model", "vit", "deit", "dinov2", "dinov2_with_registers")
        config: Any = saved_config(self.path, kinds, self.modality)
        ours = {"input.mean": ("image_mean", list(self.input.mean)), "input.std": ("image_std", list(self.input.std))}
        check_preprocessor(self.path, self.modality, ours)
        if config.model_type == "clip_vision_model":
            config.attention_dropout = self.dropout
        else:
            config.attention_probs_dropout_prob = self.dropout
        return config

    def initialised(self, model: Any) -> Any:
        """Initialise the vision transformer as in OpenAI's code."""
        init_clip_vision(model)
        return model

    def wrap(self, model: Any) -> Tower:
        """Return the tower for CLIP's or another vision transformer."""
        kind = CLIPVision if model.config.model_type == "clip_vision_model" else CLSVision
        return kind(model, model.config.hidden_size, (3, self.input.size, self.input.size))


class CLIPVision(Tower):
    """CLIP's vision transformer, pooled by the CLS token of the last layer after LayerNorm."""

    def forward(self, x: Tensor) -> Tensor:
        """Encode images (B, 3, size, size) to vectors (B, width)."""
        states = self.model.pre_layrnorm(self.model.embeddings(x))
        *layers, last = self.model.encoder.layers
        for layer in layers:
            states = layer(states, None)
        cls = states.new_zeros(len(states), dtype=torch.long)
        return self.model.post_layernorm(last_clip_layer(last, states, cls))


class CLSVision(Tower):
    """Vision transformer other than CLIP's, pooled by the CLS token of its output."""

    def __init__(self, model: Any, width: int, shape: tuple[int, ...]) -> None:
        super().__init__(model, width, shape)
        for name, parameter in model.named_parameters():
            if name.endswith("mask_token"):  # for masked pretraining only; it gets no gradient
                parameter.requires_grad_(False)

    def forward(self, x: Tensor) -> Tensor:
        """Encode images (B, 3, size, size) to vectors (B, width)."""
        return self.model(pixel_values=x).last_hidden_state[:, 0]
