from dataclasses import replace

import numpy as np
import pytest
import torch
from bandits import improve
from draws import batch_of, seeded

from rlinf.core import Batch, Credit, Trajectory
from rlinf.core.capabilities import HasSFTLoss
from rlinf.core.errors import ConfigError, ShapeError
from rlinf.core.testing.policy import PolicyContract
from rlinf.models.lora import LoRAConfig
from rlinf.models.openvla import OpenVLAPolicyConfig

HOT = {"temperature": 1.7, "top_k": 9, "num_action_chunks": 2}


def naive(policy, decision, row):
    """Log-probabilities of a row's tokens, and its value: one sequence without padding, cache or positions of ours."""
    context = {key: leaf[row : row + 1] for key, leaf in decision.context.items()}
    prompt = context["prompt_tokens"][:, context["prompt_mask"][0]]
    pixels = (context["main_images"].float() / 255 - 0.5) / 0.5
    pixels = pixels.permute(0, 3, 1, 2).repeat(1, 2, 1, 1)
    text = policy.vlm.embed_tokens(torch.cat([prompt, context["action_tokens"]], dim=1))
    whole = torch.cat([text[:, :1], policy.vlm.embed_images(pixels), text[:, 1:]], dim=1)
    out = policy.vlm.language_model(inputs_embeds=whole, output_hidden_states=True)
    count = context["action_tokens"].shape[1]
    logits = out.logits[0, -count - 1 : -1] / policy.config.temperature
    allowed = torch.full_like(logits, -torch.inf)
    allowed[:, policy.bins.first : policy.bins.vocabulary] = 0
    logits = logits + allowed
    if policy.config.top_k:
        kth = logits.sort(dim=-1, descending=True).values[:, policy.config.top_k - 1 : policy.config.top_k]
        logits = torch.where(logits < kth, -torch.inf, logits)
    logprobs = logits.log_softmax(-1)
    return logprobs, policy.value_head(out.hidden_states[-1][0, -count - 1])


@pytest.mark.parametrize("fields", [{}, HOT], ids=["plain", "hot"])
def test_generation_with_the_cache_is_what_one_pass_says(build, observe, fields):
    policy = build(logprob_type="token_level", **fields)
    decision = policy.predict_action_batch(observe(), generator=seeded(1))
    evaluation = policy.default_forward(batch_of(decision))
    torch.testing.assert_close(evaluation.logprob[:, 0], decision.logprob, atol=1e-5, rtol=0)
    torch.testing.assert_close(evaluation.value[:, 0], decision.value, atol=1e-5, rtol=0)
    for row in range(3):
        logprobs, value = naive(policy, decision, row)
        tokens = decision.context["action_tokens"][row]
        taken = logprobs.gather(-1, tokens[:, None])[:, 0]
        torch.testing.assert_close(decision.logprob[row].flatten(), taken, atol=1e-5, rtol=0)
        torch.testing.assert_close(decision.value[row], value, atol=1e-5, rtol=0)
        p = logprobs.exp()
        entropy = -(p * logprobs.clamp_min(-100)).sum(-1)
        torch.testing.assert_close(evaluation.entropy[row, 0].flatten(), entropy, atol=1e-5, rtol=0)


def test_greedy_is_the_argmax_of_one_pass(build, observe):
    policy = build(num_action_chunks=2)
    decision = policy.predict_action_batch(observe(), "eval")
    for row in range(3):
        logprobs, _ = naive(policy, decision, row)
        assert torch.equal(logprobs.argmax(-1), decision.context["action_tokens"][row])


def test_padding_and_neighbours_change_nothing(build, observe):
    policy = build()
    together = policy.predict_action_batch(observe(), "eval")
    for row in range(3):
        alone = policy.predict_action_batch({key: leaf[row : row + 1] for key, leaf in observe().items()}, "eval")
        torch.testing.assert_close(alone.logprob, together.logprob[row : row + 1], atol=1e-5, rtol=0)
        assert torch.equal(alone.action, together.action[row : row + 1])
    longer = build(max_prompt_length=90).predict_action_batch(observe(), "eval")
    torch.testing.assert_close(longer.logprob, together.logprob, atol=1e-6, rtol=0)


def test_instruction_picture_and_earlier_tokens_matter(build, observe):
    policy = build(logprob_type="token_level")
    decision = policy.predict_action_batch(observe(), generator=seeded(1))
    before = policy.default_forward(batch_of(decision)).logprob
    for key, change in {"main_images": 255, "prompt_tokens": None, "action_tokens": None}.items():
        changed = {name: leaf.clone() for name, leaf in decision.context.items()}
        if key == "main_images":
            changed[key].fill_(change)
        elif key == "prompt_tokens":
            changed[key][:, -3] += 1
        else:
            changed[key][:, 0] = policy.bins.first + (changed[key][:, 0] - policy.bins.first + 1) % policy.bins.count
        batch = batch_of(decision)
        for name, leaf in changed.items():
            batch.trajectory.context[name] = leaf[:, None]
        after = policy.default_forward(batch).logprob
        assert not torch.allclose(before[..., 1:], after[..., 1:], atol=1e-4), key


