"""What workers would say of a configuration is said before any of them starts."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest
from safetensors.numpy import save

from rlinf.core.errors import ConfigError, each_fault
from rlinf.runners import check_evaluation, check_run, eval_app
from rlinf.runners.checkpoints.checkpoint import write_checkpoint
from rlinf.runners.config.checks import check_ranks
from rlinf.runners.config.composition import compose_app_recipe, compose_recipe
from rlinf.runners.task_types import task_type_of
from rlinf.scheduler import Cluster

CONFIG = Path(__file__).parents[1] / "apps/embodied/config"


def composed(*overrides: str, recipe: str = "cartpole_ppo") -> Any:
    data = compose_recipe(CONFIG, recipe, overrides).data
    return task_type_of(data).read(data)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (
            "actor.model.num_action_chunks=65",
            r"num_action_chunks: 'flow_policy' decides .* env\.eval\.env_type 'tabletop' ends .* 64",
        ),
        ("env.eval.tasks=40", r"env\.eval\.tasks: env\.eval\.env_type 'tabletop' has no task 1"),
        ("env.eval.init_params.task=pusch", r"env\.eval\.init_params\.task: no choice 'pusch'"),
        ("env=null", r"env: this policy was fine-tuned without a simulator to be evaluated in"),
    ],
)
def test_an_evaluation_of_what_was_fine_tuned(change: str, message: str, capsys: pytest.CaptureFixture[str]) -> None:
    """By the keys of its own configuration, which has no `env.train`."""
    with pytest.raises(ConfigError, match=message) as caught:
        eval_app(["--config-name", "tabletop_flow_sft", change], config_dir=CONFIG.with_name("config_sft"), description="")
    assert "env.train" not in str(caught.value)
    assert "starting workers" not in capsys.readouterr().err


CHECKPOINTING = "actor.fsdp_config.gradient_checkpointing"
OF_PRESETS = ("architecture", "tokens", "overrides")


@pytest.mark.parametrize(
    ("recipe", "override", "message"),
    [
        ("cartpole_ppo", f"{CHECKPOINTING}=true", rf"^{CHECKPOINTING}: 'mlp_policy' has no repeated blocks"),
        ("tabletop_flow_ppo", f"{CHECKPOINTING}=true", rf"^{CHECKPOINTING}: 'flow_policy' has no repeated blocks"),
        ("cartpole_ppo", "actor.max_tokens_per_mbs=64", r"^actor\.max_tokens_per_mbs: 64, but only text is packed"),
        ("cartpole_ppo", "env.eval.tasks=2", r"^env\.eval\.tasks: .*'gymnasium' can't be asked for a task, found 0\. Leave it out"),
        ("cartpole_ppo", "env.eval.tasks=[push]", r"^env\.eval\.tasks: .*'gymnasium' can't be asked for a task, found 'push'"),
        ("tabletop_flow_nft", "reference.source=initial", r"^reference\.source: nothing reads the reference policy: 'nft' and "),
    ],
)
def test_a_key_that_model_or_environment_can_do_nothing_with(recipe: str, override: str, message: str) -> None:
    with pytest.raises(ConfigError) as caught:
        composed(override, recipe=recipe)
    assert re.search(message, str(caught.value)), str(caught.value)


def test_blocks_that_are_named_or_that_a_model_has_are_computed_again() -> None:
    composed(f"{CHECKPOINTING}=true", "actor.fsdp_config.wrap_policy.transformer_layer_cls_to_wrap=[Linear]")
    composed(f"{CHECKPOINTING}=true", recipe="tabletop_pi0_ppo")


@pytest.mark.parametrize("part", ["train", "eval"])
def test_a_folder_of_recordings_that_cannot_be_written(tmp_path: Path, part: str) -> None:
    (tmp_path / "file").touch()
    key = f"env.{part}.data_collection"
    given = f"{key}={{export_format: numpy, save_dir: {tmp_path / 'file/recorded'}}}"
    with pytest.raises(ConfigError, match=rf"^{re.escape(key)}\.save_dir: can't write to '.*recorded' \(Not a directory\)\. Name"):
        check_run(composed(given))
    if part == "eval":
        with pytest.raises(ConfigError, match=r"^env\.eval\.data_collection\.save_dir: can't write to"):
            check_evaluation(composed(given))
    else:
        check_evaluation(composed(given))  # which records nothing there
    # Elsewhere it may be there; and what records nothing needs no folder.
    check_run(composed(given, "cluster.num_nodes=2"))
    check_run(composed(given, f"{key}.enabled=false"))
    check_run(composed(f"{key}={{export_format: numpy, save_dir: {tmp_path / 'new/recorded'}}}"))
    assert [path.name for path in tmp_path.iterdir()] == ["file"], "a look leaves nothing behind"


def test_what_off_policy_actors_can_not_part() -> None:
    """Before a worker starts, and together."""
    placed = ("cluster.backend=local", "cluster.virtual_accelerators={count: 3}", "cluster.component_placement={actor: 0-2}")
    few = ("env.train.total_num_envs=2", "actor.global_batch_size=64", "cluster.component_placement={rollout: 0, env: 0}")
    cfg = composed(*placed, *few, recipe="pendulum_sac")
    with Cluster(cluster_cfg=cfg.cluster) as cluster, pytest.raises(ConfigError) as caught:
        check_ranks(cfg, cluster.placement)
    assert [fault.place for fault in each_fault(caught.value)] == ["env.train.total_num_envs", "actor.global_batch_size"]
    assert "64 transitions can't be parted over 3 actors. Use a multiple of 3." in str(caught.value)
    two = [each.replace("actor: 0-2", "actor: 0-1") for each in placed]
    cfg = composed(*two, *few, recipe="pendulum_sac")
    with Cluster(cluster_cfg=cfg.cluster) as cluster:
        check_ranks(cfg, cluster.placement)
    cfg = composed(*two, *few[1:], recipe="halfcheetah_crossq")
    message = r"^cluster\.component_placement\.actor: critics of 'crossq' normalise by a whole batch, which 2 actors share"
    with Cluster(cluster_cfg=cfg.cluster) as cluster, pytest.raises(ConfigError, match=message):
        check_ranks(cfg, cluster.placement)


@pytest.mark.parametrize(
    ("placed", "message"),
    [
        ("{actor: 0-2, rollout: 0, env: 0}", r"^env\.train\.total_num_envs: 2 groups of environments are fewer than 3 actors"),
        ("{actor: 0, rollout: 0-2, env: 0}", r"^cluster\.component_placement\.rollout: 3 rollout workers for 1 slots \(1 env w"),
        ("{actor: 0, rollout: 0, env: 0}", ""),
    ],
)
def test_workers_of_a_run_that_would_have_nothing_to_do(placed: str, message: str) -> None:
    local = ("cluster.backend=local", "cluster.virtual_accelerators={count: 3}", f"cluster.component_placement={placed}")
    cfg = composed(*local, "env.train.total_num_envs=2", "actor.global_batch_size=128")
    refused = pytest.raises(ConfigError, match=message) if message else nullcontext()
    with Cluster(cluster_cfg=cfg.cluster) as cluster, refused:
        check_ranks(cfg, cluster.placement)


def test_fewer_examples_than_actors() -> None:
    local = ("cluster.backend=local", "cluster.virtual_accelerators={count: 3}")
    placed = "cluster.component_placement={actor: 0-2, rollout: 0, env: 0}"
    data = compose_app_recipe(CONFIG, "tabletop_dagger", (*local, placed, "actor.global_batch_size=2")).data
    cfg: Any = task_type_of(data).read(data)
    message = r"^actor\.global_batch_size: 2 examples can't be parted over 3 ranks"
    with Cluster(cluster_cfg=cfg.cluster) as cluster, pytest.raises(ConfigError, match=message):
        check_ranks(cfg, cluster.placement)


def test_fewer_demonstrations_than_off_policy_actors(tmp_path: Path) -> None:
    command = [sys.executable, str(CONFIG.parent / "collect.py"), "--config-name", "tabletop_rlpd", "--episodes", "1"]
    subprocess.run([*command, "--out", str(tmp_path / "demos")], check=True, capture_output=True)
    placed = ("cluster.backend=local", "cluster.virtual_accelerators={count: 2}")
    for actors, refused in (("0", False), ("0-1", True)):
        where = f"cluster.component_placement={{actor: {actors}, rollout: 0, env: 0}}"
        cfg = composed(*placed, where, f"algorithm.demo_buffer.path={tmp_path / 'demos'}", recipe="tabletop_rlpd")
        with Cluster(cluster_cfg=cfg.cluster) as cluster:
            if not refused:
                check_ranks(cfg, cluster.placement)
                continue
            with pytest.raises(ConfigError, match=r"^algorithm\.demo_buffer: 1 episodes can't be parted over 2 actors"):
                check_ranks(cfg, cluster.placement)


def test_a_checkpoint_of_another_model(tmp_path: Path) -> None:
    folder = tmp_path / "run/checkpoints/global_step_1"
    write_checkpoint(folder, lambda part: None, config=composed().source, state={"step": 1})
    check_run(composed(f"runner.resume_dir={tmp_path / 'run'}"))
    other = composed(f"runner.resume_dir={tmp_path / 'run'}", "actor.model={model_type: cnn_policy}")
    with pytest.raises(ConfigError, match=r"^runner\.resume_dir: .* are of a 'mlp_policy', and .* is 'cnn_policy'\. Name"):
        check_run(other)


def test_a_model_folder_that_is_damaged_is_told_by_the_key_that_names_it(tmp_path: Path) -> None:
    for name in ("config.json", "tokenizer.json"):
        (tmp_path / name).write_text("{}")
    (tmp_path / "model.safetensors").write_bytes(b"cut")
    over = ["actor.model.preset=null", f"actor.model.model_path={tmp_path}", *(f"~actor.model.{key}" for key in OF_PRESETS)]
    data = compose_recipe(CONFIG.parents[1] / "reasoning/config_sft", "sft_arithmetic_local", over).data
    with pytest.raises(ConfigError, match=r"^actor\.model\.model_path: '.*/model\.safetensors' is no safetensors file"):
        check_run(task_type_of(data).read(data))
    (tmp_path / "model.safetensors").write_bytes((2).to_bytes(8, "little") + b"{}")
    (tmp_path / "config.json").write_text("{")
    with pytest.raises(
        ConfigError, match=r"^actor\.model\.model_path: '.*/config\.json' is no JSON \(.*\)\. It was cut or changed"
    ):
        check_run(task_type_of(data).read(data))


def test_an_environment_of_ones_own_without_a_step_limit() -> None:
    """A class has none; vectors and functions of them may have one, which only they know."""
    own = f"env.train={{env_type: '{__name__}:Walk', init_params: {{}}}}"
    with pytest.raises(ConfigError) as caught:
        composed(own)
    assert str(caught.value) == (
        f"env.train.max_episode_steps: '{__name__}:Walk' has no step limit of its own. "
        "Set it, to the steps after which an episode is cut."
    )
    composed(own, "env.train.max_episode_steps=9")
    composed(own.replace("Walk", "walks"))


class Walk(gymnasium.Env[Any, Any]):
    """Is not built here."""


def walks(num_envs: int) -> gymnasium.vector.VectorEnv[Any, Any, Any]:
    raise AssertionError(num_envs)


def test_a_converted_policy_of_another_model(tmp_path: Path) -> None:
    (tmp_path / "model.safetensors").write_bytes(save({"a": np.zeros(1)}))
    written: dict[str, Any] = {
        "format": "rlinf-policy",
        "format_version": 1,
        "model_type": "cnn_policy",
        "version": 0,
        "config": {},
    }
    (tmp_path / "config.json").write_text(json.dumps(written))
    start = f"runner.ckpt_path={tmp_path}"
    with pytest.raises(ConfigError, match=r"^runner\.ckpt_path: .* are of a 'cnn_policy', and .* is 'mlp_policy'\. Name"):
        check_run(composed(start))
    check_run(composed(start, "actor.model={model_type: cnn_policy}"))
