import math

import pytest
import reference
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from rlinf.algorithms.objectives import dsrl, imitation, rlpd
from rlinf.core.errors import ConfigError, ShapeError

LOGPROB = torch.tensor([[-1.0, -3.0], [-5.0, -7.0]])


def seeded(seed=0):
    return torch.Generator().manual_seed(seed)


def test_cloning_by_hand():
    assert imitation.bc_loss(LOGPROB[:, 0]).total.item() == 6.0
    # means 2 and 6
    assert imitation.bc_loss(LOGPROB).total.item() == 8.0
    some = imitation.bc_loss(LOGPROB, executed=torch.tensor([[True, False], [True, True]]))
    assert (some.total.item(), some.weight.item(), some.metrics["bc_loss"].mean) == (7.0, 2.0, 3.5)
    human = imitation.bc_loss(LOGPROB, executed=torch.tensor([[False, False], [False, True]]))
    assert (human.total.item(), human.weight.item()) == (7.0, 1.0)


def test_distances_by_hand():
    action, data = torch.tensor([[[1.0, 2.0], [3.0, 4.0]]]), torch.tensor([[[1.0, 0.0], [0.0, 0.0]]])
    # 0, 2, 3, 4
    assert imitation.action_loss(action, data).total.item() == 29 / 4
    assert imitation.action_loss(action, data, norm="l1").total.item() == 9 / 4
    first = torch.tensor([[True, False]])
    assert imitation.action_loss(action, data, executed=first).total.item() == 2.0
    assert imitation.action_loss(action, data, executed=first, norm="l1").total.item() == 1.0


@pytest.mark.parametrize("chunk", [(2,), (2, 3), (5, 1)])
def test_neither_k_nor_a_enters_the_size(chunk):
    logprob = torch.tensor([-1.0, -2.5])
    fine = logprob.reshape(2, *[1] * len(chunk)).expand(2, *chunk)
    steps = torch.ones(2, chunk[0], dtype=torch.bool)
    expected = imitation.bc_loss(logprob)
    for found in (imitation.bc_loss(fine), imitation.bc_loss(fine, executed=steps)):
        assert (found.total.item(), found.weight.item()) == (pytest.approx(expected.total.item()), 2.0)


def test_garbage_in_steps_that_were_not_executed_stays_out():
    leaves = [torch.randn(2, 2, 3, generator=seeded(i)) for i in range(2)]
    for leaf in leaves:
        leaf[:, 1] = math.nan
        leaf.requires_grad_()
    executed = torch.tensor([[True, False], [True, False]])
    losses = imitation.action_loss(*leaves, executed=executed), imitation.bc_loss(leaves[0], executed=executed)
    (losses[0].total + losses[1].total).backward()
    assert all(math.isfinite(x.total.item()) and math.isfinite(x.metrics["bc_loss"].mean) for x in losses)
    assert all(leaf.grad.isfinite().all() and not leaf.grad[:, 1].any() for leaf in leaves)


def test_hg_dagger_learns_from_what_a_human_did():
    intervened = torch.tensor([[True, True], [False, True]])
    executed = torch.tensor([[True, False], [True, True]])
    assert imitation.hg_dagger_mask(intervened).tolist() == intervened.tolist()
    expected = [[True, False], [False, True]]
    assert imitation.hg_dagger_mask(intervened, executed=executed).tolist() == expected
    assert reference.hg_dagger_mask(intervened.tolist(), executed=executed.tolist()) == expected
    assert imitation.hg_dagger_mask(intervened.int(), executed=executed.int()).dtype == torch.bool


@pytest.mark.parametrize(
    ("step", "words", "expected"),
    [
        (0, {}, 0.5),
        (1, {}, 0.495),
        (1000, {}, 0.05),
        (3, {"initial": 1.0, "decay": 0.5, "minimum": 0.0}, 0.125),
        (2, {"initial": 0.0}, 0.05),
        (0, {"decay": 0.0, "minimum": 0.0}, 0.5),
        (1, {"decay": 0.0, "minimum": 0.0}, 0.0),
    ],
)
def test_the_expert_acts_less_and_less(step, words, expected):
    assert imitation.expert_share(step, **words) == pytest.approx(expected) == reference.expert_share(step, **words)


