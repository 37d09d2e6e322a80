"""CLIP's modified ResNet as a tower (Radford et al. 2021), which CyCLIP and Zhao et al. 2023 train."""

from __future__ import annotations

import copy
from typing import ClassVar, Literal

from pydantic import Field, PositiveInt
from torch import Tensor, nn

from multicse.data.streams.inputs import ImageInput
from multicse.models.tower import Modality, Tower, TowerConfig
from multicse.reproduction.resnet import ModifiedResNet


class ResNetTower(TowerConfig):
    """CLIP's modified ResNet with random weights; the defaults are RN50. Its attention pooling is the projection."""

    modality: ClassVar[Modality] = "image"
    batch_norm: ClassVar[bool] = True

    kind: Literal["resnet"] = "resnet"
    """Kind of the tower; fixed, since its other settings belong to it."""
    input: ImageInput = ImageInput()
    width: int = Field(64, gt=0)
    """Channels after the stem, an even number."""
    blocks: tuple[PositiveInt, PositiveInt, PositiveInt, PositiveInt] = (3, 4, 6, 3)
    """Bottleneck blocks per stage."""

    def config(self) -> None:
        """Return None, since the ResNet is not a model of transformers."""
        return None

    def new(self, config: None, embed_dim: int) -> ModifiedResNet:
        """Return a ResNet with random weights and vectors of dimension `embed_dim`."""
        return ModifiedResNet(embed_dim, self.input.size, self.width, self.blocks)

    def wrap(self, model: ModifiedResNet) -> Tower:
        """Return the tower for a ResNet."""
        return ResNet(model, model.attnpool.project.out_features, (3, model.size, model.size))


class ResNet(Tower):
    """CLIP's modified ResNet with attention pooling."""

    projects = True

    def forward(self, x: Tensor) -> Tensor:
        """Encode images (B, 3, size, size) to vectors (B, width)."""
        return self.model(x)

    def module(self, made: ImageInput) -> nn.Module:
        """Return the network as a module of sentence-transformers, whose code an export contains."""
        from multicse.models.dual_export import image_processor
        from multicse.reproduction.resnet_module import ResNetModule

        return ResNetModule(copy.deepcopy(self.model).cpu(), image_processor(made))
