"""BatchNorm with several workers: refused on CPUs, torch's SyncBatchNorm on GPUs."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

from multicse.models.towers import HTSATTower, ResNetTower, ViTTower
from multicse.pipelines import gclsr
from multicse.trainers.clip import CLIPConfig
from multicse.trainers.engine.checks import check_settings
from multicse.trainers.gather import synchronised
from multicse.trainers.recipe import RecipeError


def test_synchronised_keeps_names_values_and_hooks() -> None:
    net: Any = nn.Sequential(nn.Conv2d(2, 4, 3), nn.BatchNorm2d(4, eps=1e-3), nn.Flatten(), nn.BatchNorm1d(64, affine=False))
    seen: list[torch.Size] = []
    net[1].register_forward_pre_hook(lambda layer, args: seen.append(args[0].shape))
    before = {name: tensor.clone() for name, tensor in net.state_dict().items()}
    assert id(synchronised(net)) == id(net) and [type(net[i]) for i in (1, 3)] == [nn.SyncBatchNorm] * 2
    assert before.keys() == net.state_dict().keys() and net[1].eps == 1e-3
    assert all(torch.equal(tensor, net.state_dict()[name]) for name, tensor in before.items())
    net.eval()(torch.randn(2, 2, 6, 6))
    assert seen == [(2, 4, 4, 4)]


def test_several_cpu_workers_are_refused() -> None:
    recipe = gclsr.smoke()
    check_settings(recipe.changed({"run.num_workers": 1}))
    check_settings(recipe.changed({"run.num_workers": 2, "run.gpus_per_worker": 1}))
    with pytest.raises(RecipeError, match=r"run\.num_workers=2"):
        check_settings(recipe.changed({"run.num_workers": 2}))
    assert CLIPConfig(tower=ResNetTower()).batch_norm and CLIPConfig(tower=HTSATTower()).batch_norm
    assert not CLIPConfig(tower=ViTTower()).batch_norm