@pytest.mark.parametrize("share", [0.0, 0.3, 1.0])
def test_the_expert_acts_in_its_share_of_rows(share):
    mask = imitation.expert_mask(500, share=share, generator=seeded(2))
    draw = torch.rand(500, generator=seeded(2), dtype=torch.float64)
    assert mask.tolist() == reference.expert_mask(500, share=share, draw=draw.tolist())
    assert mask.double().mean().item() == pytest.approx(share, abs=0.06)


@pytest.mark.parametrize("shape", [(3,), (3, 2), (3, 2, 4)])
def test_mixed_actions_are_whole_rows(shape):
    expert, learner = torch.randn(2, *shape, generator=seeded())
    mask = torch.tensor([True, False, True])
    found = imitation.mixed_action(expert, learner, mask)
    assert found.tolist() == reference.mixed_action(expert.tolist(), learner.tolist(), mask.tolist())
    assert torch.equal(found[1], learner[1])
    assert torch.equal(found[0], expert[0])


@pytest.mark.parametrize(
    ("batch", "fraction", "expected"),
    [
        (8, 0.5, (4, 4)),
        (7, 0.5, (4, 3)),
        (1, 0.5, (1, 0)),
        (10, 0.3, (7, 3)),
        (10, 0.0, (10, 0)),
        (10, 1.0, (0, 10)),
        (10, 0.29, (8, 2)),
        (100, 0.29, (71, 29)),
    ],
)
def test_the_odd_row_is_experience(batch, fraction, expected):
    assert rlpd.symmetric_sizes(batch, demo_fraction=fraction) == expected
    assert reference.symmetric_sizes(batch, demo_fraction=fraction) == expected


@settings(max_examples=40)
@given(st.integers(0, 10_000), st.integers(1, 8), st.integers(1, 8), st.integers(1, 12), st.sampled_from([0.0, 0.25, 0.5, 1.0]))
def test_indices_equal_the_reference_and_repeat_only_where_they_must(seed, num_online, num_demo, batch, fraction):
    words = {"demo_fraction": fraction}
    found = rlpd.symmetric_indices(num_online, num_demo, batch, **words, generator=seeded(seed))
    sizes = rlpd.symmetric_sizes(batch, **words)
    g = seeded(seed)
    draw = [
        torch.rand(available if wanted <= available else wanted, generator=g, dtype=torch.float64).tolist()
        for available, wanted in zip((num_online, num_demo), sizes, strict=True)
    ]
    expected = reference.symmetric_indices(num_online, num_demo, batch, **words, draw=draw)
    for index, wanted, available, size in zip(found, expected, (num_online, num_demo), sizes, strict=True):
        assert index.tolist() == wanted
        assert index.dtype == torch.int64
        assert len(index) == size
        assert all(0 <= i < available for i in wanted)
        assert size > available or len(set(wanted)) == size


def test_every_row_is_as_likely():
    counts = torch.zeros(2, 5)
    g = seeded(3)
    for _ in range(400):
        few, many = rlpd.symmetric_indices(5, 5, 8, demo_fraction=0.75, generator=g)
        counts[0] += torch.bincount(few, minlength=5)
        counts[1] += torch.bincount(many, minlength=5)
    assert (counts[0] / 400 - 2 / 5).abs().max() < 0.1
    assert (counts[1] / 400 - 6 / 5).abs().max() < 0.2


def test_a_batch_is_experience_then_demonstrations():
    online = {"obs": {"state": torch.arange(4.0)[:, None]}, "reward": torch.arange(4.0)}
    demo = {"obs": {"state": 10 + torch.arange(3.0)[:, None]}, "reward": 10 + torch.arange(3.0)}
    batch, is_demo = rlpd.symmetric_batch(online, demo, 5, generator=seeded())
    assert is_demo.tolist() == [False, False, False, True, True]
    assert torch.equal(batch["obs"]["state"][:, 0], batch["reward"])
    assert torch.equal(batch["reward"] >= 10, is_demo)
    chosen = rlpd.symmetric_indices(4, 3, 5, generator=seeded())
    lists = online["reward"].tolist(), demo["reward"].tolist()
    assert (
        reference.symmetric_batch({"r": lists[0]}, {"r": lists[1]}, [x.tolist() for x in chosen])["r"] == batch["reward"].tolist()
    )
    single, _ = rlpd.symmetric_batch(torch.zeros(4), torch.ones(3), 6, demo_fraction=1 / 3, generator=seeded())
    assert single.tolist() == [0, 0, 0, 0, 1, 1]


