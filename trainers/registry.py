"""Every method by the name that a recipe gives it."""

from __future__ import annotations

from trainers.audiocse import AudioCSEConfig
from trainers.clip import CLIPConfig
from trainers.gclsr import GCLSRConfig
from trainers.mocoutrl import MoCoUTRLConfig
from trainers.nonling import NonLingCSEConfig
from trainers.pretrain import MaskedLMConfig
from trainers.sgbert import SGBERTConfig
from trainers.simcse import SimCSEConfig
from trainers.visualcse import VisualCSEConfig

AnyMethod = (
    SimCSEConfig
    | VisualCSEConfig
    | AudioCSEConfig
    | NonLingCSEConfig
    | SGBERTConfig
    | CLIPConfig
    | GCLSRConfig
    | MoCoUTRLConfig
    | MaskedLMConfig
)
