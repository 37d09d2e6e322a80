"""Run training steps on a simulated GPU and print their errors, waits and uploads.

    python -m tests.cuda_like.steps LIBRARY

LIBRARY is the compiled `device.cpp`; the rows are those of `tests.method_steps`.
"""

from __future__ import annotations

import ctypes
import json
import sys
import traceback
from collections.abc import Iterator
from typing import Any

ctypes.CDLL(sys.argv[1], mode=ctypes.RTLD_GLOBAL)  # before the import of torch, which checks only once

import torch  # noqa: E402

from multicse.trainers.engine.step import Meter, Stepper  # noqa: E402
from tests.cuda_like import attention, device  # noqa: E402
from tests.method_steps import ROWS, engine, first_batches, losses, smoke  # noqa: E402

Found = dict[str, Any]


def steps(name: str, precisions: list[str]) -> Iterator[tuple[str, Found]]:
    """Yield the record of a step for each precision. A previous step creates permanent tables on the device."""
    made = engine(smoke(name, {}))
    updates = first_batches(made)
    alike = [losses(made.method, updates)]
    made.host.device = device.DEVICE
    device.to_device(made.method)
    moved = [{stream: batch.to(device.DEVICE) for stream, batch in batches.items()} for batches in updates]
    alike.append(losses(made.method, moved))
    step = 0
    with made.streams as readers:
        for precision in precisions:
            recipe = made.recipe.replace("run.precision", precision)
            stepper, meter = Stepper(recipe, made.method, made.host, made.steps), Meter(readers, made.host)
            for _ in range(2 if step == 0 else 1):
                before = device.RECORD.copy()
                stepper(step, readers, meter)
                step += 1
                made.method.after_step(step)
            events = [[*event, count] for event, count in (device.RECORD - before).items()]
            stepper.finite.check()
            yield precision, {"events": events, "record": sorted({line for _, line in device.RECORD}), "losses": alike}


def main() -> None:
    """Print a line of JSON per row and precision: name, precision, and the record of the step or an error."""
    torch.set_num_threads(1)
    library = torch.library.Library("aten", "IMPL")
    attention.register(library)
    device.install()
    with device.Cuda():
        for name, (_, _, precisions) in ROWS.items():
            left = list(precisions)
            while left:
                try:
                    for precision, found in steps(name, list(left)):
                        print(json.dumps([name, precision, found]), flush=True)
                        left.remove(precision)
                except Exception:
                    print(json.dumps([name, left.pop(0), {"error": traceback.format_exc(limit=-12)}]), flush=True)


if __name__ == "__main__":
    main()
