"""Where workers compute, with the accelerators of torch replaced by what a GPU machine would say."""

import pytest
import torch

from rlinf.core.worker import Worker
from rlinf.runners.training.devices import device_of, placed


class Placed(Worker):
    def __init__(self, kind):
        self.kind = kind

    @property
    def accelerator_type(self):
        return self.kind


def worker(kind):
    return Placed(kind)


@pytest.fixture
def gpu(monkeypatch):
    monkeypatch.setattr(torch.accelerator, "is_available", lambda: True)
    monkeypatch.setattr(torch.accelerator, "current_accelerator", lambda: torch.device("meta"))


@pytest.mark.parametrize(("kind", "device"), [("NV_GPU", "meta"), ("VIRTUAL", "cpu"), ("", "cpu")])
def test_a_worker_computes_where_it_was_placed(gpu, kind, device):
    assert device_of(worker(kind)).type == device


@pytest.mark.parametrize("kind", ["NV_GPU", "VIRTUAL", ""])
def test_without_a_device_for_torch_it_is_the_cpu(monkeypatch, kind):
    monkeypatch.setattr(torch.accelerator, "is_available", lambda: False)
    assert device_of(worker(kind)) == torch.device("cpu")


def test_modules_move_and_others_stay(gpu):
    assert placed(torch.nn.Linear(2, 2), worker("NV_GPU")).weight.device.type == "meta"
    something = object()
    assert placed(something, worker("NV_GPU")) is something
