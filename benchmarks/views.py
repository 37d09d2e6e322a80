"""Images per second of the views: the geometric ones of the stream, and ours against kornia's on the device.

python benchmarks/views.py [--size 64] [--batch 96] [--seconds 2] [--threads 1] [--device cpu]

Both sides of a ratio run in turn in this process, on the same pictures; the median of the rounds is printed as one JSON
line per measurement. kornia draws one order of the four jitter steps per batch, ours one per picture; the formulas are
the same (tests/data/streams/test_device.py).
"""

from __future__ import annotations

import argparse
import io
import json
import statistics
import time
from collections.abc import Callable

import kornia.augmentation as K
import numpy as np
import torch
from PIL import Image

from data.streams import decode, device, preprocess, views
from data.streams.image import ImageStream


def alternate(sides: dict[str, Callable[[], object]], seconds: float, on: torch.device) -> dict[str, float]:
    """Median seconds per call of each side, the sides taking turns."""
    times: dict[str, list[float]] = {name: [] for name in sides}
    for call in sides.values():
        call()
    end = time.perf_counter() + seconds * len(sides)
    while time.perf_counter() < end or len(next(iter(times.values()))) < 3:
        for name, call in sides.items():
            if on.type == "cuda":
                torch.cuda.synchronize()
            began = time.perf_counter()
            call()
            if on.type == "cuda":
                torch.cuda.synchronize()
            times[name].append(time.perf_counter() - began)
    return {name: statistics.median(values) for name, values in times.items()}


def geometric(source: int, size: int, seconds: float) -> dict[str, float | str]:
    """PNG bytes -> two random views, one thread, one picture at a time."""
    pixels = np.random.default_rng(0).integers(0, 256, (source, source, 3), np.uint8)
    stored = io.BytesIO()
    Image.fromarray(pixels).resize((source, source)).save(stored, "PNG")
    data, rng = stored.getvalue(), np.random.default_rng(0)
    took = alternate(
        {
            "views": lambda: views.image_views(decode.image(data, "a"), 2, size=size, rng=rng),
            "decode": lambda: decode.image(data, "a"),
        },
        seconds,
        torch.device("cpu"),
    )
    return {
        "what": f"png {source} -> 2 random crops of {size}, one thread",
        "images_per_second": round(1 / took["views"]),
        "views_per_second": round(2 / took["views"]),
        "share_of_decoding": round(took["decode"] / took["views"], 2),
    }


def photometric(batch: int, size: int, seconds: float, on: torch.device) -> dict[str, float | str]:
    """uint8 -> jittered, grayed, normalised float."""
    image = torch.randint(0, 256, (batch, 3, size, size), dtype=torch.uint8, device=on)
    generator = torch.Generator().manual_seed(0)
    mean, std = (ImageStream.model_fields[name].default for name in ("mean", "std"))
    theirs = torch.nn.Sequential(
        K.ColorJitter(0.4, 0.4, 0.4, 0.1, p=0.8),
        K.RandomGrayscale(p=0.2),
        K.Normalize(torch.tensor(mean), torch.tensor(std)),
    ).to(on)

    def ours() -> torch.Tensor:
        changed = device.color_jitter(image.float() / 255, generator)
        return preprocess.normalise(device.random_grayscale(changed, generator), mean, std)

    with torch.no_grad():
        took = alternate({"ours": ours, "kornia": lambda: theirs(image.float() / 255)}, seconds, on)
    return {
        "what": f"jitter, gray, normalise: {batch} x 3 x {size} x {size} on {on}",
        "images_per_second": round(batch / took["ours"]),
        "kornia_images_per_second": round(batch / took["kornia"]),
        "times_faster": round(took["kornia"] / took["ours"], 2),
    }


def sound(rate: int, bins: int, frames: int, seconds: float, on: torch.device) -> dict[str, float | str]:
    """int16 waveforms -> log-mel."""
    wave = torch.randint(-9999, 9999, (16, 1, preprocess.samples_for(rate, frames)), dtype=torch.int16, device=on)
    took = alternate({"ours": lambda: preprocess.log_mel(wave, rate=rate, bins=bins, frames=frames)}, seconds, on)
    return {
        "what": f"log-mel: 16 clips of {frames} frames, {bins} bins, {rate} Hz on {on}",
        "clips_per_second": round(16 / took["ours"]),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--source", type=int, default=32, help="side of the stored picture, pixels")
    parser.add_argument("--size", type=int, default=64, help="side of a view, pixels")
    parser.add_argument("--batch", type=int, default=96, help="views of a batch")
    parser.add_argument("--seconds", type=float, default=2.0, help="time for each side")
    parser.add_argument("--threads", type=int, default=1, help="threads of torch")
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    given = parser.parse_args()
    torch.set_num_threads(given.threads)
    on = torch.device(given.device)
    print(json.dumps(geometric(given.source, given.size, given.seconds)), flush=True)
    print(json.dumps(photometric(given.batch, given.size, given.seconds, on)), flush=True)
    print(json.dumps(sound(8000, 64, 128, given.seconds, on)), flush=True)
    print(json.dumps(sound(16000, 128, 1024, given.seconds, on)), flush=True)


if __name__ == "__main__":
    main()
