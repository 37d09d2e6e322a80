"""What the towers beside the text encoder have in common: inputs of one shape, a configuration, a folder of weights.

The transformers among them are Hugging Face's, from a configuration or from a folder; their weights keep their names, under
``model``.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Literal

import torch
from pydantic import BaseModel, ConfigDict
from torch import Tensor, nn

from multicse.models.hub_folders import TOWER, half, has_pooler, model_class

if TYPE_CHECKING:
    from transformers import PretrainedConfig

Modality = Literal["image", "audio"]
Projection = Literal["linear", "mlp"]
"""What leads from a tower into the common space."""


class Tower(nn.Module):
    """Images (B, 3, size, size), or spectrograms (B, frames, bins), to vectors (B, width)."""

    projects: bool = False
    """The vectors are in the common space already, so that no projection follows."""

    def __init__(self, model: Any, width: int, shape: tuple[int, ...]) -> None:
        super().__init__()
        self.model = model
        """What it is made of; a transformers model where there is one."""
        self.width = width
        """Length of a vector."""
        self.shape = shape
        """Of one item: (3, size, size) or (frames, bins)."""

    def forward(self, x: Tensor) -> Tensor:
        """Return the vectors of items of this shape."""
        raise NotImplementedError  # the interface: every tower defines it


class TowerConfig(BaseModel):
    """Settings of a tower. `path`, where a kind has it, is a folder or hub name whose weights it begins with."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    modality: ClassVar[Modality]
    batch_norm: ClassVar[bool] = False
    """Whether BatchNorm mixes the items of a batch."""

    def check(self) -> None:
        """Raise ValueError for sizes that do not fit together, or a folder that cannot be used; loads no weights."""
        try:
            config = self.config()
            with torch.device("meta"):  # nothing but shapes
                tower = self.wrap(self.new(config, 8)).eval()
                tower(torch.empty(2, *tower.shape))
        except Exception as error:  # the libraries raise a dozen kinds for sizes that cannot be
            if str(error).startswith("method.tower."):
                raise
            what = " ".join(str(error).split())
            given = ", ".join(f"{name} {value}" for name, value in self.model_dump(exclude={"kind", "input"}).items())
            raise ValueError(
                f"method.tower: a model of these sizes cannot be, or cannot take its input: {what} ({given})"
            ) from error

    def build(self, embed_dim: int) -> Tower:
        """The tower: vectors of its own width, for a projection, or where it projects itself of length `embed_dim`.

        Raises ValueError when the folder cannot be used or lacks weights.
        """
        config, path = self.config(), getattr(self, "path", None)
        if path is None:
            return self.wrap(self.initialised(self.new(config, embed_dim)))
        parts = {r"^(vision_model|audio_model)\.": ""}  # a whole CLIP or CLAP, or a half with its projection
        folder = half(TOWER.folder(path), self.modality)
        model, _ = TOWER.load(model_class(config), path, folder, config, key_mapping=parts, **_unpooled(config))
        return self.wrap(model)

    def config(self) -> Any:
        """The configuration of the model: the folder's, after a check, or one of these settings."""
        raise NotImplementedError  # the interface: every kind defines it

    def new(self, config: Any, embed_dim: int) -> Any:
        """A model of the configuration, as transformers draws its weights."""
        return model_class(config)(config, **_unpooled(config))

    def initialised(self, model: Any) -> Any:
        """A new model, its weights drawn again where the papers' differ from those of transformers."""
        return model

    def wrap(self, model: Any) -> Tower:
        """The tower around its model."""
        raise NotImplementedError  # the interface: every kind defines it


def _unpooled(config: PretrainedConfig) -> dict[str, Any]:
    """How to build a model without the pooler that it may have."""
    return {"add_pooling_layer": False} if has_pooler(config) else {}


def saved_config(path: str, kinds: tuple[str, ...], modality: Modality) -> PretrainedConfig:
    """The configuration in a folder, of a whole CLIP or CLAP that of its half.

    Raises ValueError where there is none, of another kind of model, or with no weights but pickled ones.
    """
    from transformers import AutoConfig

    folder = half(TOWER.folder(path, weights=False), modality)
    try:
        config = AutoConfig.from_pretrained(folder)
    except (OSError, ValueError) as error:
        raise TOWER.cannot_load(path, error) from error
    if config.model_type not in kinds:
        raise ValueError(
            f"method.tower.path: {path!r} is a {config.model_type!r} model; this kind of tower takes {', '.join(kinds)}"
        )
    if Path(path).is_dir() and not list(folder.glob("*.safetensors")):
        TOWER.refuse_unreadable(path, folder)
        raise TOWER.cannot_load(path, FileNotFoundError("it has no safetensors file"))
    halves = {"clip": "vision_config", "clap": "audio_config"}
    return getattr(config, halves[config.model_type]) if config.model_type in halves else config


def check_preprocessor(path: str, modality: Modality, ours: dict[str, tuple[str, Any]]) -> None:
    """Raise ValueError when a folder says that its inputs are made in another way than the settings do.

    ours: setting below ``method.tower`` -> what the folder's preprocessor calls it, and its value here.
    """
    folder = half(TOWER.folder(path, weights=False), modality)
    theirs: dict[str, Any] = {}
    for file in (folder / "preprocessor_config.json", folder / "processor_config.json"):
        found = json.loads(file.read_text()) if file.is_file() else {}
        # A processor's file has that of its parts inside.
        theirs |= found | found.get("image_processor", {}) | found.get("feature_extractor", {})
    for setting, (name, value) in ours.items():
        said = theirs.get(name)
        if said is not None and not torch.allclose(torch.tensor(said).float(), torch.tensor(value).float(), rtol=1e-3):
            raise ValueError(
                f"method.tower.{setting}: {value}, and the preprocessor of {path!r} says {name} {said}; the weights expect "
                "that, so give the same here and in the stream's input"
            )
