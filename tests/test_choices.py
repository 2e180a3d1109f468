"""Another type on the command line: the recipe's parameters of the old one go, those of the command line stay."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from rlinf.core.errors import ConfigError, UnknownName
from rlinf.runners import eval_app, read_embodied, write_checkpoint
from rlinf.runners.config.composition import compose_recipe
from rlinf.runners.evaluation.command import parse_evaluation
from rlinf.runners.reasoning import read_reasoning
from rlinf.runners.task_types import explain_run

APPS = Path(__file__).parents[1] / "apps"
CONFIG, REASONING = APPS / "embodied/config", APPS / "reasoning/config"


def composed(*overrides: str, recipe: str = "maniskill_ppo_mlp") -> Any:
    return compose_recipe(CONFIG, recipe, overrides).data


def test_parameters_of_another_environment_go() -> None:
    data = composed("env.train.env_type=gymnasium", "env.train.init_params.env_id=Pendulum-v1")
    assert data["env"]["train"]["init_params"] == {"env_id": "Pendulum-v1"}
    cfg = read_embodied(data)
    assert cfg.env.eval.env_type == "gymnasium"
    same = composed("env.train.env_type=maniskill", "env.train.total_num_envs=32")
    assert same["env"]["train"]["init_params"] == {"task_id": "PushCube-v1"}
    # In any case it is the same name.
    assert composed("env.train.env_type=ManiSkill")["env"]["train"]["init_params"] == {"task_id": "PushCube-v1"}


def test_an_environment_of_the_evaluation_alone_takes_nothing_from_that_of_training() -> None:
    data = composed("env.eval.env_type=gymnasium", "env.eval.init_params.env_id=Pendulum-v1")
    cfg: Any = read_embodied(data)
    assert (cfg.env.train.init_params.task_id, cfg.env.eval.init_params.env_id) == ("PushCube-v1", "Pendulum-v1")
    with pytest.raises(ConfigError, match=r"env\.eval\.init_params\.env_id: missing"):
        read_embodied(composed("env.eval.env_type=gymnasium"))


def test_what_the_new_model_knows_stays() -> None:
    data = composed("actor.model.model_type=cnn_policy", "actor.model.preset=tiny")
    # of the recipe: logstd_init, which both know, and normalize_observations, which the new one does not
    assert data["actor"]["model"] == {"model_type": "cnn_policy", "logstd_init": -1.5, "preset": "tiny"}
    as_section = composed("actor.model={model_type: cnn_policy, preset: tiny}")
    assert as_section["actor"]["model"] == data["actor"]["model"]


def test_what_the_command_line_sets_stays_and_is_refused_if_nobody_knows_it() -> None:
    data = composed("actor.model.model_type=cnn_policy", "actor.model.normalize_observations=true")
    with pytest.raises(ConfigError, match=r"actor\.model\.normalize_observations: unknown key"):
        read_embodied(data)


def test_a_section_of_two_choices_keeps_what_either_knows() -> None:
    data = composed("algorithm={adv_type: grpo, loss_type: actor}", "env.train.group_size=4")
    # gamma and gae_lambda go with gae; update_epoch is the section's own.
    assert data["algorithm"] == {"adv_type": "grpo", "loss_type": "actor", "update_epoch": 8}
    read_embodied(data)
    shared = composed("algorithm.adv_type=n_step")["algorithm"]
    assert shared == {"adv_type": "n_step", "gamma": 0.9, "update_epoch": 8}
    kept = compose_recipe(REASONING, "grpo_arithmetic", ["algorithm.loss_type=gspo"]).data["algorithm"]
    assert (kept["clip_ratio_low"], kept["clip_ratio_high"]) == (0.2, 0.28)


@pytest.mark.parametrize(
    ("override", "section", "gone"),
    [
        ("data.type=countdown", "data", "guessed_share"),
        ("reward.reward_type=think_format", "reward", "after"),
        ("actor.model.model_type=mlp_policy", "actor.model", "architecture"),
        ("algorithm.loss_type=reinforce", "algorithm", "clip_ratio_low"),
    ],
)
def test_parameters_of_every_choice_go(override: str, section: str, gone: str) -> None:
    before, after = (compose_recipe(REASONING, "grpo_arithmetic", o).data for o in ([], [override]))
    for name in section.split("."):
        before, after = before[name], after[name]
    assert gone in before
    assert gone not in after


def test_own_keys_of_a_section_stay() -> None:
    data = compose_recipe(REASONING, "grpo_1p5b_fsdp_vllm", ["actor.training_backend=megatron", "rollout.rollout_backend=hf"]).data
    assert data["actor"]["max_tokens_per_mbs"] == 16384
    assert data["rollout"]["sampling_params"] == {"max_new_tokens": 4096}
    assert "gpu_memory_utilization" not in data["rollout"]
    read_reasoning(data)


def test_a_name_that_nobody_knows_changes_nothing() -> None:
    data = composed("actor.model.model_type=mlp_polcy")
    assert data["actor"]["model"]["logstd_init"] == -1.5
    assert composed("actor.model.model_type=5")["actor"]["model"]["logstd_init"] == -1.5


def test_a_fault_of_the_recipe_stays_a_fault(tmp_path: Path) -> None:
    text = (CONFIG / "maniskill_ppo_mlp.yaml").read_text().replace("logstd_init", "logstd_inti")
    (tmp_path / "faulty.yaml").write_text(text)
    data = compose_recipe(tmp_path, "faulty", ["actor.model.model_type=cnn_policy"]).data
    assert "logstd_inti" in data["actor"]["model"]


def test_explain_tells_what_went() -> None:
    overrides = ["env.train.env_type=gymnasium", "env.train.init_params.env_id=Pendulum-v1"]
    composition = compose_recipe(CONFIG, "maniskill_ppo_mlp", overrides)
    said = explain_run(read_embodied(composition.data), composition.provenance, "env.train.init_params")
    assert "env.train.init_params.env_id = 'Pendulum-v1'  (command line)" in said
    line = "env.train.init_params.task_id: dropped, no parameter of the environment 'gymnasium' (maniskill_ppo_mlp.yaml)"
    assert line in said.splitlines()


@pytest.mark.parametrize(
    ("key", "means"),
    [
        ("runner.seed", "The source of all randomness of the run."),
        ("actor.model.hidden_sizes", "Units of each hidden layer"),  # of what `model_type` chose
        ("env.train.init_params.task_id", "A registered task"),
    ],
)
def test_a_single_key_is_explained_by_what_it_means(key: str, means: str) -> None:
    composition = compose_recipe(CONFIG, "maniskill_ppo_mlp")
    said = explain_run(read_embodied(composition.data), composition.provenance, key).splitlines()
    assert said[0].startswith(f"{key} = ")
    assert said[1].startswith(f"  {means}")
    assert len(said) == 2


def test_a_key_of_the_cluster_that_the_recipe_leaves_out_is_not_called_unknown() -> None:
    composition = compose_recipe(CONFIG, "maniskill_ppo_mlp")
    with pytest.raises(UnknownName, match=r"^cluster\.backend: the recipe does not set it\. .* have the cluster's defaults\.$"):
        explain_run(read_embodied(composition.data), composition.provenance, "cluster.backend")


def test_an_evaluation_replaces_them_too(tmp_path: Path) -> None:
    folder = tmp_path / "run/checkpoints/global_step_1"
    folder.parent.mkdir(parents=True)
    config = composed()
    write_checkpoint(folder, lambda part: None, config=config, state={"step": 1})
    arguments = [str(folder), "env.eval.env_type=gymnasium", "env.eval.init_params.env_id=Pendulum-v1"]
    command = parse_evaluation(arguments, config_dir=CONFIG, description="")
    assert command.data["env"]["eval"]["init_params"] == {"env_id": "Pendulum-v1"}
    assert command.data["env"]["train"]["init_params"] == {"task_id": "PushCube-v1"}
    command = parse_evaluation([str(folder), "actor.model.model_type=cnn_policy"], config_dir=CONFIG, description="")
    assert "normalize_observations" not in command.data["actor"]["model"]


def test_a_key_of_another_kind_of_run_makes_no_other_kind_of_run(tmp_path: Path) -> None:
    composition = compose_recipe(CONFIG, "tabletop_pi0_ppo", ["data.type=lerobot"])
    with pytest.raises(ConfigError, match=r"^data: unknown section\. Known: actor, algorithm,"):
        composition.task_type.read(composition.data)
    folder = tmp_path / "run/checkpoints/global_step_1"
    folder.parent.mkdir(parents=True)
    config = compose_recipe(CONFIG, "tabletop_pi0_ppo").data
    write_checkpoint(folder, lambda part: None, config=config, state={"step": 1})
    with pytest.raises(ConfigError, match=r"^data: unknown section\. Known: actor, algorithm,"):
        eval_app([str(folder), "data.type=lerobot"], config_dir=CONFIG, description="")


def test_a_recipe_that_builds_on_another_one_replaces_them_too(tmp_path: Path) -> None:
    for name in ("maniskill_ppo_mlp", "base"):
        if (CONFIG / f"{name}.yaml").is_file():
            (tmp_path / f"{name}.yaml").write_text((CONFIG / f"{name}.yaml").read_text())
    child = """
