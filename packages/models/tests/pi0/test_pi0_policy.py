import copy
import dataclasses

import numpy as np
import pytest
import torch
from draws import batch_of

from rlinf.core.capabilities import HasExplorationSchedule, HasFlowRegression, HasNoiseSteering, HasSFTLoss, RealTimeChunkingPolicy
from rlinf.core.errors import ConfigError, ShapeError
from rlinf.models.flow import FlowSampling
from rlinf.models.lora import LoRAConfig
from rlinf.models.pi0 import PI0PolicyConfig, PI05PolicyConfig
from rlinf.models.pi0.prompt import state_prompt, task_prompt

BOTH = pytest.mark.parametrize("config", [PI0PolicyConfig, PI05PolicyConfig], ids=["pi0", "pi05"])


@BOTH
@pytest.mark.parametrize("joint", [False, True])
def test_the_prefix_is_read_once(config, joint, spec, obs, counted_calls):
    method = "flow_noise" if joint else "flow_sde"
    policy = config(preset="tiny", sampling=FlowSampling(noise_method=method, joint_logprob=joint)).build(spec, seed=0)
    calls = counted_calls(policy)
    decision = policy.predict_action_batch(obs)
    assert calls == {"prefix": 1, "velocity": 4}
    found = policy.default_forward(batch_of(decision))
    assert calls == {"prefix": 2, "velocity": 8 if joint else 5}
    torch.testing.assert_close(found.logprob[:, 0], decision.logprob, atol=1e-5, rtol=0.0)
    torch.testing.assert_close(found.value[:, 0], decision.value, atol=1e-5, rtol=0.0)


@BOTH
def test_a_masked_camera_is_as_if_it_were_not_there(config, spec, obs, generator):
    policy = config(preset="tiny").build(spec, seed=0)
    seen = policy.predict_action_batch(obs, "eval").action
    masks = np.ones((5, 2), bool)
    masks[2:, 1] = False
    masked = policy.predict_action_batch(obs | {"image_masks": masks}, "eval").action
    alone = policy.predict_action_batch({k: v for k, v in obs.items() if k != "wrist_images"}, "eval").action
    torch.testing.assert_close(masked[:2], seen[:2], atol=1e-5, rtol=0.0)
    torch.testing.assert_close(masked[2:], alone[2:], atol=1e-5, rtol=0.0)
    assert ((alone - seen).abs().amax((1, 2)) > 1e-4).all()
    wrist = obs.pop("wrist_images")
    same = policy.predict_action_batch(obs | {"extra_view_images": wrist[:, None]}, "eval")
    torch.testing.assert_close(same.action, seen)


@BOTH
def test_padding_of_prompts_and_states_says_nothing(config, spec, obs):
    short = config(preset="tiny").build(spec, seed=0)
    longer = config(preset="tiny", max_token_length=120).build(spec, seed=0)
    torch.testing.assert_close(
        short.predict_action_batch(obs, "eval").action, longer.predict_action_batch(obs, "eval").action, atol=1e-5, rtol=0.0
    )


@BOTH
def test_everything_that_is_seen_matters(config, spec, obs):
    policy = config(preset="tiny").build(spec, seed=0)
    before = policy.predict_action_batch(obs, "eval").action
    changes = {
        "main_images": 255 - obs["main_images"],
        "wrist_images": 255 - obs["wrist_images"],
        "states": -obs["states"],
        "task_descriptions": np.array(["push the cube to the target"] * 5),
    }
    for key, leaf in changes.items():
        after = policy.predict_action_batch(obs | {key: leaf}, "eval").action
        assert ((after - before).abs().amax((1, 2)) > 1e-6).all(), key


def test_only_what_is_executed_counts(spec, obs, generator):
    policy = PI0PolicyConfig(preset="tiny", num_action_chunks=2, logprob_type="token_level").build(spec, seed=0)
    decision = policy.predict_action_batch(obs, generator=generator)
    assert decision.action.shape == decision.logprob.shape == (5, 2, 3)
    assert decision.context["chains"].shape == (5, 5, 4, 8)
    expected = decision.context["chains"][:, -1, :2, :3] * 1.5 + 0.5
    torch.testing.assert_close(decision.action, expected, atol=1e-5, rtol=1e-5)


def test_the_state_token_does_not_see_actions(spec):
    policy = PI0PolicyConfig(preset="tiny").build(spec, seed=0)
    network, kept = policy.network, []
    network.core.model.dit.layers[-1].register_forward_hook(lambda _, args, out: kept.append(out))
    pixels, seen = torch.zeros(1, 1, 3, 32, 32), torch.ones(1, 1, dtype=torch.bool)
    prefix = network.prefix(pixels, seen, torch.zeros(1, 3, dtype=torch.int64), torch.ones(1, 3, dtype=torch.bool))
    for x in (torch.zeros(1, 4, 8), torch.ones(1, 4, 8)):
        network.velocity(x, torch.ones(1), torch.zeros(1, 8), prefix)
    torch.testing.assert_close(kept[0][:, 0], kept[1][:, 0])
    assert (kept[0][:, 1:] != kept[1][:, 1:]).any()


