"""The towers beside the text encoder: those of images, and the union of all kinds.

Images to vectors: CLIP's vision transformer and modified ResNet (Radford et al. 2021), and other vision transformers.
"""

from __future__ import annotations

from typing import Annotated, Any, ClassVar, Literal

import torch
from pydantic import Field, PositiveInt
from torch import Tensor

from multicse.data.streams.inputs import ImageInput
from multicse.models.audio_towers import ASTTower as ASTTower
from multicse.models.audio_towers import HTSATTower as HTSATTower
from multicse.models.clip_layers import init_clip_vision, last_clip_layer
from multicse.models.resnet import ModifiedResNet
from multicse.models.tower import Modality, Tower, TowerConfig, check_preprocessor, saved_config


class ViTTower(TowerConfig):
    """CLIP's vision transformer; the defaults are ViT-B/32.

    `path` is a folder or hub name of CLIP (its image half) or of another vision encoder with a CLS token: ViT, DeiT, DINOv2.
    Its sizes and activations then come from there, and `input` must fit them; patch_size, width, layers and heads are not
    read.
    """

    modality: ClassVar[Modality] = "image"

    kind: Literal["vit"] = "vit"
    """Kind of the tower; fixed, since its other settings belong to it."""
    input: ImageInput = ImageInput()
    patch_size: int = Field(32, gt=0)
    """Pixels of a patch's side."""
    width: int = Field(768, gt=0)
    """Dimensions of the hidden states; the heads divide them."""
    layers: int = Field(12, gt=0)
    """Transformer layers, one after the other."""
    heads: int = Field(12, gt=0)
    """Attention heads of each layer."""
    dropout: float = Field(0.0, ge=0, lt=1)
    """Dropout of the attention in training; CLIP has none."""
    path: str | None = None
    """Folder or hub name of a pretrained tower; none: fresh weights."""

    def config(self) -> Any:
        from transformers import CLIPVisionConfig  # here: a third of a second, which --help need not wait for

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
        init_clip_vision(model)
        return model

    def wrap(self, model: Any) -> Tower:
        kind = CLIPVision if model.config.model_type == "clip_vision_model" else CLSVision
        return kind(model, model.config.hidden_size, (3, self.input.size, self.input.size))


class ResNetTower(TowerConfig):
    """CLIP's modified ResNet; the defaults are RN50, from scratch. Its attention pool is its projection."""

    modality: ClassVar[Modality] = "image"
    batch_norm: ClassVar[bool] = True

    kind: Literal["resnet"] = "resnet"
    """Kind of the tower; fixed, since its other settings belong to it."""
    input: ImageInput = ImageInput()
    width: int = Field(64, gt=0)
    """Channels behind the stem, even."""
    blocks: tuple[PositiveInt, PositiveInt, PositiveInt, PositiveInt] = (3, 4, 6, 3)
    """Bottleneck blocks of each stage."""

    def config(self) -> None:
        return None

    def new(self, config: None, embed_dim: int) -> ModifiedResNet:
        return ModifiedResNet(embed_dim, self.input.size, self.width, self.blocks)

    def wrap(self, model: ModifiedResNet) -> Tower:
        return ResNet(model, model.attnpool.project.out_features, (3, model.size, model.size))


class CLIPVision(Tower):
    """CLIP's vision transformer: the CLS token of the last layer, normalised."""

    def forward(self, x: Tensor) -> Tensor:
        states = self.model.pre_layrnorm(self.model.embeddings(x))
        *layers, last = self.model.encoder.layers
        for layer in layers:
            states = layer(states, None)
        cls = states.new_zeros(len(states), dtype=torch.long)
        return self.model.post_layernorm(last_clip_layer(last, states, cls))


class CLSVision(Tower):
    """Another vision transformer: the CLS token of its output."""

    def __init__(self, model: Any, width: int, shape: tuple[int, ...]) -> None:
        super().__init__(model, width, shape)
        for name, parameter in model.named_parameters():
            if name.endswith("mask_token"):  # for pretraining by masks; an optimizer must not wait for its gradient
                parameter.requires_grad_(False)

    def forward(self, x: Tensor) -> Tensor:
        return self.model(pixel_values=x).last_hidden_state[:, 0]


class ResNet(Tower):
    """CLIP's modified ResNet."""

    projects = True

    def forward(self, x: Tensor) -> Tensor:
        return self.model(x)


AnyTower = Annotated[ViTTower | ResNetTower | HTSATTower | ASTTower, Field(discriminator="kind")]
"""Any tower, by its `kind`."""
