"""BatchNorm over two gloo processes, with unequal shares, equals BatchNorm of the whole batch in one."""

from __future__ import annotations

from pathlib import Path

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from multicse.trainers.engine.batchnorm import synchronised
from tests.small import in_processes

ROWS, CUT = 9, 3  # the first process has 3 rows, the second 6


class Net(nn.Module):
    """BatchNorm2d and 1d in a row, one without a learned part, one with a plain mean over all batches."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.conv = nn.Conv2d(2, 4, 3)
        self.first = nn.BatchNorm2d(4, eps=1e-3)
        self.linear = nn.Linear(4 * 16, 5)
        self.plain = nn.BatchNorm1d(5, affine=False, momentum=None)
        self.last = nn.BatchNorm1d(5, momentum=0.3)
        nn.init.normal_(self.first.weight)
        nn.init.normal_(self.last.bias)
        self.double()

    def forward(self, x: Tensor) -> Tensor:
        states = torch.relu(self.first(self.conv(x))).flatten(1)
        return self.last(torch.tanh(self.plain(self.linear(states))))


def _data() -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(1)
    x = torch.randn(2, ROWS, 2, 6, 6, generator=generator, dtype=torch.float64)
    return x + 1000, torch.randn(2, ROWS, 5, generator=generator, dtype=torch.float64)  # far from 0: digits must last


def _train(number: int | None = None) -> dict[str, Tensor]:
    """Two steps of gradient descent, then an evaluation. A `number` is one of two processes, each with its rows.

    The loss is a sum over rows, so the mean over processes that DDP makes is half of the whole batch's gradient.
    """
    net, alone = Net(), number is None
    share = slice(None) if alone else (slice(0, CUT), slice(CUT, ROWS))[number or 0]
    keys = list(net.state_dict())
    model: nn.Module = net
    if not alone:
        assert synchronised(net) is net
        assert list(net.state_dict()) == keys
        model = DistributedDataParallel(net, broadcast_buffers=False)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.01)
    results: dict[str, Tensor] = {}
    for step, (x, wanted) in enumerate(zip(*_data(), strict=True)):
        x = x[share].clone().requires_grad_()
        out = model(x)
        loss = (out * wanted[share]).sin().sum() * (1 if alone else 2)
        loss.backward()
        assert x.grad is not None
        results |= {f"rows/{step}/out": out.detach(), f"rows/{step}/grad": x.grad / (1 if alone else 2)}
        results |= {f"{step}/{name}": p.grad.clone() for name, p in net.named_parameters() if p.grad is not None}
        optimizer.step()
        optimizer.zero_grad()
    results |= {f"state/{name}": tensor.clone() for name, tensor in net.state_dict().items()}
    return results | {"rows/eval": net.eval()(_data()[0][0, share]).detach()}


def _worker(number: int, folder: str) -> None:
    save_file(_train(number), f"{folder}/{number}.safetensors")


def test_two_processes_equal_one(tmp_path: Path) -> None:
    alone = _train()
    in_processes(_worker, tmp_path)
    first, second = (load_file(tmp_path / f"{number}.safetensors") for number in range(2))
    assert first.keys() == alone.keys()
    for name, value in alone.items():
        if name.startswith("rows/"):
            found = torch.cat([first[name], second[name]])
        else:
            found = first[name]
            assert torch.equal(found, second[name]), f"{name} differs between the processes"
        torch.testing.assert_close(found, value, rtol=1e-7, atol=1e-9)
    # It would show if nothing were synchronised: a share's statistics are not the whole batch's.
    x = _data()[0][0]
    share, whole = Net(), Net()
    share(x[:CUT]), whole(x)
    variances = [net.state_dict()["first.running_var"] for net in (share, whole)]
    assert not torch.allclose(*variances)