def test_prompts_are_those_of_openpi():
    states = np.array([-1.0, -0.999, 0.0, 0.5, 0.999, 1.0, 1.5, -1.5], np.float32)
    assert task_prompt(" pick_up\nthe cube ") == "pick up the cube\n"
    assert state_prompt("pick_up", states) == "Task: pick up, State: 0 0 128 192 255 255 255 -1;\nAction: "


@BOTH
def test_capabilities(config, spec, obs, generator):
    policy = config(preset="tiny", num_action_chunks=2).build(spec, seed=0)
    for protocol in (HasSFTLoss, HasFlowRegression, HasNoiseSteering, HasExplorationSchedule, RealTimeChunkingPolicy):
        assert isinstance(policy, protocol)
    noise = torch.randn(5, *policy.noise_shape, generator=generator)
    chain = policy.predict_action_batch(obs, "eval")
    torch.testing.assert_close(policy.steer(obs, 0 * noise), chain.action, atol=1e-5, rtol=0.0)
    assert (policy.steer(obs, noise) - chain.action).abs().max() > 0.1
    with pytest.raises(ShapeError, match="steer"):
        policy.steer(obs, noise[:, :1])


@BOTH
def test_regression_is_on_what_was_executed(config, spec, obs):
    sampling = FlowSampling(noise_method="flow_ode", likelihood="matching", matching_draws=3)
    policy = config(preset="tiny", num_action_chunks=2, sampling=sampling).build(spec, seed=0)
    decision = policy.predict_action_batch(obs, generator=torch.Generator().manual_seed(0))
    found = policy.flow_regression(decision.context)
    assert found.prediction.shape == found.target.shape == (5, 3, 2, 3)
    assert found.prediction.requires_grad
    torch.testing.assert_close(found.prediction, found.previous, atol=1e-5, rtol=1e-5)
    again = policy.default_forward(batch_of(decision))
    torch.testing.assert_close(again.logprob[:, 0], decision.logprob, atol=1e-5, rtol=0.0)
    if decision.value is not None:
        torch.testing.assert_close(again.value[:, 0], decision.value, atol=1e-5, rtol=1e-5)


@BOTH
def test_imitation_sees_the_mask_and_only_it(config, spec, obs):
    policy = config(preset="tiny").build(spec, seed=0)
    action = np.random.default_rng(0).uniform(-1, 2, (5, 3, 3)).astype(np.float32)
    mask = np.ones((5, 3), bool)
    mask[:, 2] = False

    def loss(action, mask=None):
        return policy.sft_loss(obs, action, mask=mask, generator=torch.Generator().manual_seed(2))

    assert loss(action).weight == 15
    assert loss(action, mask).weight == 10
    assert loss(action, mask).total < loss(action).total
    longer = np.concatenate([action, action, action], 1)
    assert loss(longer).weight == 20


def test_a_chunk_continues_the_one_before(spec, obs, generator):
    policy = PI0PolicyConfig(preset="tiny", horizon=4, num_action_chunks=4).build(spec, seed=0)
    previous = torch.full((5, 3, 3), 1.7)
    free = policy.predict_action_batch(obs, "eval").action
    bound = policy.continue_chunk(obs, previous, delay=2, generator=generator)
    assert (bound.action[:, :2] - 1.7).abs().mean() < 0.5 * (free[:, :2] - 1.7).abs().mean()
    found = policy.default_forward(batch_of(bound))
    assert (found.logprob == 0).all()


def test_noise_follows_its_schedule(spec, obs):
    policy = PI0PolicyConfig(preset="tiny", sampling=FlowSampling(noise_anneal=(0.7, 0.3, 10))).build(spec, seed=0)
    policy.set_global_step(5)
    assert policy.predict_action_batch(obs).context["noise_level"].tolist() == pytest.approx([0.5] * 5)
    assert (policy.predict_action_batch(obs, "eval").context["noise_level"] == 0).all()


def trained(policy, part):
    return [name for name, p in policy.named_parameters() if p.requires_grad and part in name]


@BOTH
def test_what_is_frozen(config, spec):
    expert = config(preset="tiny", train_expert_only=True).build(spec, seed=0)
    assert not trained(expert, ".vlm.")
    assert trained(expert, ".dit.")
    assert trained(expert, "value_head")
    lora = config(preset="tiny", lora=LoRAConfig(rank=2)).build(spec, seed=0)
    assert all("lora_" in name for name in trained(lora, ".vlm."))
    assert trained(lora, ".vlm.")
    assert not [name for name in trained(lora, "layers.1.mlp") if ".language_model." in name]
    open_critic = config(preset="tiny", value_after_vlm=True, detach_critic_input=False).build(spec, seed=0)
    assert trained(open_critic, "language_model.norm")