def test_levels_are_sums(build, observe):
    found = {}
    for level in ("token_level", "action_level", "chunk_level"):
        policy = build(num_action_chunks=2, logprob_type=level)
        found[level] = policy.predict_action_batch(observe(), generator=seeded(3)).logprob
    assert found["token_level"].shape == (3, 2, 3)
    torch.testing.assert_close(found["token_level"].sum(2), found["action_level"])
    torch.testing.assert_close(found["action_level"].sum(1), found["chunk_level"])


def test_actions_are_in_the_units_of_the_environment(build, observe, spec):
    policy = build(n_action_bins=256)
    decision = policy.predict_action_batch(observe(64), generator=seeded(0))
    low, high = torch.from_numpy(spec.action.low), torch.from_numpy(spec.action.high)
    assert (decision.action >= low).all()
    assert (decision.action <= high).all()
    bins = policy.bins.decode(decision.context["action_tokens"]).view(64, 1, 3)
    torch.testing.assert_close(decision.action, low + (bins + 1) / 2 * (high - low))
    assert decision.action[..., 2].max() > 1.5


def test_evaluation_at_a_temperature(build, observe):
    policy = build(temperature_eval=0.6)
    one, other = (policy.predict_action_batch(observe(), "eval", generator=seeded(seed)) for seed in (1, 2))
    assert not torch.equal(one.action, other.action)
    assert one.context["temperature"].tolist() == pytest.approx([0.6] * 3)
    torch.testing.assert_close(policy.default_forward(batch_of(one)).logprob[:, 0], one.logprob, atol=1e-5, rtol=0)
    cooler = policy.predict_action_batch(observe(256), "eval", generator=seeded(1)).logprob.mean()
    assert cooler > policy.predict_action_batch(observe(256), generator=seeded(1)).logprob.mean()


def test_contract_with_everything_warm(build, spec):
    policy = build(**HOT, logprob_type="token_level")
    PolicyContract(policy=policy, spec=spec, as_array=torch.as_tensor, generator=seeded).run()


@pytest.mark.slow
def test_contract_in_bfloat16(build, spec):
    policy = build(logprob_type="chunk_level", precision="bf16")
    PolicyContract(policy=policy, spec=spec, as_array=torch.as_tensor, generator=seeded, tolerance=0.1).run()


def test_bfloat16_agrees_roughly(build, observe):
    policy = build(precision="bf16")
    plain, rounded = (p.vlm.language_model.model.rotary_emb.inv_freq for p in (build(), policy))
    assert torch.equal(plain, rounded), "angles stay in float32"
    decision = policy.predict_action_batch(observe(), generator=seeded(1))
    assert decision.logprob.dtype == decision.value.dtype == torch.float32
    torch.testing.assert_close(policy.default_forward(batch_of(decision)).logprob[:, 0], decision.logprob, atol=0.1, rtol=0)


def test_lora_changes_nothing_at_first_and_trains_little(build, observe):
    plain, adapted = build(), build(lora=LoRAConfig(rank=4), add_value_head=True)
    one, other = (policy.predict_action_batch(observe(), generator=seeded(1)) for policy in (plain, adapted))
    torch.testing.assert_close(one.logprob, other.logprob, atol=1e-5, rtol=0)
    trained = [name for name, parameter in adapted.named_parameters() if parameter.requires_grad]
    assert all("lora_" in name or name.startswith("value_head.") for name in trained)
    assert any("language_model" in name for name in trained)
    evaluation = adapted.default_forward(batch_of(other))
    (evaluation.logprob.sum() + evaluation.value.sum()).backward()
    assert all(dict(adapted.named_parameters())[name].grad is not None for name in trained)


def test_frozen_vision_and_no_critic(build, observe):
    policy = build(freeze_vision=True, add_value_head=False)
    decision = policy.predict_action_batch(observe(), generator=seeded(1))
    assert decision.value is None
    frozen = {name.split(".")[1] for name, parameter in policy.named_parameters() if not parameter.requires_grad}
    assert frozen == {"vision_backbone"}


def test_imitation(build, observe, spec):
    policy = build(n_action_bins=32)
    assert isinstance(policy, HasSFTLoss)
    obs, random = observe(), np.random.default_rng(0)
    action = random.uniform(spec.action.low, spec.action.high, (3, 1, 3)).astype(np.float32)
    first = policy.sft_loss(obs, action)
    assert first.weight.item() == 9
    assert first.metrics["sft_loss"].mean == pytest.approx(first.total.item() / 9)
    optimizer = torch.optim.Adam(policy.parameters(), lr=3e-3)
    for _ in range(25):
        out = policy.sft_loss(obs, action)
        optimizer.zero_grad()
        (out.total / out.weight).backward()
        optimizer.step()
    assert out.total < 0.05 * first.total
    shown = policy.predict_action_batch(obs, "eval").action
    assert np.abs(shown.numpy() - action).max() <= 2.0 / 31 + 1e-5


