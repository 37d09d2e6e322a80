"""Run training steps on a simulated GPU and print their errors, waits and uploads.

    python -m tests.cuda_like.steps LIBRARY ROWS

LIBRARY is the compiled `device.cpp`; ROWS is JSON with [pipeline, settings, precisions] by name.
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

from benchmarks.speed.engine import NOT_TRAINED  # noqa: E402
from multicse.data.streams.base import Batch  # noqa: E402
from multicse.pipelines import api, registry  # noqa: E402
from multicse.trainers.engine.checkpoint import Store  # noqa: E402
from multicse.trainers.engine.hosts import Host  # noqa: E402
from multicse.trainers.engine.loop import Engine  # noqa: E402
from multicse.trainers.engine.step import Stepper, Window  # noqa: E402
from multicse.trainers.engine.text_fit import prepare  # noqa: E402
from multicse.trainers.method import Method  # noqa: E402
from tests.cuda_like import attention, device  # noqa: E402

Found = dict[str, Any]


def made(name: str, pipeline: str, settings: dict[str, Any]) -> Engine:
    """Return the engine of a pipeline's smoke recipe with some settings, on the CPU."""
    module = registry.load(pipeline)
    recipe = module.RECIPES["smoke"]().changed({**NOT_TRAINED, **settings, "run.output_dir": name, "run.num_workers": 0})
    recipe = api.prepare(recipe)
    prepare(recipe)
    host = Host(Store(f"{name}/checkpoint"))
    host.device = torch.device("cpu")
    return Engine(recipe, host, None)


def losses(method: Method, updates: list[dict[str, Batch]]) -> dict[str, float]:
    """Return the losses of all updates without dropout, and their gradient norm."""
    method.eval()
    torch.manual_seed(0)
    found = [method(batches).losses for batches in updates]
    torch.stack([value.float() for values in found for value in values.values()]).sum().backward()
    norm = torch.nn.utils.get_total_norm([p.grad for p in method.parameters() if p.grad is not None])
    method.zero_grad()
    return {name: float(value) for values in (*found, {"gradient": norm}) for name, value in values.items()}


def steps(name: str, pipeline: str, settings: dict[str, Any], precisions: list[str]) -> Iterator[tuple[str, Found]]:
    """Yield the record of a step for each precision. A previous step creates permanent tables on the device."""
    engine = made(name, pipeline, settings)
    readers = engine._readers()
    updates = [
        {stream: readers[stream].on_device(next(readers[stream])) for stream in streams}
        for streams in engine.recipe.method.updates().values()
    ]
    for reader in readers.values():
        reader.close()
    alike = [losses(engine.method, updates)]
    engine.host.device = device.DEVICE
    device.to_device(engine.method)
    moved = [{stream: batch.to(device.DEVICE) for stream, batch in batches.items()} for batches in updates]
    alike.append(losses(engine.method, moved))
    readers, step = engine._readers(), 0
    for precision in precisions:
        recipe = engine.recipe.replace("run.precision", precision)
        stepper, window = Stepper(recipe, engine.method, engine.host, engine.steps), Window(readers)
        for _ in range(2 if step == 0 else 1):
            before = device.RECORD.copy()
            stepper(step, readers, window)
            step += 1
            engine.method.after_step(step)
        events = [[*event, count] for event, count in (device.RECORD - before).items()]
        stepper.watch.check()
        yield precision, {"events": events, "record": sorted({line for _, line in device.RECORD}), "losses": alike}
    for reader in readers.values():
        reader.close()


def main() -> None:
    """Print a line of JSON per row and precision: name, precision, and the record of the step or an error."""
    torch.set_num_threads(1)
    library = torch.library.Library("aten", "IMPL")
    attention.register(library)
    device.install()
    with device.Cuda():
        for name, (pipeline, settings, precisions) in json.loads(sys.argv[2]).items():
            left = list(precisions)
            while left:
                try:
                    for precision, found in steps(name, pipeline, settings, list(left)):
                        print(json.dumps([name, precision, found]), flush=True)
                        left.remove(precision)
                except Exception:
                    print(json.dumps([name, left.pop(0), {"error": traceback.format_exc(limit=-12)}]), flush=True)


if __name__ == "__main__":
    main()
