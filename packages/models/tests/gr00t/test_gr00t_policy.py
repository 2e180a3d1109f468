import numpy as np
import pytest
import torch
import torch.nn.functional as F

from rlinf.core.capabilities import HasExplorationSchedule, HasFlowRegression, HasNoiseSteering, HasSFTLoss, RealTimeChunkingPolicy
from rlinf.core.data.tree import tree_map
from rlinf.core.errors import ConfigError, ContractError, ShapeError
from rlinf.models.flow import FlowSampling
from rlinf.models.gr00t import GR00TPolicyConfig
from rlinf.models.gr00t.head import ActionHead
from rlinf.models.gr00t.transformer import Block
from rlinf.models.lora import LoRAConfig

K, A = 3, 3
VARIANTS = {
    "sde": ("states", {"train_expert_only": False, "detach_critic_input": False}),
    "noise, images": (
        "sight",
        {
            "sampling": FlowSampling(noise_method="flow_noise", joint_logprob=True, joint_reduction="mean"),
            "logprob_type": "token_level",
            "train_expert_only": False,
            "detach_critic_input": False,
        },
    ),
    "cps": ("states", {"sampling": FlowSampling(noise_method="flow_cps", ignore_last=True), "logprob_type": "action_level"}),
}


# The sampling of "sde" is that of the policy in test_every_policy.py.
@pytest.mark.parametrize("name", [pytest.param(name, marks=[] if "images" in name else pytest.mark.slow) for name in VARIANTS])
def test_the_contract_of_policies(build, examine, name):
    spec, fields = VARIANTS[name]
    examine(build(spec, **fields), spec).run()


def test_dropout_breaks_the_contract_and_how_much(build, examine, monkeypatch):
    whole = Block.forward

    def dropping(self, x, *args, **fields):
        return F.dropout(whole(self, x, *args, **fields), 0.2, self.training)

    monkeypatch.setattr(Block, "forward", dropping)
    policy = build("states")
    contract = examine(policy, "states")
    with pytest.raises(ContractError, match="dropout"):
        contract.run()
    policy.train()
    decision = contract.decide(contract.observation(64))
    again = policy.default_forward(contract.batch([decision])).logprob[:, 0]
    assert (again - decision.logprob).abs().max() > 1.0


def test_what_is_frozen(build):
    def trained(policy):
        return {name.partition(".")[0] for name, parameter in policy.named_parameters() if parameter.requires_grad}

    assert trained(build()) == {"head", "value_head"}
    assert trained(build(train_expert_only=False)) == {"backbone", "head", "value_head"}
    adapted = build(lora=LoRAConfig(rank=2))
    names = [n for n, p in adapted.named_parameters() if p.requires_grad and n.startswith("backbone")]
    assert names
    assert all("lora_" in name for name in names)


def test_the_sampler_is_gr00t_s_own_loop(build, examine):
    policy = build()
    env_obs = examine(policy).observation()
    noise = torch.randn(5, *policy.noise_shape, generator=torch.Generator().manual_seed(1))
    with torch.no_grad():
        given = policy._condition(policy._context(env_obs))
        x = noise.clone()
        for k in range(4):
            x = x + policy.head.velocity(x, torch.full((5,), k / 4), given, policy.embodiment)[0] / 4
    expected = x[:, :K, :A] * torch.tensor([2.0, 1.0, 0.5]) + torch.tensor([0.0, 0.0, 0.5])
    torch.testing.assert_close(policy.steer(env_obs, noise), expected, atol=1e-5, rtol=0.0)


def test_the_backbone_is_asked_once_for_a_decision(build, examine, monkeypatch):
    policy = build(sampling=FlowSampling(num_steps=5, joint_logprob=True))
    calls = {"backbone": 0, "velocity": 0}
    velocity, forward = ActionHead.velocity, policy.backbone.forward

    def counted(*args):
        calls["backbone"] += 1
        return forward(*args)

    def stepped(*args):
        calls["velocity"] += 1
        return velocity(*args)

    monkeypatch.setattr(policy.backbone, "forward", counted)
    monkeypatch.setattr(ActionHead, "velocity", stepped)
    contract = examine(policy)
    decision = contract.decide(contract.observation())
    assert calls == {"backbone": 1, "velocity": 5}
    policy.default_forward(contract.batch([decision]))
    assert calls == {"backbone": 2, "velocity": 10}


