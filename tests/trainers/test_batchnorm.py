"""BatchNorm of several workers: refused on CPUs; on a GPU, with unequal shares, that of the whole batch in one process."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from multicse.models.towers import HTSATTower, ResNetTower, ViTTower
from multicse.pipelines import gclsr
from multicse.trainers.clip import CLIPConfig
from multicse.trainers.engine.checks import check_settings
from multicse.trainers.gather import synchronised
from multicse.trainers.recipe import RecipeError
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
        self.double().cuda()

    def forward(self, x: Tensor) -> Tensor:
        states = torch.relu(self.first(self.conv(x))).flatten(1)
        return self.last(torch.tanh(self.plain(self.linear(states))))


def _data() -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(1)
    x = torch.randn(2, ROWS, 2, 6, 6, generator=generator, dtype=torch.float64)
    wanted = torch.randn(2, ROWS, 5, generator=generator, dtype=torch.float64)
    return x.cuda() + 1000, wanted.cuda()  # far from 0: digits must last


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
    save_file({name: value.cpu() for name, value in _train(number).items()}, f"{folder}/{number}.safetensors")


@pytest.mark.skipif(not torch.cuda.is_available(), reason="torch synchronises BatchNorm on CUDA only")
def test_two_processes_equal_one(tmp_path: Path) -> None:
    alone = {name: value.cpu() for name, value in _train().items()}
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


def test_several_cpu_workers_are_refused() -> None:
    recipe = gclsr.smoke()
    check_settings(recipe.changed({"run.workers": 1}))
    check_settings(recipe.changed({"run.workers": 2, "run.gpus_per_worker": 1}))
    with pytest.raises(RecipeError, match=r"run\.workers=2"):
        check_settings(recipe.changed({"run.workers": 2}))
    assert CLIPConfig(tower=ResNetTower()).batch_norm and CLIPConfig(tower=HTSATTower()).batch_norm
    assert not CLIPConfig(tower=ViTTower()).batch_norm
