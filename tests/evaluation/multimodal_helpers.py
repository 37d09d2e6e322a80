"""Tiny random CLIP, SigLIP and CLAP folders."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch

from tests.evaluation.evaluation_helpers import WORDS, whole_words

TOWER = {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 32}
TEXT: dict[str, Any] = {**TOWER, "vocab_size": len(WORDS) + 4, "pad_token_id": 1, "bos_token_id": 2, "eos_token_id": 3}
LIMIT = 12  # tokens
RATE = 8000


def tiny_clip(folder: Path) -> Path:
    """Pictures of 16 x 16 in patches of 8."""
    from transformers import CLIPConfig, CLIPModel, CLIPProcessor
    from transformers.models.clip.image_processing_pil_clip import CLIPImageProcessorPil

    torch.manual_seed(0)
    vision = {**TOWER, "image_size": 16, "patch_size": 8}
    config = CLIPConfig(text_config={**TEXT, "max_position_embeddings": LIMIT}, vision_config=vision, projection_dim=8)
    CLIPModel(config).save_pretrained(folder)
    pictures = CLIPImageProcessorPil(size={"shortest_edge": 16}, crop_size={"height": 16, "width": 16})
    CLIPProcessor(pictures, whole_words(LIMIT)).save_pretrained(folder)
    return folder


def tiny_siglip(folder: Path) -> Path:
    """The same for SigLIP, which pads texts to its limit."""
    from transformers import SiglipConfig, SiglipModel, SiglipProcessor
    from transformers.models.siglip.image_processing_pil_siglip import SiglipImageProcessorPil

    torch.manual_seed(0)
    vision = {**TOWER, "image_size": 16, "patch_size": 8}
    text = {**TEXT, "max_position_embeddings": LIMIT, "projection_size": 16}
    SiglipModel(SiglipConfig(text_config=text, vision_config=vision)).save_pretrained(folder)
    pictures = SiglipImageProcessorPil(size={"height": 16, "width": 16})
    SiglipProcessor(pictures, whole_words(LIMIT)).save_pretrained(folder)
    return folder


def tiny_clap(folder: Path, fusion: bool = False) -> Path:
    """Sounds of one second at 8 kHz; `fusion` is the form that joins parts of longer ones."""
    from transformers import ClapConfig, ClapFeatureExtractor, ClapModel, ClapProcessor

    torch.manual_seed(0)
    audio: dict[str, Any] = {
        "spec_size": 256,
        "num_mel_bins": 64,
        "patch_embeds_hidden_size": 8,
        "hidden_size": 32,
        "depths": [1, 1, 1],
        "num_attention_heads": [1, 2, 4],
        "window_size": 8,
        "num_hidden_layers": 3,
        "enable_fusion": fusion,
    }
    text = {**TEXT, "max_position_embeddings": LIMIT + 2}
    model = ClapModel(ClapConfig(text_config=text, audio_config=audio, projection_dim=8))
    for tensor in model.parameters():  # its initialisation is so small that all vectors would be alike
        if tensor.ndim > 1:
            torch.nn.init.normal_(tensor, std=0.3)
    model.save_pretrained(folder)
    sounds = ClapFeatureExtractor(
        feature_size=64,
        sampling_rate=RATE,
        hop_length=80,
        max_length_s=1,
        fft_window_size=512,
        frequency_min=50,
        frequency_max=4000,
        truncation="fusion" if fusion else "rand_trunc",
    )
    ClapProcessor(sounds, whole_words(LIMIT)).save_pretrained(folder)
    return folder