def test_chunks_are_discounted_by_their_steps():
    assert dsrl.chunk_discount(0.5, 1) == 0.5
    assert dsrl.chunk_discount(0.5, 3) == 0.125 == reference.chunk_discount(0.5, 3)
    assert dsrl.chunk_discount(0.5, torch.tensor([1, 2])).tolist() == [0.5, 0.25]
    # In float64, like a number: float32 would be off in the eighth digit.
    found = dsrl.chunk_discount(0.99, torch.tensor([1, 50], dtype=torch.int32))
    assert (found.dtype, found.tolist()) == (torch.float64, pytest.approx([0.99, 0.99**50], rel=1e-14))


def test_dsrl_target_by_hand():
    """1 + 0.25 (mean(2, 4) + 0.5) after two steps, and 1 where the task ended."""
    reward, ended, q = torch.ones(2), torch.tensor([False, True]), torch.tensor([[2.0, 4.0], [6.0, 8.0]])
    logprob = torch.tensor([-1.0, -1.0])
    words = {"gamma": 0.5, "alpha": 0.5}
    assert dsrl.dsrl_target(reward, ended, q, logprob, steps=2, **words).tolist() == [1.875, 1.0]
    steps = torch.tensor([1, 2])
    options = {"aggregate": "min", "bootstrap": "always", "backup_entropy": False, "subset": [1]}
    found = dsrl.dsrl_target(reward, ended, q, logprob, steps=steps, **words, **options)
    assert (found.tolist(), found.dtype) == ([3.0, 3.0], torch.float32)
    lists = [x.tolist() for x in (reward, ended, q, logprob)]
    assert reference.dsrl_target(*lists, steps=[1, 2], **words, **options) == [3.0, 3.0]
    assert reference.dsrl_target(*lists, steps=2, **words) == [1.875, 1.0]


@settings(max_examples=20)
@given(st.integers(0, 10_000), st.floats(0.1, 3))
def test_bounded_noise_equals_the_reference(seed, bound):
    raw = torch.randn(3, 2, generator=seeded(seed), dtype=torch.float64)
    logprob = torch.randn(3, generator=seeded(seed), dtype=torch.float64)
    noise, density = dsrl.bounded_noise(raw, logprob, bound=bound)
    expected = reference.bounded_noise(raw.tolist(), logprob.tolist(), bound=bound)
    torch.testing.assert_close(noise, torch.tensor(expected[0], dtype=torch.float64))
    torch.testing.assert_close(density, torch.tensor(expected[1], dtype=torch.float64))


def test_bounded_noise_is_a_density_and_survives_the_bound():
    """∫ π(w) dw = 1 on a fine grid of a uniform w; far out, log(1 − tanh² u) is 2 log 2 − 2 |u|."""
    w = (torch.arange(20_000, dtype=torch.float64) + 0.5) / 10_000 - 1
    raw = w.atanh()[:, None]
    _, density = dsrl.bounded_noise(raw, -0.5 * raw[:, 0].square() - 0.5 * math.log(2 * math.pi), bound=2.0)
    assert (density.exp().mean() * 4).item() == pytest.approx(1.0, abs=1e-4)
    noise, far = dsrl.bounded_noise(torch.tensor([[40.0, -40.0]]), torch.zeros(1))
    assert noise.tolist() == [[1.0, -1.0]]
    assert far.item() == pytest.approx(160 - 4 * math.log(2.0))
    assert dsrl.bounded_noise(torch.zeros(2, 3, 4).bfloat16(), torch.zeros(2))[0].dtype == torch.float32


def test_noise_critics_by_hand():
    """Teacher mean(1, 3) = 2 against 4 and 1: ½ (4 + 1); teacher min 1: ½ (9 + 0)."""
    q, teacher = torch.tensor([[4.0, 1.0]]), torch.tensor([[1.0, 3.0]])
    assert dsrl.noise_critic_loss(q, teacher).total.item() == 2.5
    assert dsrl.noise_critic_loss(q, teacher, aggregate="min").total.item() == 4.5


BOOL = torch.ones(2, 2, dtype=torch.bool)