def test_padding_of_prompts_changes_nothing(build, examine):
    short, long = build(), build(max_prompt_tokens=40)
    env_obs = examine(short).observation()
    one, other = (policy.predict_action_batch(env_obs, "eval") for policy in (short, long))
    torch.testing.assert_close(one.action, other.action, atol=1e-5, rtol=0.0)
    torch.testing.assert_close(one.value, other.value, atol=1e-5, rtol=0.0)


@pytest.mark.parametrize("key", ["main_images", "wrist_images", "states", "task_descriptions"])
def test_every_part_of_an_observation_counts(build, examine, key):
    policy = build()
    env_obs = examine(policy).observation()
    changed = {**env_obs, key: env_obs[key][::-1].copy()}
    if key == "task_descriptions":
        changed[key] = np.full(5, "close the drawer")
    one, other = (policy.predict_action_batch(obs, "eval") for obs in (env_obs, changed))
    assert (one.action - other.action).abs().max() > 1e-4
    with pytest.raises(ShapeError, match=f"expected the key '{key}'"):
        policy.predict_action_batch({name: leaf for name, leaf in env_obs.items() if name != key})


def test_sft_counts_only_known_steps_and_the_robot_s_own_dimensions(build, examine):
    policy = build()
    env_obs = examine(policy).observation()
    action = torch.zeros(5, K, A)
    mask = torch.arange(K) < torch.tensor([1, 2, 3, 3, 3])[:, None]

    def loss(changed):
        return policy.sft_loss(env_obs, changed, mask=mask, generator=torch.Generator().manual_seed(0))

    found = loss(action)
    assert found.weight == 12
    seen = []
    policy._field = lambda given: lambda x, time: (seen.append(time), (torch.zeros_like(x), x))[1]
    zero = loss(action)
    noise = torch.Generator().manual_seed(0)
    time = torch.rand(5, generator=noise).pow(2 / 3) / 0.999
    noise = torch.randn(5, *policy.noise_shape, generator=noise)
    target = policy.action_norm.normalize(action)
    torch.testing.assert_close(seen[0], time.clamp(max=1.0))
    torch.testing.assert_close(zero.total, ((noise[:, :K, :A] - target).square().mean(-1) * mask).sum())


def test_regression_is_on_what_was_executed(build, examine):
    policy = build(sampling=FlowSampling(noise_method="flow_ode", likelihood="matching", matching_draws=2))
    contract = examine(policy)
    decision = contract.decide(contract.observation())
    found = policy.flow_regression(decision.context)
    assert found.target.shape[1:] == (2, K, A)
    assert found.prediction.requires_grad
    torch.testing.assert_close(found.prediction, found.previous, atol=1e-5, rtol=1e-5)
    wanted = decision.context["matching_noise"] - decision.context["made"][:, None]
    torch.testing.assert_close(found.target, wanted[:, :, :K, :A])


def test_a_chunk_goes_on_where_the_last_one_can_t_be_changed(build, examine):
    policy = build("states")
    contract = examine(policy, "states")
    env_obs = contract.observation()
    previous = torch.full((5, K, A), 0.7)
    free, kept = (
        policy.continue_chunk(env_obs, previous, delay=delay, generator=torch.Generator().manual_seed(1)) for delay in (0, 2)
    )

    def error(decision):
        return (decision.action - previous)[:, :2].abs().mean()

    assert error(kept) < 0.5 * error(free)
    assert not kept.action.requires_grad
    torch.testing.assert_close(policy.default_forward(contract.batch([kept])).value[:, 0], kept.value)


