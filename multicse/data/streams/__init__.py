"""The kinds of streams, by their names in a recipe."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from multicse.data.streams.audio import AudioStream
from multicse.data.streams.image import ImageStream
from multicse.data.streams.pairs import AudioTextStream, ImageTextStream
from multicse.data.streams.text import EDATextStream, NoisyTextStream, TextStream
from multicse.data.streams.triplets import TripletTextStream

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
