"""Every kind of stream, by the name that a recipe gives it."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from data.streams.audio import AudioStream
from data.streams.image import ImageStream
from data.streams.pairs import AudioTextStream, ImageTextStream
from data.streams.text import EDATextStream, NoisyTextStream, TextStream
from data.streams.triplets import TripletTextStream

AnyStream = Annotated[
    TextStream
    | EDATextStream
    | NoisyTextStream
    | TripletTextStream
    | ImageStream
    | AudioStream
    | ImageTextStream
    | AudioTextStream,
    Field(discriminator="kind"),
]
