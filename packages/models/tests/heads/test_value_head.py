import pytest
import torch

from rlinf.core.errors import UnknownName
from rlinf.models.heads import ValueHead


def test_by_hand():
    head = ValueHead(2, (2,), "relu")
    with torch.no_grad():
        head.hidden[0].weight.copy_(torch.tensor([[1.0, 0.0], [0.0, -1.0]]))
        head.hidden[0].bias.copy_(torch.tensor([0.5, 0.0]))
        head.last.weight.copy_(torch.tensor([[2.0, 3.0]]))
        head.last.bias.fill_(-1.0)
    # relu(1.5, -4) and relu(0.5, 4)
    assert head(torch.tensor([[1.0, 4.0], [0.0, -4.0]])).tolist() == [2.0, 12.0]


def test_shapes_and_types():
    head = ValueHead(3, (8, 4))
    assert head(torch.zeros(2, 5, 3)).shape == (2, 5)
    assert head(torch.zeros(3)).shape == ()
    low = ValueHead(3).bfloat16()(torch.zeros(2, 3, dtype=torch.bfloat16))
    assert low.dtype == torch.float32
    # A float32 head on a bfloat16 model computes in float32.
    x = torch.randn(4, 3).bfloat16()
    torch.testing.assert_close(head(x), head(x.float()), rtol=0, atol=0)


def test_without_hidden_layers_it_is_linear():
    head = ValueHead(3, (), last_bias=False)
    x = torch.randn(4, 3)
    torch.testing.assert_close(head(x), x @ head.last.weight[0])
    assert [name for name, _ in head.named_parameters()] == ["last.weight"]


def test_a_fresh_critic_says_little():
    values = ValueHead(64)(torch.randn(256, 64, generator=torch.Generator().manual_seed(0)))
    assert values.abs().max() < 0.5


def test_gradients():
    head = ValueHead(3, (4,)).double()
    assert torch.autograd.gradcheck(head, torch.randn(2, 3, dtype=torch.float64, requires_grad=True))


def test_an_unknown_activation():
    with pytest.raises(UnknownName, match=r"ValueHead\(activation\): no activation named 'gellu'\. Did you mean 'gelu'"):
        ValueHead(3, activation="gellu")