def test_imitation_ignores_what_is_masked(build, observe):
    policy = build(num_action_chunks=2)
    action = torch.zeros(3, 2, 3)
    mask = torch.tensor([[True, True], [True, False], [True, False]])
    other = torch.where(mask[..., None], action, 0.4)
    one, same = (policy.sft_loss(observe(), a, mask=mask) for a in (action, other))
    torch.testing.assert_close(one.total, same.total)
    assert one.weight.item() == 12
    with pytest.raises(ShapeError, match=r"sft_loss\(action\): expected \(3, 2, 3\), found \(3, 1, 3\)"):
        policy.sft_loss(observe(), action[:, :1])


def climbs(build, observe, *, shuffle):
    """By how much twelve steps of REINFORCE raise the mean of the first action."""
    policy, obs = build(num_action_chunks=1, n_action_bins=16, freeze_vision=True), observe(96)

    def reinforce(policy, decision, advantage):
        return -(advantage * policy.default_forward(batch_of(decision)).logprob[:, 0, 0]).mean()

    means = improve(policy, lambda _: obs, seeded(0), lr=2e-3, iterations=13, updates=1, shuffle=shuffle, loss=reinforce)
    return means[-1] - means[0]


def test_a_bandit_is_learnt(build, observe):
    assert climbs(build, observe, shuffle=False) > 0.4


@pytest.mark.slow
def test_shuffled_advantages_teach_nothing(build, observe):
    assert abs(climbs(build, observe, shuffle=True)) < 0.3


def test_missing_things_are_named(build, observe, spec):
    policy = build()
    with pytest.raises(ShapeError, match=r"expected the keys 'main_images' and 'task_descriptions', found \['states'\]"):
        policy.predict_action_batch({"states": np.zeros((1, 4))})
    with pytest.raises(ShapeError, match=r"found .*3.* and 2"):
        policy.predict_action_batch(observe() | {"task_descriptions": np.array(["a", "b"])})
    for fields, place in [
        ({}, "preset"),
        ({"preset": "tiny", "model_path": "x"}, "preset"),
        ({"preset": "tiny", "temperature": 0.0}, "temperature"),
        ({"preset": "tiny", "top_k": -1}, "top_k"),
        ({"preset": "tiny", "num_action_chunks": 0}, "num_action_chunks"),
    ]:
        with pytest.raises(ConfigError, match=place):
            OpenVLAPolicyConfig(**fields).build(spec, seed=0)


def test_building_leaves_the_global_generator_alone(build):
    torch.manual_seed(5)
    expected = torch.rand(1)
    torch.manual_seed(5)
    one, same, other = build(seed=1), build(seed=1), build(seed=2)
    assert torch.equal(torch.rand(1), expected)
    weights = [policy.weights().tensors for policy in (one, same, other)]
    assert all(torch.equal(weights[0][name], weights[1][name]) for name in weights[0])
    assert not torch.equal(weights[0]["vlm.projector.fc1.weight"], weights[2]["vlm.projector.fc1.weight"])


def test_pictures_of_another_size(build, observe):
    for crop in (False, True):
        decision = build(center_crop=crop).predict_action_batch(observe(size=48), "eval")
        assert decision.context["main_images"].shape == (3, 32, 32, 3)
        assert decision.context["main_images"].dtype == torch.uint8


def test_batches_are_scored_by_rows(build, observe):
    policy = build()
    batch: Batch = batch_of(policy.predict_action_batch(observe(4), generator=seeded(0)))
    whole = policy.default_forward(batch).logprob
    torch.testing.assert_close(whole[:2], policy.default_forward(batch.rows(slice(0, 2))).logprob, atol=1e-5, rtol=0)


def joined_steps(one, other):
    if isinstance(one, dict):
        return {key: torch.cat([one[key], other[key]], dim=1) for key in one}
    return torch.cat([one, other], dim=1)


def test_padding_of_a_trajectory_is_harmless(build, observe):
    policy = build()
    parts = [batch_of(policy.predict_action_batch(observe(2), generator=seeded(seed))).trajectory for seed in range(3)]
    columns = {"context", "action", "logprob", "reward", "terminated", "truncated", "mask", "version"}
    longer = {name: joined_steps(getattr(parts[0], name), getattr(parts[1], name)) for name in columns}
    trajectory = Trajectory.concat([replace(parts[0], **longer), parts[2]])
    assert not trajectory.mask.all()
    evaluation = policy.default_forward(Batch(trajectory=trajectory, credit=Credit(advantage=trajectory.reward)))
    used = trajectory.mask
    torch.testing.assert_close(evaluation.logprob[used], trajectory.logprob[used], atol=1e-5, rtol=0)
    (evaluation.logprob[used].sum() + evaluation.value[used].sum()).backward()
    assert all(p.grad is None or p.grad.isfinite().all() for p in policy.parameters())


def test_actions_without_finite_bounds_are_not_normalised(spec, observe):
    high = np.array([1.0, np.inf, 2.0], np.float32)
    endless = replace(spec, action=replace(spec.action, high=high))
    policy = OpenVLAPolicyConfig(preset="tiny", n_action_bins=32).build(endless, seed=0)
    action = policy.predict_action_batch(observe(), "eval").action
    assert torch.as_tensor(action).abs().max() <= 1
