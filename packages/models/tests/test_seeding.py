"""Weights of a seed, and generators that are left alone."""

import torch

from rlinf.models.seeding import seeded_weights


def test_weights_depend_on_the_seed_alone_and_the_generator_stays():
    def drawn(seed):
        with seeded_weights(seed):
            return torch.nn.Linear(3, 2).weight.detach().clone()

    torch.manual_seed(5)
    expected = torch.rand(4)
    torch.manual_seed(5)
    first = drawn(1)
    assert torch.equal(first, drawn(1))
    assert not torch.equal(first, drawn(2))
    assert torch.equal(torch.rand(4), expected)


def test_generators_of_accelerators_are_not_seeded(monkeypatch):
    """A policy may be built in the middle of a run whose rollouts draw on the GPU."""
    seeded = []
    monkeypatch.setattr(torch.cuda, "manual_seed_all", seeded.append)
    with seeded_weights(1):
        torch.nn.Linear(3, 2)
    assert seeded == []
