import pytest
import torch
from draws import seeded
from torch.distributions import Normal

from rlinf.core.errors import ConfigError
from rlinf.models.flow import ExploreNoiseNet, FlowSampling, initial_noise, of_decision, sample_chain, score_chain, transition

METHODS = ["flow_sde", "flow_noise", "flow_cps", "flow_ode"]


class Linear(torch.nn.Module):
    def __init__(self, dtype=torch.float32):
        super().__init__()
        generator = torch.Generator().manual_seed(0)
        self.weight = torch.nn.Parameter(0.3 * torch.randn(3, 3, generator=generator, dtype=dtype))

    def forward(self, x, time):
        hidden = torch.tanh(x @ self.weight + time[:, None, None])
        return x - hidden, hidden


def sample(sampling, *, rows=6, train=True, field=None, spread=None, seed=3):
    noise = torch.randn(rows, 2, 3, generator=seeded(seed + 1))
    with torch.no_grad():
        return sample_chain(field or Linear(), noise, sampling, noise_level=0.5, train=train, spread=spread, generator=seeded(seed))


def noise_net():
    torch.manual_seed(3)
    return ExploreNoiseNet(3, 3, (0.08, 0.16))


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("joint", [False, True])
@pytest.mark.parametrize("reduction", ["sum", "mean"])
@pytest.mark.parametrize("train", [False, True])
def test_a_recorded_chain_scores_as_it_was_sampled(method, joint, reduction, train):
    field, spread = Linear(), noise_net()
    sampling = FlowSampling(noise_method=method, joint_logprob=joint, joint_reduction=reduction)
    chain = sample(sampling, train=train, field=field, spread=spread)
    for module in (field.train(), field.eval()):
        again = score_chain(module, chain.states, chain.index, chain.level, sampling, spread=spread)
        for name in ("logprob", "entropy", "hidden"):
            torch.testing.assert_close(getattr(again, name), getattr(chain.score, name), atol=1e-5, rtol=0.0)
    if train and method != "flow_ode":
        assert again.logprob.requires_grad
        assert (chain.score.logprob != 0).any()
    if not train:
        assert (chain.score.logprob == 0).all()


@pytest.mark.parametrize("steps", [3, 7, 10])
@pytest.mark.parametrize("joint", [False, True])
def test_a_chain_is_scored_at_the_very_times_it_was_sampled_at(steps, joint):
    times = []

    def field(x, time):
        times.append(time)
        return x, x

    sampling = FlowSampling(num_steps=steps, joint_logprob=joint)
    chain = sample(sampling, rows=32, field=field)
    grid, times = torch.stack(times), []
    score_chain(field, chain.states, chain.index, chain.level, sampling)
    expected = grid if joint else grid[chain.index, torch.arange(32)][None]
    assert torch.equal(torch.stack(times), expected)


@pytest.mark.parametrize("method", ["flow_sde", "flow_noise", "flow_cps"])
def test_log_probability_and_entropy_by_torch(method):
    """Step by step with torch's own Gaussian, and the initial noise; steps without noise say nothing."""
    field, spread = Linear(), noise_net()
    sampling = FlowSampling(num_steps=3, noise_method=method, joint_logprob=True)
    chain = sample(sampling, field=field, spread=spread)
    logprob, entropy = Normal(0.0, 1.0).log_prob(chain.states[:, 0]), torch.zeros(6, 2, 3)
    for k in range(3):
        x, time = chain.states[:, k], torch.full((6,), 1 - k / 3)
        velocity, hidden = field(x, time)
        mean, std = transition(x, velocity, time, step=1 / 3, method=method, noise_level=torch.full((6,), 0.5))
        std = spread(hidden) if method == "flow_noise" else std.expand_as(mean)
        if (std > 0).all():
            normal = Normal(mean, std)
            logprob, entropy = logprob + normal.log_prob(chain.states[:, k + 1]), entropy + normal.entropy()
    torch.testing.assert_close(chain.score.logprob, logprob)
    torch.testing.assert_close(chain.score.entropy, entropy)
    mean = FlowSampling(num_steps=3, noise_method=method, joint_logprob=True, joint_reduction="mean")
    found = score_chain(field, chain.states, chain.index, chain.level, mean, spread=spread)
    torch.testing.assert_close(found.logprob, logprob / 4)


@pytest.mark.parametrize("method", METHODS)
def test_an_evaluation_is_the_ode(method):
    chain = sample(FlowSampling(noise_method=method), train=False, spread=noise_net())
    ode = sample(FlowSampling(noise_method="flow_ode"), train=False)
    torch.testing.assert_close(chain.states, ode.states)


