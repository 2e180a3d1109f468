"""Every advantage with every loss on an embodied actor: each pair trains, or is refused before anything starts."""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace
from itertools import product
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pytest
import torch
from safetensors.torch import save_file

from rlinf.core.data import ArraySpec, Batch, EnvSpec, Trajectory
from rlinf.core.data.tree import tree_map
from rlinf.core.errors import ConfigError
from rlinf.core.metrics import means
from rlinf.core.random import keyed_seed
from rlinf.core.registry import ADVANTAGES, LOSSES
from rlinf.core.worker import WorkerContext, injected
from rlinf.engines.offload import Leaving
from rlinf.runners.config.rules import apply
from rlinf.runners.embodied.actor_worker import EmbodiedFSDPActor
from rlinf.runners.embodied.playing.rows import RowCollector
from rlinf.runners.embodied.rules import EMBODIED, read_embodied
from rlinf.runners.training.data_shares import uncounted

BOUND = np.ones(2, np.float32)
SPEC = EnvSpec(
    observation={"states": ArraySpec(shape=(3,), dtype="float32")},
    action=ArraySpec(shape=(2,), dtype="float32", low=-BOUND, high=BOUND),
    max_episode_steps=10,
)
ENVS, STEPS, GROUP = 8, 3, 4
# Tests of other packages in this process register toys.
ADVANTAGE_NAMES = [name for name in ADVANTAGES.names() if ADVANTAGES.owner(name).startswith("rlinf.")]
LOSS_NAMES = [name for name in LOSSES.names() if LOSSES.owner(name).startswith("rlinf.") and name != "nft"]
"""All but the one that asks a flow for more than scores; it has a test of its own."""
FULL = {"group_size": GROUP, "critic": True, "reference": "initial", "recompute": True}
BARE = {"group_size": 1, "critic": False, "reference": "none", "recompute": False}
NEVER = {"remax", "optimal_token_baseline"}
"""What no embodied run can give: the score of a greedy episode, the sums of squared probabilities of tokens."""
CRITICS = ("actor_critic", "decoupled_actor_critic")
TARGETS = ("discounted_returns", "gae", "n_step", "vtrace")
"""Advantages that say what a critic should learn."""
_PARAMETERS = {"grpo_video": {"advantage_mode": "frame"}}


def configured(advantage: str, loss: str, *, given: dict[str, Any], **algorithm: Any) -> Any:
    """A run with those two."""
    return read_embodied(
        {
            "runner": {"experiment_name": "pairs", "max_steps": 2},
            "env": {
                "train": {
                    "env_type": "gymnasium",
                    "init_params": {"env_id": "Pendulum-v1"},
                    "total_num_envs": ENVS,
                    "max_steps_per_rollout_epoch": STEPS,
                    "group_size": given["group_size"],
                    "auto_reset": False,
                },
                "eval": {"episodes": 2, "total_num_envs": 2},
            },
            "actor": {
                "model": {
                    "model_type": "mlp_policy",
                    "hidden_sizes": [8],
                    "num_action_chunks": 2,
                    "add_value_head": given["critic"],
                    "logprob_type": given.get("logprob_type", "token_level"),
                    **given.get("model", {}),
                },
                "optim": {"lr": 1e-2},
                **given.get("actor", {}),
                "global_batch_size": ENVS * STEPS // 2,
            },
            "algorithm": {
                "adv_type": advantage,
                "loss_type": loss,
                "recompute_logprobs": given["recompute"],
                "update_epoch": 1,
                **_PARAMETERS.get(advantage, {}),
                **algorithm,
            },
            "reference": {"source": given["reference"], "ckpt_path": given.get("ckpt_path")},
        }
    )


@dataclass
class Trained:
    """An actor after one iteration."""

    worker: Any
    metrics: dict[str, float] = field(default_factory=dict[str, float])

    def weights(self) -> dict[str, torch.Tensor]:
        return self.worker._trainer.weights().tensors


def built(cfg: Any) -> Any:
    return cfg.actor.model.build(SPEC, seed=keyed_seed(cfg.runner.seed, "model"))


