"""Patch embeddings of images and spectrograms, which the layers of a text transformer process."""

from __future__ import annotations

import torch
from torch import Tensor, nn

# Weights used by the authors of VisualCSE, by hidden size. Their RobertaForCL always loads ViT-large, which cannot run with
# roberta-base [errata 2.1]; selecting by size fixes that.
VIT_OF_SIZE = {768: "google/vit-base-patch16-224-in21k", 1024: "google/vit-large-patch16-224-in21k"}


class ImagePatches(nn.Module):
    """Embedding module of ViT: square patches, a CLS token and positions, without dropout. The weights are trained.

    Args:
        hidden_size: Dimension of the embeddings.
        image_size: Height and width of an image in pixels.
        patch_size: Height and width of a patch in pixels.
        path: ViT folder or model ID, or ``"auto"`` for the authors' choice for this hidden size. If None, the weights are
            initialised randomly, as in Hugging Face's ViT.

    References:
        NonLing-CSE, section 3; [errata 2.1].
    """

    def __init__(self, hidden_size: int, image_size: int = 224, patch_size: int = 16, path: str | None = None) -> None:
        from transformers import ViTConfig, ViTModel  # here: takes a third of a second, too long for --help

        super().__init__()
        # A ViT without layers is its embedding module, with Hugging Face's initialisation and loading.
        if path is None:
            config = ViTConfig(hidden_size=hidden_size, image_size=image_size, patch_size=patch_size)
            config.num_hidden_layers, config.hidden_dropout_prob = 0, 0.0
            vit = ViTModel(config, add_pooling_layer=False)
        else:
            vit = ViTModel.from_pretrained(
                _vit_path(path, hidden_size),
                num_hidden_layers=0,
                hidden_dropout_prob=0.0,
                add_pooling_layer=False,
                use_safetensors=True,
                dtype=torch.float32,
            )
        self.embeddings = vit.embeddings

    def forward(self, images: Tensor) -> Tensor:
        """Map images (B, 3, size, size) to embeddings of CLS and patches, (B, 1 + patches, hidden_size)."""
        return self.embeddings(images)


class AudioPatches(nn.Module):
    """Patch embeddings of log-mel spectrograms as in SSAST, with a CLS token and without dropout.

    SSAST uses 16 x 16 patches, learned positions and normalised spectrograms. The paper's 211 tokens come from the released
    code: 24 x 24 patches, ``positions=False``, ``statistics=None`` and random weights.

    Args:
        hidden_size: Dimension of the embeddings.
        frames: Number of frames of a spectrogram.
        bins: Number of mel bins.
        patch_size: Size of a patch in bins and frames.
        positions: Add learned position embeddings.
        statistics: Mean and standard deviation to normalise spectrograms as (x - mean) / (2 std). If None, they are not
            normalised.
        path: AST folder or model ID. CLS token, patch projection and positions are used, the distillation token is not. If
            None, the weights are initialised randomly.

    References:
        NonLing-CSE, section 3; [errata 2.2].
    """

    def __init__(
        self,
        hidden_size: int,
        frames: int = 1024,
        bins: int = 128,
        patch_size: int = 16,
        positions: bool = True,
        statistics: tuple[float, float] | None = None,
        path: str | None = None,
    ) -> None:
        from transformers import ASTModel

        super().__init__()
        ast = None if path is None else ASTModel.from_pretrained(
            path, num_hidden_layers=0, use_safetensors=True, dtype=torch.float32
        ).embeddings  # fmt: skip
        stride = (patch_size, patch_size) if ast is None else ast.patch_embeddings.projection.stride
        self.statistics = statistics
        self.projection = nn.Conv2d(1, hidden_size, patch_size, stride)
        self.cls_token = nn.Parameter(torch.empty(1, 1, hidden_size))
        nn.init.trunc_normal_(self.cls_token, std=0.02)
        self.positions: nn.Parameter | None = None
        if positions:
            rows, columns = ((n - patch_size) // s + 1 for n, s in zip((bins, frames), stride, strict=True))
            self.positions = nn.Parameter(torch.empty(1, 1 + rows * columns, hidden_size))
            nn.init.trunc_normal_(self.positions, std=0.02)
        if ast is not None:
            self.projection.load_state_dict(ast.patch_embeddings.projection.state_dict())
            self.cls_token.data.copy_(ast.cls_token)
            if self.positions is not None:
                own = [0, *range(2, ast.position_embeddings.shape[1])]  # 1 is the distillation token
                self.positions.data.copy_(ast.position_embeddings[:, own])

    def forward(self, spectrograms: Tensor) -> Tensor:
        """Map log-mel spectrograms (B, frames, bins) to embeddings of CLS and patches, (B, 1 + patches, hidden_size)."""
        if self.statistics is not None:
            mean, std = self.statistics
            spectrograms = (spectrograms - mean) / (2 * std)
        patches = self.projection(spectrograms.mT[:, None]).flatten(2).mT  # (B, 1, bins, frames) -> (B, patches, d)
        tokens = torch.cat([self.cls_token.expand(len(patches), -1, -1), patches], dim=1)
        return tokens if self.positions is None else tokens + self.positions


def check_image_patches(hidden_size: int, image_size: int, patch_size: int, path: str | None) -> None:
    """Raise ValueError if the sizes of `ImagePatches` do not match each other or the folder, without loading weights.

    The message starts with the name of the setting.
    """
    if image_size % patch_size:
        raise ValueError(f"patch_size: {patch_size} does not divide image_size {image_size}")
    if path is None:
        return
    sizes = {"hidden_size": hidden_size, "image_size": image_size, "patch_size": patch_size}
    _check_folder(_vit_path(path, hidden_size), sizes)


def check_audio_patches(hidden_size: int, frames: int, bins: int, patch_size: int, path: str | None) -> None:
    """Raise ValueError if the sizes of `AudioPatches` do not match each other or the folder, without loading weights.

    The message starts with the name of the setting.
    """
    if patch_size > min(frames, bins):
        raise ValueError(f"patch_size: {patch_size} is larger than the spectrogram ({frames} frames x {bins} bins)")
    if path is None:
        return
    sizes = {"hidden_size": hidden_size, "max_length": frames, "num_mel_bins": bins, "patch_size": patch_size}
    _check_folder(path, sizes)


def _vit_path(path: str, hidden_size: int) -> str:
    if path != "auto":
        return path
    if hidden_size not in VIT_OF_SIZE:
        raise ValueError(
            f"path: 'auto' supports the hidden sizes {', '.join(map(str, VIT_OF_SIZE))}, but the encoder has "
            f"{hidden_size}. Specify a ViT with this hidden size, or no path for random weights."
        )
    return VIT_OF_SIZE[hidden_size]


def _check_folder(path: str, sizes: dict[str, int]) -> None:
    """Raise ValueError if the folder's config.json cannot be read or differs from `sizes`."""
    from transformers import AutoConfig

    try:
        config = AutoConfig.from_pretrained(path)
    except OSError as error:
        raise ValueError(
            f"path: {path!r} cannot be read. Specify a folder with config.json and model.safetensors, or no path for "
            f"random weights. ({error})"
        ) from error
    for name, value in sizes.items():
        if (found := getattr(config, name)) != value:
            raise ValueError(
                f"path: {path!r} has {name} {found}, but the recipe has {value} (hidden_size comes from the text "
                "encoder, whose layers process the patches). Make them equal, or specify no path for random weights."
            )
