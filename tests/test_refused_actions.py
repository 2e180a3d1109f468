"""What becomes of a policy's actions and words is refused before anything starts, with the keys that have to change."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from rlinf.core.data import ArraySpec, EnvSpec
from rlinf.core.errors import ConfigError, each_fault
from rlinf.runners import check_run, read_embodied
from rlinf.runners.config.checks import check_ranks
from rlinf.runners.config.composition import compose_recipe
from rlinf.runners.config.sections import resolved
from rlinf.runners.embodied.evaluation import episode_protocol
from rlinf.runners.task_types import task_type_of
from rlinf.scheduler import Cluster

CONFIG = Path(__file__).parents[1] / "apps/embodied/config"


def composed(*overrides: str, recipe: str) -> Any:
    data = compose_recipe(CONFIG, recipe, overrides).data
    return task_type_of(data).read(data)


def embodied(*overrides: str, recipe: str = "maniskill_ppo_mlp") -> Any:
    return read_embodied(compose_recipe(CONFIG, recipe, overrides).data)


@pytest.mark.parametrize(
    ("recipe", "overrides", "message"),
    [
        ("tabletop_openvla_oft_ppo", (), r"guidance: 'openvla_oft' does not say that it can go on from .* Set it to false, "),
        (
            "tabletop_flow_ppo",
            ("env.eval.real_time_chunking.execution_horizon=4",),
            r"execution_horizon: 4, and with delay 1 a chunk of 4",
        ),
        (
            "tabletop_flow_ppo",
            ("env.eval.real_time_chunking.delay=3",),
            r"execution_horizon: expected at least 1 and delay = 3, found 2",
        ),
        ("tabletop_cma_ppo", ("env.eval.real_time_chunking.guidance=false",), r"real_time_chunking: 'cma' has a memory"),
        ("tabletop_flow_ppo", ("env.eval.mode=train",), r"^env\.eval\.mode: train samples decisions"),
    ],
)
def test_real_time_chunking_that_cannot_be_honoured_is_refused_with_its_keys(
    recipe: str, overrides: tuple[str, ...], message: str
) -> None:
    timing = "env.eval.real_time_chunking={delay: 1, execution_horizon: 2}"
    with pytest.raises(ConfigError) as caught:
        embodied(timing, *overrides, recipe=recipe)
    assert re.search(message, str(caught.value)), str(caught.value)
    assert "env.eval.real_time_chunking" in str(caught.value)
    unguided = "env.eval.real_time_chunking={delay: 1, execution_horizon: 2, guidance: false}"
    if recipe == "tabletop_openvla_oft_ppo":
        embodied(unguided, recipe=recipe)


@pytest.mark.parametrize(
    ("recipe", "override", "message"),
    [
        ("tabletop_openvla_ppo", "enable_torch_compile", r"^rollout\.enable_torch_compile: 'openvla' does not say .* choose pi0"),
        ("tabletop_rlt_pi0", "enable_torch_compile", r"^rollout\.enable_torch_compile: 'rlt' does not say"),
        (
            "tabletop_pi0_ppo",
            "enable_cuda_graph",
            r"^rollout\.enable_cuda_graph: only what is compiled .* Set enable_torch_",
        ),
    ],
)
def test_what_cannot_be_compiled_is_refused(recipe: str, override: str, message: str) -> None:
    with pytest.raises(ConfigError) as caught:
        composed(f"rollout.{override}=true", recipe=recipe)
    assert re.search(message, str(caught.value)), str(caught.value)


def test_a_format_of_another_simulator_is_refused_before_anything_is_built() -> None:
    """Once, though evaluations take the wrappers over; those of a wrapper that may change actions are not known."""
    wrapped = "env.train.wrappers=[{type: action_format, format: %s}]"
    with pytest.raises(ConfigError) as caught:
        embodied(wrapped % "libero", recipe="tabletop_cnn_ppo")
    assert len(each_fault(caught.value)) == 1
    assert re.search(r"^env\.train\.wrappers\[0\]\.format: .*2", str(caught.value)), str(caught.value)
    embodied(wrapped % "identity", recipe="tabletop_cnn_ppo")
    embodied("env.train.wrappers=[{type: latency, steps: 1}, {type: action_format, format: libero}]", recipe="tabletop_cnn_ppo")


@pytest.mark.parametrize(
    ("recipe", "key", "room", "limited"),
    [
        ("tabletop_openvla_oft_ppo", "actor.model.max_prompt_length", 32, ()),
        ("tabletop_pi0_ppo", "actor.model.max_token_length", 32, ("actor.model.max_action_dim=8",)),
        (
            "tabletop_pi05_ppo",
            "actor.model.max_token_length",
            40,
            ("actor.model.max_token_length=40", "actor.model.max_action_dim=8"),
        ),
        ("tabletop_gr00t_ppo", "actor.model.max_prompt_tokens", 3, ("env.train.init_params.obs_mode=rgb",)),
        (
            "tabletop_dsrl_pi0",
            "actor.model.base.max_token_length",
            32,
            ("actor.model.base.ckpt_path=null", "actor.model.base.max_action_dim=8"),
        ),
    ],
)
def test_a_task_that_a_policy_has_no_room_for_is_refused_before_anything_is_built(
    tmp_path: Path, recipe: str, key: str, room: int, limited: tuple[str, ...]
) -> None:
    """A recipe of tabletop on LIBERO, whose tasks are longer; its meshes are looked for first."""
    for name in (
        "articulated_objects",
        "scenes",
        "stable_hope_objects",
        "stable_scanned_objects",
        "textures",
        "turbosquid_objects",
    ):
        (tmp_path / name).mkdir()
    swapped = ("env.train.env_type=libero", f"env.train.init_params.assets={tmp_path}", *limited)
    message = rf"^{re.escape(key)}: the prompt of 'pick up the black bowl .*' has \d+ tokens.*, .* for {room}\. Set it to .*\d"
    with pytest.raises(ConfigError, match=message):
        check_run(composed(*swapped, recipe=recipe))
    check_run(composed(*swapped, f"{key}=250", recipe=recipe))


def test_stages_without_environments_are_refused_before_a_worker_starts() -> None:
    """Eight environments in groups of two on two env workers: each has two groups."""
    eight = ("env.train.total_num_envs=8", "env.train.group_size=2", "cluster.component_placement={env: 0-1}")
    placed = (*eight, "cluster.backend=local", "cluster.virtual_accelerators={count: 2}", "actor.global_batch_size=200")
    for stages, refused in ((2, False), (3, True)):
        cfg = embodied(*placed, f"rollout.pipeline_stage_num={stages}")
        with Cluster(cluster_cfg=cfg.cluster) as cluster:
            if not refused:
                check_ranks(cfg, cluster.placement)
                continue
            message = (
                r"^rollout\.pipeline_stage_num: 3 stages, and an env worker has 2 of the 4 groups \(env\.train\.total_num_envs 8"
            )
            with pytest.raises(ConfigError, match=message):
                check_ranks(cfg, cluster.placement)


@pytest.mark.parametrize(("key", "size"), [("env.train", 4), ("env.eval", 1)])
def test_an_env_worker_without_an_environment_is_refused_before_it_starts(key: str, size: int) -> None:
    placed = ("cluster.component_placement={env: 0-1}", "cluster.backend=local", "cluster.virtual_accelerators={count: 2}")
    envs = (f"{key}.total_num_envs={size}", f"env.train.group_size={size}", "actor.global_batch_size=100")
    cfg = embodied(*placed, *envs)
    message = rf"^{key}\.total_num_envs: {size} environments in groups of {size} can't occupy 2 env workers"
    with Cluster(cluster_cfg=cfg.cluster) as cluster, pytest.raises(ConfigError, match=message):
        check_ranks(cfg, cluster.placement)


@pytest.mark.parametrize("recipe", ["maniskill_ppo_openvla_oft", "maniskill_ppo_pi0"])
def test_the_format_of_another_simulator(recipe: str) -> None:
    """From ManiSkill to LIBERO the sign of the gripper changes, and nothing else that could be seen."""
    problem = (
        r"^env\.train\.wrappers\[0\]\.format: 'maniskill' makes actions of another simulator than 'libero', which takes those of "
        r"'libero'\. Use libero"
    )
    with pytest.raises(ConfigError, match=problem) as caught:
        embodied("env.train.env_type=libero", "env.train.wrappers=[{type: action_format, format: maniskill}]", recipe=recipe)
    assert len(each_fault(caught.value)) == 1


@pytest.mark.parametrize("recipe", ["maniskill_ppo_openvla_oft", "maniskill_ppo_pi0", "libero_10_ppo_openvla_oft"])
@pytest.mark.parametrize("simulator", ["libero", "maniskill"])
def test_one_key_swaps_the_simulator_and_the_format_of_its_actions(recipe: str, simulator: str) -> None:
    """What a run and its protocol state names the format, so that the hash is that of one who wrote it out."""
    written = f"env.train.wrappers=[{{type: action_format, format: {simulator}}}]"
    swapped, spelled = (embodied(f"env.train.env_type={simulator}", *rest, recipe=recipe) for rest in ((), (written,)))
    for env in (swapped.env.train, swapped.env.eval):
        assert resolved(env)["wrappers"] == [{"type": "action_format", "format": simulator}]
    assert episode_protocol(swapped, final=True).hash == episode_protocol(spelled, final=True).hash


def test_a_format_that_an_environment_does_not_say_is_asked_for_once() -> None:
    with pytest.raises(
        ConfigError, match=r"^env\.train\.wrappers\[0\]\.format: missing, and 'tabletop' has none .*libero"
    ) as caught:
        embodied("env.train.wrappers=[{type: action_format}]", recipe="tabletop_cnn_ppo")
    assert len(each_fault(caught.value)) == 1


def test_an_environment_in_another_interpreter_has_the_format_of_what_runs_there() -> None:
    elsewhere = "env.train.init_params={env: libero, python: /usr/bin/python3, params: {suite: libero_10}}"
    cfg = embodied("env.train.env_type=remote", f"+{elsewhere}", recipe="libero_10_ppo_openvla_oft")
    assert resolved(cfg.env.train)["wrappers"] == [{"type": "action_format", "format": "libero"}]


def test_what_a_model_finds_when_it_is_built_is_told_by_the_key_of_the_run() -> None:
    """Only the environment shows that actions are numbered; the model itself would say `mlp_policy.num_q_heads`."""
    model = embodied("actor.model.num_q_heads=2", "algorithm.entropy_bonus=0", recipe="cartpole_ppo").actor.model
    numbered = EnvSpec(
        observation={"states": ArraySpec(shape=(4,), dtype="float32")},
        action=ArraySpec(shape=(), dtype="int64", low=np.array(0), high=np.array(1)),
        max_episode_steps=500,
    )
    with pytest.raises(ConfigError, match=r"^actor\.model\.num_q_heads: expected the default for numbered actions, found 2\."):
        model.build(numbered, seed=0)