@pytest.mark.parametrize(
    ("call", "error", "message"),
    [
        (lambda: imitation.bc_loss(torch.zeros(2), executed=BOOL), ShapeError, r"bc_loss\(executed\): expected None"),
        (lambda: imitation.bc_loss(LOGPROB, executed=BOOL[:1]), ShapeError, r"bc_loss\(executed\)"),
        (lambda: imitation.bc_loss(torch.zeros(())), ShapeError, r"bc_loss\(logprob\)"),
        (lambda: imitation.action_loss(LOGPROB, LOGPROB, norm="l3"), ConfigError, r"action_loss\(norm\)"),
        (lambda: imitation.action_loss(LOGPROB, LOGPROB[:1]), ShapeError, r"action_loss\(action_data\)"),
        (lambda: imitation.action_loss(LOGPROB[0], LOGPROB[0]), ShapeError, r"action_loss\(action\)"),
        (lambda: imitation.action_loss(torch.ones(1, 1, 1, 1), torch.ones(1, 1, 1, 1)), ShapeError, r"action_loss\(action\)"),
        (lambda: imitation.hg_dagger_mask(BOOL[0]), ShapeError, r"hg_dagger_mask\(intervened\)"),
        (lambda: imitation.hg_dagger_mask(BOOL, executed=BOOL[:1]), ShapeError, r"hg_dagger_mask\(executed\)"),
        (lambda: imitation.expert_share(-1), ConfigError, r"expert_share\(step\)"),
        (lambda: imitation.expert_share(0, decay=1.1), ConfigError, r"expert_share\(decay\)"),
        (lambda: imitation.expert_share(0, minimum=-0.1), ConfigError, r"expert_share\(minimum\)"),
        (lambda: imitation.expert_mask(2, share=1.1, generator=seeded()), ConfigError, r"expert_mask\(share\)"),
        (lambda: imitation.expert_mask(2, share=-0.1, generator=seeded()), ConfigError, r"expert_mask\(share\)"),
        (lambda: imitation.mixed_action(LOGPROB, LOGPROB[:1], BOOL[0]), ShapeError, r"mixed_action\(learner\)"),
        (lambda: imitation.mixed_action(LOGPROB, LOGPROB, BOOL), ShapeError, r"mixed_action\(mask\)"),
        (lambda: imitation.mixed_action(LOGPROB, LOGPROB, BOOL[0, :1]), ShapeError, r"mixed_action\(expert\)"),
        (lambda: rlpd.symmetric_sizes(0), ConfigError, r"symmetric_sizes\(batch_size\)"),
        (lambda: rlpd.symmetric_sizes(2, demo_fraction=1.1), ConfigError, r"symmetric_sizes\(demo_fraction\)"),
        (lambda: rlpd.symmetric_sizes(2, demo_fraction=-0.1), ConfigError, r"symmetric_sizes\(demo_fraction\)"),
        (lambda: rlpd.symmetric_indices(0, 1, 2, generator=seeded()), ConfigError, r"symmetric_indices\(num_online\)"),
        (lambda: rlpd.symmetric_indices(1, 0, 2, generator=seeded()), ConfigError, r"symmetric_indices\(num_demo\)"),
        (lambda: rlpd.symmetric_batch({"a": BOOL}, {"b": BOOL}, 2, generator=seeded()), ShapeError, r"symmetric_batch\(demo\)"),
        (lambda: rlpd.symmetric_batch({"a": BOOL, "b": BOOL[:1]}, BOOL, 2, generator=seeded()), ShapeError, r"\(online\)"),
        (lambda: dsrl.chunk_discount(0.9, 0), ConfigError, r"chunk_discount\(steps\)"),
        (lambda: dsrl.chunk_discount(1.1, 1), ConfigError, r"chunk_discount\(gamma\)"),
        (lambda: dsrl.bounded_noise(LOGPROB, LOGPROB), ShapeError, r"bounded_noise\(logprob\)"),
        (lambda: dsrl.bounded_noise(LOGPROB, LOGPROB[0], bound=0.0), ConfigError, r"bounded_noise\(bound\)"),
        (
            lambda: dsrl.dsrl_target(LOGPROB[0], BOOL[0], LOGPROB, LOGPROB[0], gamma=0.9, steps=torch.ones(3), alpha=0.1),
            ShapeError,
            r"dsrl_target\(steps\)",
        ),
    ],
)
def test_what_is_wrong_is_named(call, error, message):
    with pytest.raises(error, match=message):
        call()


def test_an_empty_buffer_that_gives_nothing_is_fine():
    online, demo = rlpd.symmetric_indices(3, 0, 2, demo_fraction=0.0, generator=seeded())
    assert (len(online), len(demo)) == (2, 0)