defaults: [maniskill_ppo_mlp, _self_]
actor: {model: {model_type: cnn_policy, preset: tiny}}
env: {train: {env_type: gymnasium, init_params: {env_id: Pendulum-v1}}}
algorithm: {adv_type: n_step}
"""
    (tmp_path / "child.yaml").write_text(child)
    (tmp_path / "grandchild.yaml").write_text("defaults: [child, _self_]\nactor: {model: {normalize_observations: true}}\n")
    composition = compose_recipe(tmp_path, "child")
    data: Any = composition.data
    assert data["actor"]["model"] == {"model_type": "cnn_policy", "logstd_init": -1.5, "preset": "tiny"}
    assert data["env"]["train"]["init_params"] == {"env_id": "Pendulum-v1"}
    assert data["algorithm"] == {"adv_type": "n_step", "gamma": 0.9, "update_epoch": 8}
    cfg = read_embodied(data)
    gone = "actor.model.normalize_observations: dropped, no parameter of the model 'cnn_policy' (maniskill_ppo_mlp.yaml)"
    assert gone in explain_run(cfg, composition.provenance, "actor.model").splitlines()
    # What the last recipe or the command line sets itself stays, and is refused if nobody knows it.
    for later in (
        compose_recipe(tmp_path, "grandchild"),
        compose_recipe(tmp_path, "child", ["actor.model.normalize_observations=true"]),
    ):
        with pytest.raises(ConfigError, match=r"actor\.model\.normalize_observations: unknown key"):
            read_embodied(later.data)
    back = compose_recipe(tmp_path, "child", ["actor.model={model_type: mlp_policy, preset: null}"]).data["actor"]["model"]
    assert "preset" not in back or back["preset"] is None
