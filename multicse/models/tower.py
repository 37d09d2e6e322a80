"""Interface of towers, the encoders of images or audio next to the text encoder, and of their settings."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal

import torch
from pydantic import BeforeValidator, SerializeAsAny
from torch import Tensor, nn

from multicse.data.settings import Settings, by_name
from multicse.models.hub_folders import half, model_class, read_json, unpooled
from multicse.models.pretrained import TOWER

if TYPE_CHECKING:
    from transformers import PretrainedConfig

Modality = Literal["image", "audio"]
Projection = Literal["linear", "mlp"]
"""Kind of projection from a tower into the shared space."""


class Tower(nn.Module):
    """Encoder of images or spectrograms.

    Args:
        model: Network, a transformers model if possible.
        width: Dimension of the vectors.
        shape: Shape of one item: (3, size, size) or (frames, bins).
    """

    projects: bool = False
    """The vectors are already in the shared space, so no projection follows."""

    def __init__(self, model: Any, width: int, shape: tuple[int, ...]) -> None:
        super().__init__()
        self.model = model
        self.width = width
        self.shape = shape

    def forward(self, x: Tensor) -> Tensor:
        """Encode images (B, 3, size, size) or spectrograms (B, frames, bins) to vectors (B, width)."""
        raise NotImplementedError  # the interface: every tower defines it

    def module(self, made: Any) -> nn.Module | None:
        """Return the network as a module of sentence-transformers; None for models of transformers.

        Args:
            made: Preprocessing of the inputs, `ImageInput` or `AudioInput`.

        Returns:
            Module that adds ``sentence_embedding``, (B, width), and copies its code to the folder of an export. Its type,
            ``multicse_FILE.CLASS``, is a plugin of the kind ``module``.
        """
        return None


class TowerConfig(Settings):
    """Settings of a tower. Kinds with a `path` can start from the weights of a folder or model ID."""

    plugin: ClassVar = ("tower", "kind")
    modality: ClassVar[Modality]
    batch_norm: ClassVar[bool] = False
    """The tower contains BatchNorm, so vectors depend on the batch in training."""

    kind: str
    input: Any

    def check(self) -> None:
        """Raise ValueError if sizes do not match, or the folder cannot be used, without loading weights."""
        try:
            config = self.config()
            with torch.device("meta"):  # shapes only
                tower = self.wrap(self.new(config, 8)).eval()
                tower(torch.empty(2, *tower.shape))
        except Exception as error:  # the libraries raise a dozen kinds for invalid sizes
            if str(error).startswith("method.tower."):
                raise
            reason = " ".join(str(error).split())
            given = ", ".join(f"{name} {value}" for name, value in self.model_dump(exclude={"kind", "input"}).items())
            raise ValueError(
                f"method.tower: invalid model dimensions, or dimensions that do not match the input: {reason} ({given})"
            ) from error

    def build(self, embed_dim: int) -> Tower:
        """Build the tower and load its weights; `embed_dim` is the output dimension of towers that project themselves."""
        config, path = self.config(), getattr(self, "path", None)
        if path is None:
            return self.wrap(self.initialised(self.new(config, embed_dim)))
        parts = {r"^(vision_model|audio_model)\.": ""}  # a CLIP or CLAP model, or one of its towers with a projection
        folder = half(TOWER.folder(path), self.modality)
        model, _ = TOWER.load(model_class(config), path, folder, config, key_mapping=parts, **unpooled(config))
        return self.wrap(model)

    def config(self) -> Any:
        """Return the configuration of the model: read from the folder and checked, or created from these settings."""
        raise NotImplementedError  # the interface: every kind defines it

    def new(self, config: Any, embed_dim: int) -> Any:
        """Create a model with random weights; see `config` and `build`."""
        return model_class(config)(config, **unpooled(config))

    def initialised(self, model: Any) -> Any:
        """Initialise a new model as in the papers if transformers does it differently, and return it."""
        return model

    def wrap(self, model: Any) -> Tower:
        """Return the tower for a model."""
        raise NotImplementedError  # the interface: every kind defines it


AnyTower = Annotated[SerializeAsAny[TowerConfig], BeforeValidator(partial(by_name, base=TowerConfig))]


def saved_config(path: str, kinds: tuple[str, ...], modality: Modality) -> PretrainedConfig:
    """Read the configuration of a tower, a model of one of the types `kinds` or a part of a CLIP or CLAP model.

    Raises ValueError if no configuration or safetensors are found, or the model type is not supported.
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
    if Path(path).is_dir():
        TOWER.refuse_unreadable(path, folder)
    halves = {"clip": "vision_config", "clap": "audio_config"}
    return getattr(config, halves[config.model_type]) if config.model_type in halves else config


def check_preprocessor(path: str, modality: Modality, ours: dict[str, tuple[str, Any]]) -> None:
    """Raise ValueError if inputs are not prepared as the preprocessor of a folder specifies.

    `ours` contains, for each setting below ``method.tower``, its name in the preprocessor and its value in the recipe.
    """
    folder = half(TOWER.folder(path, weights=False), modality)
    theirs: dict[str, Any] = {}
    for file in (folder / "preprocessor_config.json", folder / "processor_config.json"):
        found = read_json(file) if file.is_file() else {}
        # The file of a processor contains the settings of its parts.
        theirs |= found | found.get("image_processor", {}) | found.get("feature_extractor", {})
    for setting, (name, value) in ours.items():
        their = theirs.get(name)
        if their is not None and not torch.allclose(torch.tensor(their).float(), torch.tensor(value).float(), rtol=1e-3):
            raise ValueError(
                f"method.tower.{setting}: {value}, but the preprocessor of {path!r} has {name} {their}, which the weights "
                "expect; use this value here and in the input of the stream"
            )
