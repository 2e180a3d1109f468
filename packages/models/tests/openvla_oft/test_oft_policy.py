"""The OpenVLA-OFT policy: what is sampled is scored the same, whatever stands beside it in the batch."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from draws import batch_of

from rlinf.core.data import EnvSpec
from rlinf.core.errors import ConfigError, ShapeError
from rlinf.core.testing.policy import PolicyContract
from rlinf.models.lora import LoRAConfig
from rlinf.models.openvla_oft import OpenVLAOFTPolicyConfig

EVERYTHING: dict[str, Any] = {"use_proprio": True, "use_film": True, "num_images_in_input": 4}
VARIANTS: dict[str, dict[str, Any]] = {
    "discrete": {"logprob_type": "token_level"},
    "l1": {"action_head": "l1", "logprob_type": "token_level"},
    "discrete, everything": {"temperature": 1.6, "top_k": 20, **EVERYTHING},
    "l1, everything, adapters": {"action_head": "l1", "lora": LoRAConfig(rank=2), "logprob_type": "token_level", **EVERYTHING},
}


@pytest.fixture(scope="module", params=list(VARIANTS))
def policy(request: Any, build: Any) -> Any:
    return build(**VARIANTS[request.param])


def generator(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def scores(policy: Any, batch: Any) -> Any:
    with torch.no_grad():
        return policy.default_forward(batch)


@pytest.mark.parametrize("variant", ["l1", "discrete, everything"])
def test_the_contract(build: Any, spec: EnvSpec, variant: str) -> None:
    policy = build(**VARIANTS[variant])
    observed = PolicyContract(policy=policy, spec=spec, as_array=torch.as_tensor, generator=generator)
    assert len(observed.run()) > 10


@pytest.mark.parametrize("rows", [1, 3, 7])
@pytest.mark.parametrize("mode", ["train", "eval"])
def test_scored_as_sampled(policy: Any, observe: Any, rows: int, mode: Any) -> None:
    decisions = [policy.predict_action_batch(observe(rows, t), mode, generator=generator(t)) for t in range(2)]
    found = scores(policy, batch_of(*decisions))
    assert torch.allclose(found.logprob, torch.stack([d.logprob for d in decisions], 1), atol=1e-5)
    assert torch.allclose(found.value, torch.stack([d.value for d in decisions], 1), atol=1e-5)


def test_neighbours_and_padding_change_nothing(policy: Any, observe: Any) -> None:
    observation = observe(4)
    together = policy.predict_action_batch(observation, generator=generator())
    for row in range(4):
        alone = batch_of(together).rows(slice(row, row + 1))
        assert torch.allclose(scores(policy, alone).logprob[0, 0], together.logprob[row], atol=1e-5)


def test_padded_decisions_are_scored_with_finite_numbers(policy: Any, observe: Any) -> None:
    decision = policy.predict_action_batch(observe(2), generator=generator())
    batch = batch_of(decision, decision)
    for leaf in batch.trajectory.context.values():
        leaf[:, 1] = 0
    found = scores(policy, batch)
    assert torch.allclose(found.logprob[:, 0], decision.logprob, atol=1e-5)
    assert found.logprob.isfinite().all()
    assert found.value.isfinite().all()


def test_more_room_for_prompts_changes_nothing(build: Any, observe: Any) -> None:
    short, long = (build(max_prompt_length=length, **EVERYTHING) for length in (40, 90))
    one, other = (p.predict_action_batch(observe(4), generator=generator()) for p in (short, long))
    assert torch.allclose(one.logprob, other.logprob, atol=1e-5)
    assert torch.equal(one.action, other.action)


def test_every_camera_has_its_place(build: Any, observe: Any) -> None:
    policy = build(num_images_in_input=4)
    observation = observe(2)
    swapped = {**observation, "main_images": observation["wrist_images"], "wrist_images": observation["main_images"]}
    turned = {**observation, "extra_view_images": observation["extra_view_images"][:, ::-1].copy()}
    value = policy.predict_action_batch(observation, "eval").value
    for other in (swapped, turned):
        assert (policy.predict_action_batch(other, "eval").value - value).abs().min() > 1e-4


@pytest.mark.parametrize("key", ["main_images", "wrist_images", "extra_view_images", "states", "task_descriptions"])
def test_everything_that_is_asked_for_matters(build: Any, observe: Any, key: str) -> None:
    policy, observation = build(**EVERYTHING), observe(1)
    changed = {**observation, key: observe(1, seed=1)[key]}
    first, second = (policy.predict_action_batch(o, "eval").value for o in (observation, changed))
    assert (first - second).abs().item() > 1e-4


@pytest.mark.parametrize("key", ["wrist_images", "extra_view_images", "states"])
def test_nothing_else_is_read(build: Any, observe: Any, key: str) -> None:
    policy, observation = build(), observe(2)
    fewer = {name: leaf for name, leaf in observation.items() if name != key}
    first, second = (policy.predict_action_batch(o, "eval").value for o in (observation, fewer))
    assert torch.equal(first, second)


def test_the_language_reaches_the_pictures_through_film(build: Any, observe: Any) -> None:
    silent, fresh, stirred = build(), build(use_film=True, stir=False), build(use_film=True)
    values = [p.predict_action_batch(observe(3), "eval").logprob for p in (silent, fresh, stirred)]
    assert torch.allclose(values[0], values[1], atol=1e-6)
    assert (values[0] - values[2]).abs().max() > 1e-3


def test_temperature_is_in_both(build: Any, observe: Any) -> None:
    cold, hot = build(logprob_type="token_level"), build(temperature=4.0, logprob_type="token_level")
    decision = hot.predict_action_batch(observe(64), generator=generator())
    scored_hot, scored_cold = (scores(p, batch_of(decision)) for p in (hot, cold))
    assert torch.allclose(scored_hot.logprob[:, 0], decision.logprob, atol=1e-5)
    assert (scored_cold.logprob - scored_hot.logprob).abs().max() > 0.1
    # E[−log p] over draws is the entropy, if the draws are from p.
    assert abs(-decision.logprob.mean() - scored_hot.entropy.mean()) < 0.05
    assert (scored_cold.entropy < scored_hot.entropy).all()


def test_granularity_only_adds_up(build: Any, observe: Any) -> None:
    levels = ("token_level", "action_level", "chunk_level")
    token, step, chunk = (build(logprob_type=level).predict_action_batch(observe(3), generator=generator()) for level in levels)
    assert token.logprob.shape == (3, 4, 2)
    assert torch.allclose(token.logprob.sum(-1), step.logprob, atol=1e-5)
    assert torch.allclose(token.logprob.sum((1, 2)), chunk.logprob, atol=1e-5)


def test_the_gaussian_against_torch(build: Any, observe: Any) -> None:
    policy = build(action_head="l1", logprob_type="token_level")
    drawn, mean = (policy.predict_action_batch(observe(5), mode, generator=generator()) for mode in ("train", "eval"))
    bound = torch.tensor([1.0, 2.0])
    normal = torch.distributions.Normal(mean.action / bound, policy.decoder.log_std.exp())
    assert torch.allclose(normal.log_prob(drawn.action / bound), drawn.logprob, atol=1e-4)


def test_imitation_of_what_it_does_is_its_own_likelihood(build: Any, observe: Any) -> None:
    policy = build(n_action_bins=16, logprob_type="token_level")
    decision = policy.predict_action_batch(observe(4), generator=generator())
    mask = torch.tensor([[True, True, False, False]] * 4)
    loss = policy.sft_loss(observe(4), decision.action, mask=mask)
    # Cross-entropy is over the whole vocabulary, of which the bins are a part.
    assert loss.weight.item() == 4 * 2 * 2
    assert loss.total.item() >= -decision.logprob[:, :2].sum().item() - 1e-4


def test_the_l1_loss_by_hand(build: Any, observe: Any) -> None:
    policy = build(action_head="l1")
    bound = torch.tensor([1.0, 2.0])
    mean = policy.predict_action_batch(observe(3), "eval").action / bound
    loss = policy.sft_loss(observe(3), (0.3 * bound).expand_as(mean))
    assert loss.total.item() / loss.weight.item() == pytest.approx((mean - 0.3).abs().mean().item(), abs=1e-5)


def test_bfloat16_is_close(build: Any, observe: Any) -> None:
    policy = build(precision="bf16", logprob_type="token_level", **EVERYTHING)
    decision = policy.predict_action_batch(observe(4), generator=generator())
    assert decision.logprob.dtype == torch.float32
    found = scores(policy, batch_of(decision)).logprob[:, 0]
    assert torch.allclose(found, decision.logprob, atol=1e-4)


def test_errors_name_the_way_out(build: Any, observe: Any, spec: EnvSpec) -> None:
    with pytest.raises(ConfigError, match="exactly one of preset and model_path"):
        OpenVLAOFTPolicyConfig()
    with pytest.raises(ConfigError, match="num_action_chunks"):
        OpenVLAOFTPolicyConfig(preset="tiny", num_action_chunks=0)
    with pytest.raises(ConfigError, match="temperature"):
        OpenVLAOFTPolicyConfig(preset="tiny", temperature=0.0)
    few = {key: leaf for key, leaf in observe(2).items() if "images" not in key or key == "main_images"}
    with pytest.raises(ShapeError, match=r"expected 2 pictures .* num_images_in_input"):
        build(num_images_in_input=2).predict_action_batch(few)
    with pytest.raises(ShapeError, match=r"states.*found \(2, 5\)"):
        build(use_proprio=True).predict_action_batch({**few, "states": np.zeros((2, 5), np.float32)})
    with pytest.raises(ShapeError, match="task_descriptions"):
        build().predict_action_batch({"main_images": few["main_images"]})


def test_building_leaves_the_global_generator_alone(build: Any) -> None:
    torch.manual_seed(3)
    expected = torch.rand(2)
    torch.manual_seed(3)
    one, other = (build(action_head="l1", **EVERYTHING).weights().tensors for _ in range(2))
    assert torch.equal(torch.rand(2), expected)
    assert all(torch.equal(one[name], other[name]) for name in one)