@pytest.mark.parametrize(("method", "ignore_last", "last"), [("flow_sde", False, 3), ("flow_sde", True, 2), ("flow_cps", False, 2)])
def test_each_row_draws_its_step(method, ignore_last, last):
    index = sample(FlowSampling(noise_method=method, ignore_last=ignore_last), rows=400).index
    count = torch.bincount(index, minlength=4)
    assert (count[: last + 1] > 400 / (last + 1) * 0.6).all()
    assert (count[last + 1 :] == 0).all()


def test_one_step():
    """The only step starts at τ = 1; its spread is η."""
    sampling = FlowSampling(num_steps=1)
    field = Linear()
    chain = sample(sampling, field=field)
    assert (chain.index == 0).all()
    velocity, _ = field(chain.states[:, 0], torch.ones(6))
    expected = Normal(chain.states[:, 0] * (1 - 0.125) - velocity, 0.5).log_prob(chain.action)
    torch.testing.assert_close(chain.score.logprob, expected)


@pytest.mark.parametrize(
    "options",
    [
        {"num_steps": 0},
        {"num_steps": 1, "ignore_last": True},
        {"num_steps": 1, "noise_method": "flow_cps"},
        {"noise_level": 0.0},
        {"noise_anneal": (0.7, 0.0, 10)},
        {"noise_anneal": (0.7, 0.5, 10), "noise_level": 0.5},
        {"noise_anneal": (0.7, 0.5, -1)},
        {"noise_logvar_range": (0.2, 0.1)},
    ],
)
def test_wrong_options(options):
    with pytest.raises(ConfigError):
        FlowSampling(**options)


def test_annealing():
    sampling = FlowSampling(noise_anneal=(0.7, 0.3, 400))
    assert [sampling.level(step) for step in (0, 200, 400, 900)] == pytest.approx([0.7, 0.5, 0.3, 0.3])
    assert FlowSampling(noise_level=0.4).level(7) == 0.4


def test_the_level_of_each_row_is_its_own():
    """A chain is scored at the level that it was sampled with, whatever the schedule says now."""
    field, sampling = Linear(), FlowSampling()
    parts = [
        sample_chain(field, torch.randn(3, 2, 3, generator=seeded(9)), sampling, noise_level=level, train=True, generator=seeded(1))
        for level in (0.3, 0.9)
    ]
    joined = [torch.cat([getattr(part, name) for part in parts]) for name in ("states", "index", "level")]
    again = score_chain(field, *joined, sampling)
    torch.testing.assert_close(again.logprob, torch.cat([part.score.logprob for part in parts]), atol=1e-5, rtol=0.0)


@pytest.mark.parametrize("method", ["flow_sde", "flow_noise", "flow_cps"])
@pytest.mark.parametrize("joint", [False, True])
def test_gradients_of_the_log_probability(method, joint):
    field, spread = Linear(torch.float64), noise_net().double()
    sampling = FlowSampling(noise_method=method, joint_logprob=joint, num_steps=2)
    noise = torch.randn(2, 2, 3, generator=seeded(0), dtype=torch.float64)
    with torch.no_grad():
        chain = sample_chain(field, noise, sampling, noise_level=0.5, train=True, spread=spread, generator=seeded(1))

    def logprob(weight):
        def other(x, time):
            return torch.func.functional_call(field, {"weight": weight}, (x, time))

        return score_chain(other, chain.states, chain.index, chain.level, sampling, spread=spread).logprob

    assert torch.autograd.gradcheck(logprob, (field.weight,))


def test_learned_noise_needs_its_network():
    with pytest.raises(ConfigError, match="needs a noise network"):
        sample(FlowSampling(noise_method="flow_noise"))


def test_learned_noise_stays_in_its_bounds():
    net = noise_net()
    for size in (1.0, 100.0):
        std = net(size * torch.randn(50, 2, 3, generator=seeded(0)))
        assert 0.08 - 1e-6 <= std.min().item() <= std.max().item() <= 0.16 + 1e-6


def test_what_an_evaluation_starts_from():
    def start(sampling, train):
        return initial_noise((2, 3, 4), sampling, train=train, generator=seeded(0), device=torch.device("cpu"))

    assert (start(FlowSampling(), False) == 0).all()
    assert (start(FlowSampling(eval_noise="sample"), False) == start(FlowSampling(), True)).all()


def test_what_counts_of_a_chain():
    x = torch.arange(24.0).view(1, 4, 6)
    cut = {"steps": 2, "size": 3}
    torch.testing.assert_close(of_decision(x, **cut, level="token_level"), x[:, :2, :3])
    torch.testing.assert_close(of_decision(x, **cut, level="action_level"), torch.tensor([[3.0, 21.0]]))
    torch.testing.assert_close(of_decision(x, **cut, level="chunk_level"), torch.tensor([24.0]))
    torch.testing.assert_close(of_decision(x, **cut, level="chunk_level", density="chain"), torch.tensor([276.0]))
    with pytest.raises(ConfigError, match="has no token_level"):
        of_decision(x, **cut, level="token_level", density="chain")