@BOTH
def test_bfloat16(config, spec, obs, generator):
    policy = config(preset="tiny", precision="bf16").build(spec, seed=0)
    decision = policy.predict_action_batch(obs, generator=generator)
    assert decision.action.dtype == decision.logprob.dtype == decision.value.dtype == torch.float32
    found = policy.default_forward(batch_of(decision))
    torch.testing.assert_close(found.logprob[:, 0], decision.logprob, atol=0.2, rtol=0.0)
    fine = config(preset="tiny").build(spec, seed=0)
    torch.testing.assert_close(
        policy.predict_action_batch(obs, "eval").action, fine.predict_action_batch(obs, "eval").action, atol=0.1, rtol=0.0
    )


@BOTH
def test_building(config, spec):
    state = torch.random.get_rng_state()
    one, again, other = (config(preset="tiny").build(spec, seed=seed).state_dict() for seed in (0, 0, 1))
    assert torch.equal(state, torch.random.get_rng_state())
    assert all(torch.equal(one[name], again[name]) for name in one)
    assert any(not torch.equal(one[name], other[name]) for name in one)
    copy.deepcopy(config(preset="tiny").build(spec, seed=0))


@pytest.mark.parametrize(
    ("params", "message"),
    [
        ({}, "exactly one of preset and model_path"),
        ({"preset": "tiny", "model_path": "x"}, "exactly one of preset and model_path"),
        ({"preset": "tiny", "num_action_chunks": 5, "horizon": 4}, "num_action_chunks ≤ horizon"),
        ({"preset": "tiny", "num_action_chunks": 5}, "num_action_chunks ≤ horizon, found 5 and 4"),
        ({"preset": "tiny", "max_action_dim": 2}, "max_action_dim: expected at least the environment's 3"),
        ({"preset": "tiny", "max_state_dim": 2}, "max_state_dim: expected at least the environment's 7"),
        ({"preset": "tiny", "image_size": 40}, "multiple of the patch"),
        ({"preset": "tiny", "train_expert_only": True, "lora": LoRAConfig()}, "train_expert_only"),
    ],
)
def test_wrong_configurations(params, message, spec):
    with pytest.raises(ConfigError, match=message):
        PI0PolicyConfig(**params).build(spec, seed=0)


def test_the_state_of_pi05_counts_in_a_prompt_as_the_longest_that_it_can_be(spec, obs):
    """Seven numbers: no state that is met in the middle of a run has a longer prompt than what was checked before it."""
    text = obs["task_descriptions"][:1].tolist()
    with pytest.raises(ConfigError) as refused:
        PI05PolicyConfig(preset="tiny", max_token_length=4).check_tasks(text, "actor.model", spec)
    needed = int(refused.value.remedy.split()[3])
    PI05PolicyConfig(preset="tiny", max_token_length=needed).check_tasks(text, "actor.model", spec)
    policy = PI05PolicyConfig(preset="tiny", max_token_length=needed).build(spec, seed=0)
    grid = np.linspace(-1.1, 1.1, 300, dtype=np.float32)
    found = policy.context({**obs, "states": np.repeat(grid[:, None], 7, 1), **shown(obs, 300)})["token_masks"].sum(1)
    assert found.max() == needed > found.min()
    with pytest.raises(ConfigError, match=r"has \d+ tokens and those of the state, there is room for 4"):
        PI05PolicyConfig(preset="tiny", max_token_length=4).check_tasks(text, "actor.model")
    # Those of LeRobot are padded: how many numbers there are is known without the environment.
    with pytest.raises(ConfigError, match=r"has \d+ tokens, there is room for 4"):
        PI05PolicyConfig(preset="tiny", max_token_length=4, pad_prompt_state=True).check_tasks(text, "actor.model")


def shown(obs, rows):
    """The pictures and the task of the first row, so often."""
    return {key: np.repeat(obs[key][:1], rows, 0) for key in ("main_images", "wrist_images", "task_descriptions")}


def test_wrong_observations(spec, obs):
    policy = PI0PolicyConfig(preset="tiny", max_token_length=4).build(spec, seed=0)
    with pytest.raises(
        ConfigError, match=r"max_token_length: the prompt of 'move to .*' has 10 tokens, there is room for 4. Set it to 10"
    ):
        policy.predict_action_batch(obs)
    del obs["states"]
    with pytest.raises(ShapeError, match="found \\['main_images', 'task_descriptions', 'wrist_images'\\]"):
        policy.predict_action_batch(obs)
    blind = {name: leaf for name, leaf in spec.observation.items() if name != "main_images"}
    with pytest.raises(ConfigError, match="main_images"):
        PI0PolicyConfig(preset="tiny").build(dataclasses.replace(spec, observation=blind), seed=0)