def test_capabilities_and_annealing(build):
    policy = build(sampling=FlowSampling(noise_anneal=(0.8, 0.2, 10)))
    assert all(
        isinstance(policy, kind)
        for kind in (HasSFTLoss, HasFlowRegression, HasNoiseSteering, HasExplorationSchedule, RealTimeChunkingPolicy)
    )
    assert policy.sampler.level == 0.8
    policy.set_global_step(5)
    assert policy.sampler.level == pytest.approx(0.5)


def test_bfloat16_agrees_within_its_own_precision(build, examine):
    policy = build(precision="bf16")
    assert policy.head.position.dtype == torch.bfloat16
    contract = examine(policy)
    decision = contract.decide(contract.observation())
    assert decision.action.dtype == decision.logprob.dtype == decision.value.dtype == torch.float32
    again = policy.default_forward(contract.batch([decision]))
    torch.testing.assert_close(again.logprob[:, 0], decision.logprob, atol=1e-5, rtol=0.0)
    torch.testing.assert_close(
        policy.default_forward(contract.batch([decision]).rows(slice(0, 1))).logprob, again.logprob[:1], atol=0.5, rtol=0.0
    )


def test_statistics_are_in_the_state_dict(build, examine):
    policy = build()
    names = set(policy.weights().tensors)
    assert {"action_norm.first", "action_norm.second", "state_norm.first"} <= names


@pytest.mark.parametrize(
    ("fields", "place"),
    [
        ({"preset": None}, "preset"),
        ({"model_path": "/tmp/nowhere"}, "preset"),
        ({"num_action_chunks": 0}, "num_action_chunks"),
        ({"num_action_chunks": 99}, "num_action_chunks"),
        ({"embodiment_tag": "r2d2"}, "embodiment_tag"),
    ],
)
def test_a_wrong_configuration_is_refused(build, fields, place):
    with pytest.raises(ConfigError) as refused:
        build(**fields)
    assert refused.value.place == place


def test_the_sizes_of_a_preset_are_known_before_it_is_built():
    assert GR00TPolicyConfig(preset="tiny").traits.largest_action == 8
    assert GR00TPolicyConfig(preset="base", num_action_chunks=16).traits.largest_action == 32
    with pytest.raises(ConfigError, match=r"num_action_chunks: expected a value in \[1, 16\], found 17"):
        GR00TPolicyConfig(preset="base", num_action_chunks=17)


def test_a_task_that_is_too_long_is_refused_not_cut(build, examine):
    policy = build()
    env_obs = examine(policy).observation()
    env_obs["task_descriptions"] = np.full(5, "x y z " * 10)
    refused = r"max_prompt_tokens: the prompt of 'x y z .*' has (\d+) tokens, there is room for 24. Set it to \1 or more"
    with pytest.raises(ConfigError, match=refused):
        policy.predict_action_batch(env_obs)
    config, text = policy.config, env_obs["task_descriptions"][:1].tolist()
    with pytest.raises(ConfigError, match=r"^actor\.model\." + refused):
        config.check_tasks(text, "actor.model")
    with pytest.raises(ConfigError, match="default_task: expected a task in words, found ' '"):
        GR00TPolicyConfig(preset="tiny", default_task=" ")
    # No task is told there: the default one is asked for.
    config.check_tasks(text, "actor.model", examine(None, "states").spec)


def test_building_leaves_the_global_generator_alone_and_obeys_its_seed(examine):
    config = GR00TPolicyConfig(preset="tiny", num_action_chunks=K)
    spec = examine(None).spec
    before = torch.get_rng_state()
    one, again, other = (config.build(spec, seed=seed).weights().tensors for seed in (1, 1, 2))
    assert torch.equal(before, torch.get_rng_state())
    assert all(torch.equal(one[name], again[name]) for name in one)
    assert not torch.equal(one["head.transformer.out.weight"], other["head.transformer.out.weight"])
    assert tree_map(lambda leaf: leaf.shape, dict(one)) == tree_map(lambda leaf: leaf.shape, dict(other))