def played(cfg: Any, policy: Any) -> Trajectory[Any]:
    """What a policy decided in environments that end at different steps."""
    generator = torch.Generator().manual_seed(0)
    rng, size = np.random.default_rng(0), cfg.env.train.group_size
    rows = RowCollector(first_env=0, num_envs=ENVS, group_size=size, groups=ENVS // size)
    value: Any = None
    for step in range(STEPS):
        states = torch.as_tensor(rng.normal(size=(ENVS, 3)).astype(np.float32))
        decision = policy.predict_action_batch({"states": states}, "train", generator=generator)
        numpy = {name: getattr(decision, name) for name in ("action", "logprob", "value")}
        value = None if decision.value is None else decision.value.numpy()
        arrays = {name: None if array is None else array.numpy() for name, array in numpy.items()}
        context = tree_map(torch.Tensor.numpy, decision.context)
        ended = np.arange(ENVS) % 3 == step
        rows.append(replace(decision, **arrays, context=context), rng.normal(size=ENVS).astype(np.float32), ended, ~ended & False)
        if value is not None and ended.any():
            rows.final_values(np.flatnonzero(ended), np.zeros(int(ended.sum()), np.float32))
    return rows.finish(value).map(torch.as_tensor)


def trained(cfg: Any, steps: int = 1) -> Trained:
    """An actor that was given what its policy decided."""
    with injected(WorkerContext(group="actor")):
        worker: Any = EmbodiedFSDPActor(cfg)
    worker.init_worker(cast("Any", SimpleNamespace(spec=SPEC)))
    metrics: dict[str, float] = {}
    for step in range(steps):
        with worker._offloading.onloaded("parameters"):
            worker._trajectory = played(cfg, worker._policy)
        worker.compute_advantages_and_returns()
        metrics = means(worker.run_training(step))
    return Trained(worker, metrics)


@pytest.mark.parametrize("given", [FULL, BARE], ids=["full", "bare"])
def test_every_pair_has_a_gradient_or_is_refused(given: dict[str, Any]) -> None:
    base = configured("raw", "reinforce", given=given)
    policy = built(base)
    rows = played(base, policy)
    if given is FULL:
        rows = replace(rows, proximal=rows.logprob, reference=rows.logprob + 0.1)
    made = {name: ADVANTAGES.build(name, _PARAMETERS.get(name, {}), place="algorithm") for name in ADVANTAGE_NAMES}
    trains = set[tuple[str, str]]()
    for (adv_type, advantage), loss_type in product(made.items(), LOSS_NAMES):
        loss = LOSSES.build(loss_type, {}, place="algorithm")
        algorithm = replace(base.algorithm, adv_type=adv_type, advantage=advantage, loss_type=loss_type, loss=loss)
        try:
            apply(replace(base, algorithm=algorithm), EMBODIED)
        except ConfigError:
            continue
        policy.zero_grad()
        batch = Batch(trajectory=rows, credit=advantage(rows)).decisions()
        loss(batch, policy.default_forward(batch)).total.backward()
        gradients = [p.grad for p in policy.parameters() if p.grad is not None]
        assert all(torch.isfinite(gradient).all() for gradient in gradients), (adv_type, loss_type)
        assert any(gradient.any() for gradient in gradients), (adv_type, loss_type)
        trains.add((adv_type, loss_type))
    wants_target = {(a, loss) for a, loss in product(made, CRITICS) if a not in TARGETS}
    if given is FULL:
        assert trains == {pair for pair in product(made, LOSS_NAMES) if pair[0] not in NEVER} - wants_target
    else:
        alone = {"discounted_returns", "raw", "reinforce_plus_plus", "reinpp"}
        assert {adv_type for adv_type, _ in trains} == alone
        assert not {loss_type for _, loss_type in trains} & {*CRITICS, "decoupled_ppo"}


@pytest.mark.parametrize("advantage", ADVANTAGE_NAMES)
def test_every_advantage_trains_an_actor_or_is_refused(advantage: str) -> None:
    if advantage in NEVER:
        with pytest.raises(ConfigError, match=rf"algorithm\.adv_type: '{advantage}' needs"):
            configured(advantage, "ppo_clip", given=FULL)
        return
    found = trained(configured(advantage, "ppo_clip", given=FULL)).metrics
    assert all(math.isfinite(number) for number in found.values())
    assert found["skipped"] == 0.0
    # The teacher of a distillation is here what the policy still is.
    assert (found["grad_norm"] == 0.0) == (advantage == "opd")


@pytest.mark.parametrize("loss", LOSS_NAMES)
def test_every_loss_trains_an_actor(loss: str) -> None:
    actor = trained(cfg := configured("gae", loss, given=FULL))
    found = actor.metrics
    assert all(math.isfinite(number) for number in found.values())
    assert found["grad_norm"] > 0.0
    assert found["skipped"] == 0.0
    assert found["kl_ref"] == pytest.approx(0.0, abs=1e-2), "of the weights at the start"
    # What a rank without decisions of its own takes a step with.
    rows = actor.worker._scored(actor.worker._trainer, played(cfg, actor.worker._policy))
    idle = uncounted(Batch(trajectory=rows, credit=cfg.algorithm.advantage(rows)).decisions())
    assert means(actor.worker._trainer.step([idle], cfg.algorithm.loss))["skipped"] == 1.0


@pytest.mark.parametrize(
    ("model", "remedy"),
    [
        ({}, "Choose an actor.model.model_type that is a flow."),
        ({"model_type": "flow_policy", "logprob_type": "chunk_level"}, "Set actor.model.sampling.likelihood: matching."),
    ],
)
def test_negative_aware_fine_tuning_is_refused_without_a_flow_that_records_its_draws(model: dict[str, Any], remedy: str) -> None:
    with pytest.raises(ConfigError) as caught:
        configured("grpo", "nft", given={**FULL, "critic": False, "recompute": False, "reference": "none", "model": model})
    assert str(caught.value) == f"algorithm.loss_type: 'nft' needs a flow whose decisions can be regressed on. {remedy}"


def test_a_flow_without_noise_and_without_draws_is_refused() -> None:
    model = {"model_type": "flow_policy", "logprob_type": "chunk_level", "sampling": {"noise_method": "flow_ode"}}
    with pytest.raises(ConfigError) as caught:
        configured("grpo", "ppo_clip", given={**FULL, "critic": False, "model": model})
    assert str(caught.value) == (
        "actor.model.sampling.noise_method: decisions have no log-probability, and teach nothing. "
        "Choose flow_sde or flow_noise, or set actor.model.sampling.likelihood: matching."
    )


@pytest.mark.parametrize("loss", ["nft", "ppo_clip"])
def test_a_flow_without_a_density_trains(loss: str) -> None:
    model = {
        "model_type": "flow_policy",
        "logprob_type": "chunk_level",
        "sampling": {"noise_method": "flow_ode", "likelihood": "matching", "matching_draws": 2},
    }
    cfg = configured("grpo", loss, given={**FULL, "critic": False, "recompute": False, "reference": "none", "model": model})
    actor = trained(cfg)
    assert all(math.isfinite(number) for number in actor.metrics.values())
    assert actor.metrics["grad_norm"] > 0.0
    assert actor.metrics["skipped"] == 0.0


@pytest.mark.parametrize(("loss", "decoupled"), [("ppo_clip", "decoupled_ppo"), ("actor_critic", "decoupled_actor_critic")])
def test_without_lag_a_decoupled_loss_is_the_one_without(loss: str, decoupled: str) -> None:
    """The proximal policy is the one that decided, so that its importance weight is 1."""
    plain, other = (trained(configured("gae", name, given=FULL, update_epoch=3), steps=2) for name in (loss, decoupled))
    assert other.metrics["behave_ratio"] == pytest.approx(1.0, abs=1e-5)
    assert other.metrics["policy_loss"] == pytest.approx(plain.metrics["policy_loss"], abs=1e-5)
    for name, tensor in plain.weights().items():
        torch.testing.assert_close(other.weights()[name], tensor, atol=1e-4, rtol=1e-4)


def test_kl_to_the_start_holds_the_policy_back() -> None:
    far, near = (trained(configured("raw", "ppo_clip", given=FULL, kl_beta=beta, update_epoch=4), steps=6) for beta in (0.0, 10.0))
    assert far.metrics["kl_ref"] > 0.0
    assert near.metrics["kl_ref"] < 0.5 * far.metrics["kl_ref"]


def test_a_reference_of_other_weights_is_scored_beside_the_trainer(tmp_path: Path) -> None:
    """A teacher with the weights of another seed: the log-probabilities are its own, in the columns that they belong to."""
    teacher = configured("opd", "opd", given=FULL).actor.model.build(SPEC, seed=99)
    save_file(teacher.weights().tensors, tmp_path / "model.safetensors")
    given = {**FULL, "reference": "path", "ckpt_path": str(tmp_path / "model.safetensors")}
    actor = trained(cfg := configured("opd", "opd", given=given))
    assert actor.metrics["grad_norm"] > 0.0
    worker, rows = actor.worker, played(cfg, actor.worker._policy)
    found = worker._scored(worker._trainer, rows).reference
    decisions = Batch.of(rows).decisions()
    with torch.no_grad():
        expected = teacher.default_forward(decisions).logprob[:, 0]
    torch.testing.assert_close(found[rows.mask], expected)
    assert not found[~rows.mask].any()
    assert (~rows.mask).any()


@pytest.mark.parametrize(
    "actor",
    [
        {"offload": True},
        {"fsdp_config": {"gradient_checkpointing": True, "wrap_policy": {"transformer_layer_cls_to_wrap": ["Linear"]}}},
    ],
    ids=["offload", "gradient_checkpointing"],
)
def test_what_saves_memory_changes_no_number(actor: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    moved = list[tuple[str, int]]()
    for name in ("offload", "onload"):
        move: Any = getattr(Leaving, name)
        monkeypatch.setattr(Leaving, name, lambda *args, name=name, move=move: moved.append((name, move(*args))))
    given = {**FULL, "actor": actor}
    plain, saving = (trained(configured("gae", "actor_critic", given=each, kl_beta=0.1), steps=2) for each in (FULL, given))
    assert saving.metrics == plain.metrics
    if "offload" in actor:
        saving.worker._trainer.onload()
        # At the start, and in each iteration to play, for two scorings and for the updates.
        assert [name for name, _ in moved] == ["offload", *["onload", "offload"] * 8, "onload"]
        assert all(size > 0 for _, size in moved), "nothing was moved"
    else:
        assert moved == []
    for name, tensor in plain.weights().items():
        assert torch.equal(saving.weights()[name], tensor), name


def test_what_counts_as_one_action_is_chosen_by_a_key() -> None:
    """A chunk of 2 steps with 2 dimensions: the log-ratios of 4 elements are averaged, or added up to 2, or to 1."""
    levels = ("token_level", "action_level", "chunk_level")
    found = [trained(configured("gae", "ppo_clip", given=FULL, logprob_type=level, update_epoch=4)).metrics for level in levels]
    gaps = [metrics["approx_kl"] for metrics in found]
    assert 0 < 1.5 * gaps[0] < gaps[1]
    assert 1.5 * gaps[1] < gaps[2]
    entropies = [trained(configured("gae", "ppo_clip", given=FULL, entropy_type=level)).metrics["entropy"] for level in levels]
    assert entropies[1] == pytest.approx(2 * entropies[0])
    assert entropies[2] == pytest.approx(4 * entropies[0])


@pytest.mark.parametrize(
    ("algorithm", "given", "message"),
    [
        ({"kl_beta": 0.1}, {**FULL, "reference": "none"}, r"algorithm\.kl_beta: needs a reference policy\. Set reference\.source"),
        ({"logprob_type": "token"}, FULL, r"algorithm\.logprob_type: .*token_level"),
        (
            {"logprob_type": "action_level"},
            {**FULL, "logprob_type": "chunk_level"},
            r"algorithm\.logprob_type: action_level is finer than the chunk_level that .* Set actor\.model\.logprob_type: action",
        ),
        (
            {"entropy_type": "token_level"},
            {**FULL, "logprob_type": "action_level"},
            r"algorithm\.entropy_type: token_level is finer than the action_level that .* Set actor\.model\.logprob_type: token",
        ),
        ({}, {**FULL, "recompute": False}, r"needs decisions .* Set algorithm\.recompute_logprobs: true"),
    ],
)
def test_what_is_not_given_is_refused_with_its_key(algorithm: dict[str, Any], given: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        configured("gae", "decoupled_ppo", given=given, **algorithm)
