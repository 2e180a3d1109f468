import pytest
import torch

from rlinf.core.errors import ConfigError, ShapeError
from rlinf.models.heads import BatchRenorm, CrossQHead, MultiQHead
from rlinf.models.heads.batched import SeededDropout


def alone(head, n, x):
    """Critic n by ordinary layers."""
    for layer in head.critic:
        name = type(layer).__name__
        if name == "BatchedLinear":
            x = x @ layer.weight[n] + layer.bias[n]
        elif name == "BatchedLayerNorm":
            x = torch.nn.functional.layer_norm(x, x.shape[-1:], layer.weight[n], layer.bias[n])
        else:
            x = layer(x)
    return x.squeeze(-1)


@pytest.mark.parametrize("layer_norm", [False, True])
def test_critics_are_networks_of_their_own(layer_norm):
    head = MultiQHead(3, 2, 4, (8, 5), layer_norm=layer_norm)
    with torch.no_grad():
        for parameter in head.parameters():
            parameter += 0.1 * torch.randn_like(parameter)
    features, action = torch.randn(6, 3), torch.randn(6, 2)
    found = head(features, action)
    assert found.shape == (6, 4)
    for n in range(4):
        torch.testing.assert_close(found[:, n], alone(head, n, torch.cat([features, action], -1)))
    assert (found[:, 0] - found[:, 1]).abs().min() > 0


def test_a_critic_learns_without_the_others():
    head = MultiQHead(3, 2, 3, (8,))
    head(torch.randn(6, 3), torch.randn(6, 2))[:, 1].sum().backward()
    for parameter in head.parameters():
        assert not parameter.grad[0].any()
        assert parameter.grad[1].any()
        assert not parameter.grad[2].any()


def test_they_belong_to_the_critic():
    for head in (MultiQHead(3, 2), CrossQHead(3, 2)):
        assert all(name.startswith("critic.") for name, _ in head.named_parameters())


@pytest.mark.parametrize("head", [MultiQHead(2, 1, 2, (4,), "tanh"), CrossQHead(2, 1, 2, (4,), "tanh")])
def test_gradients(head):
    head = head.double()
    inputs = [torch.randn(3, size, dtype=torch.float64, requires_grad=True) for size in (2, 1)]
    assert torch.autograd.gradcheck(head, inputs)


def test_crossq_changes_nothing_unless_told():
    head = CrossQHead(3, 2, 2, (8,)).train()
    features, action = torch.randn(6, 3) + 2, torch.randn(6, 2)
    before = {name: tensor.clone() for name, tensor in head.state_dict().items()}
    first = head(features, action)
    assert all(torch.equal(before[name], tensor) for name, tensor in head.state_dict().items())
    torch.testing.assert_close(first[:1], head(features[:1], action[:1]))
    head.eval()(features, action, training=True)
    norms = [module for module in head.modules() if isinstance(module, BatchRenorm)]
    assert [int(norm.passes) for norm in norms] == [1, 1]


def test_crossq_by_hand():
    """One hidden layer, batch normalisation from the batch: z = BN(x) W + b, q = BN(relu z) w + c."""
    head = CrossQHead(2, 1, 1, (3,)).double()
    x = torch.randn(5, 3, dtype=torch.float64)

    def normal(y):
        return (y - y.mean(0)) / (y.var(0, correction=0) + 1e-3).sqrt()

    first, last = head.critic["linears"]
    expected = normal((normal(x) @ first.weight[0] + first.bias[0]).relu()) @ last.weight[0] + last.bias[0]
    torch.testing.assert_close(head(x[:, :2], x[:, 2:], training=True), expected)


def fit(head, *, training=False, steps=400):
    """How well the head learns Q(h, a) = h₀ a + ½ a², on points that it hasn't seen; a share of the variance."""
    generator = torch.Generator().manual_seed(0)
    optimizer = torch.optim.Adam(head.parameters(), 3e-3)

    def sample(rows):
        h, a = torch.randn(rows, 3, generator=generator), 2 * torch.rand(rows, 1, generator=generator) - 1
        return h, a, (h[:, 0] * a[:, 0] + 0.5 * a[:, 0] ** 2)[:, None]

    for _ in range(steps):
        h, a, q = sample(256)
        loss = (head(h, a, training=True) if training else head(h, a)) - q
        optimizer.zero_grad()
        loss.square().mean().backward()
        optimizer.step()
    h, a, q = sample(512)
    with torch.no_grad():
        return ((head(h, a) - q).square().mean() / q.var()).item()


def test_they_learn_a_known_q():
    torch.manual_seed(0)
    assert fit(MultiQHead(3, 1, 3, (64,))) < 0.03
    assert fit(CrossQHead(3, 1, 2, (64,), warmup=100), training=True) < 0.06


def test_what_they_refuse():
    head = MultiQHead(3, 2)
    with pytest.raises(ShapeError, match=r"MultiQHead\(features\): expected \[B, 3\], found \(4, 5\)"):
        head(torch.zeros(4, 5), torch.zeros(4, 2))
    with pytest.raises(ShapeError, match=r"MultiQHead\(action\): expected \(4, 2\), found \(3, 2\)"):
        head(torch.zeros(4, 3), torch.zeros(3, 2))
    with pytest.raises(ConfigError, match="found width 3, actions 2, count 0"):
        CrossQHead(3, 2, 0)


def test_dropout_belongs_to_a_generator():
    head = MultiQHead(3, 2, 2, (400,), layer_norm=True, dropout=0.25)
    features, action = torch.randn(5, 3), torch.randn(5, 2)
    torch.testing.assert_close(head(features, action), head(features, action))
    drawn = [head(features, action, generator=torch.Generator().manual_seed(seed)) for seed in (1, 1, 2)]
    assert torch.equal(drawn[0], drawn[1])
    assert (drawn[0] - drawn[2]).abs().min() > 0


def test_dropout_by_hand():
    dropout, x = SeededDropout(0.25), torch.ones(100, 400)
    found = dropout(x, torch.Generator().manual_seed(3))
    # What is kept is scaled up, so that the mean stays.
    assert sorted(set(found.flatten().tolist())) == pytest.approx([0.0, 4 / 3])
    assert float((found == 0).float().mean()) == pytest.approx(0.25, abs=0.01)
    assert float(found.mean()) == pytest.approx(1.0, abs=0.02)
    assert dropout(x) is x
    none = torch.Generator().manual_seed(3)
    assert SeededDropout(0.0)(x, none) is x
    assert torch.equal(torch.rand(2, generator=none), torch.rand(2, generator=torch.Generator().manual_seed(3)))
