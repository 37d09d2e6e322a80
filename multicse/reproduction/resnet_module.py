"""CLIP's modified ResNet as a module of sentence-transformers; exported models contain this code.

Copies of this file and of resnet.py are part of every such folder, so they need only torch, transformers and
sentence-transformers. Usage:

    model = SentenceTransformer(folder, trust_remote_code=True)
    model.encode([PIL.Image.open("dog.jpg")])
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from safetensors.torch import load_file, save_file
from sentence_transformers.base.modules import InputModule
from transformers.models.clip.image_processing_pil_clip import CLIPImageProcessorPil

from .resnet import ModifiedResNet

CONFIG, WEIGHTS = "resnet_config.json", "model.safetensors"
HUB_OPTIONS = ("token", "cache_folder", "revision", "local_files_only")


class ResNetModule(InputModule):
    """Module that encodes images with a `ModifiedResNet`, for the image route of a `Router`."""

    __module__ = "multicse_resnet"  # file in a saved folder; part of the class name in sentence-transformers
    config_file_name = CONFIG

    def __init__(self, model: ModifiedResNet, processor: CLIPImageProcessorPil) -> None:
        super().__init__()
        self.model, self.processor = model, processor

    @property
    def modalities(self) -> list[Any]:
        """Return the supported modalities."""
        return ["image"]

    @property
    def tokenizer(self) -> Any:
        """Return None, since images have no tokenizer."""
        return None

    def get_embedding_dimension(self) -> int:
        """Return the dimension of the vectors."""
        return self.model.attnpool.project.out_features

    def preprocess(self, inputs: Sequence[Any], prompt: str | None = None, **kwargs: Any) -> dict[str, Any]:
        """Return ``pixel_values``, (B, 3, size, size), of B images, PIL or uint8 (H, W, 3)."""
        return dict(self.processor(list(inputs), return_tensors="pt"))

    def forward(self, features: dict[str, Any], **kwargs: Any) -> dict[str, Any]:
        """Add ``sentence_embedding``, (B, d), to features with ``pixel_values``, (B, 3, size, size)."""
        images = features["pixel_values"].to(self.model.conv1.weight.dtype)
        return {**features, "sentence_embedding": self.model(images)}

    def save(self, output_path: str, *args: Any, safe_serialization: bool = True, **kwargs: Any) -> None:
        """Write the module to a folder, always as safetensors, and its code to the parent folder."""
        folder, model = Path(output_path), self.model
        sizes = {
            "embed_dim": self.get_embedding_dimension(),
            "size": model.size,
            "width": model.conv3.out_channels,
            "blocks": [len(stage) for stage in model.stages],  # type: ignore[arg-type]  # stages are sequences
        }
        (folder / CONFIG).write_text(json.dumps(sizes, indent=2) + "\n", encoding="utf-8")
        save_file({name: t.detach().cpu().contiguous() for name, t in model.state_dict().items()}, folder / WEIGHTS)
        self.processor.save_pretrained(folder)
        shutil.copyfile(__file__, folder.parent / "multicse_resnet.py")
        shutil.copyfile(Path(__file__).with_name("resnet.py"), folder.parent / "resnet.py")

    @classmethod
    def load(cls, model_name_or_path: str, subfolder: str = "", *args: Any, **kwargs: Any) -> ResNetModule:
        """Load the module from a folder or a repository of the Hugging Face Hub."""
        options = {name: value for name, value in kwargs.items() if name in HUB_OPTIONS}
        place = cls.load_dir_path(model_name_or_path, subfolder, **options)
        assert place is not None
        sizes = json.loads((Path(place) / CONFIG).read_text(encoding="utf-8"))
        model = ModifiedResNet(sizes["embed_dim"], sizes["size"], sizes["width"], tuple(sizes["blocks"]))
        model.load_state_dict(load_file(Path(place) / WEIGHTS))
        return cls(model, CLIPImageProcessorPil.from_pretrained(place))
