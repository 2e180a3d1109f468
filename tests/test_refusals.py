"""Nonsense is refused before anything starts, with the keys that have to change: recipes, one override off."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from rlinf.core.data import ArraySpec, EnvSpec
from rlinf.core.errors import ConfigError, each_fault
from rlinf.runners import check_evaluation, check_run, read_embodied
from rlinf.runners.agent import read_agent
from rlinf.runners.config.checks import check_ranks
from rlinf.runners.config.composition import compose_recipe
from rlinf.runners.embodied.rules import check_spec
from rlinf.runners.reasoning import read_reasoning
from rlinf.runners.sft import read_sft
from rlinf.scheduler import Cluster

APPS = Path(__file__).parents[1] / "apps"
CONFIG, REASONING, SFT = APPS / "embodied/config", APPS / "reasoning/config", APPS / "reasoning/config_sft"


def embodied(*overrides: str, recipe: str = "maniskill_ppo_mlp") -> Any:
    return read_embodied(compose_recipe(CONFIG, recipe, overrides).data)


def reasoning(*overrides: str, recipe: str = "grpo_arithmetic") -> Any:
    return read_reasoning(compose_recipe(REASONING, recipe, overrides).data)


def sft(*overrides: str) -> Any:
    return read_sft(compose_recipe(SFT, "sft_arithmetic", overrides).data)


def agent(*overrides: str) -> Any:
    return read_agent(compose_recipe(APPS / "agent/config", "calculator_grpo", overrides).data)


READERS = {"embodied": embodied, "reasoning": reasoning, "sft": sft, "agent": agent}

REFUSED: Sequence[tuple[str, str, str]] = [
    # numbers that make no run
    ("embodied", "env.eval.max_episode_steps=-1", r"^env\.eval\.max_episode_steps: expected .*found -1"),
    ("embodied", "env.eval.max_episode_steps=0", r"^env\.eval\.max_episode_steps: expected .*found 0"),
    ("embodied", "env.eval.final_episodes=0", r"^env\.eval\.final_episodes: expected .*found 0"),
    ("embodied", "env.eval.final_episodes=-16", r"^env\.eval\.final_episodes: expected .*found -16"),
    ("embodied", "runner.val_check_interval=-1", r"^runner\.val_check_interval: "),
    ("embodied", "runner.save_interval=-1", r"^runner\.save_interval: "),
    ("embodied", "env.eval.real_time_chunking={delay: 1}", r"^env\.eval\.real_time_chunking\.execution_horizon: missing"),
    ("embodied", "env.eval.seeds=[]", r"^env\.eval\.seeds: there is none\. Name at least one"),
    ("embodied", "env.eval.seeds=[1,1]", r"^env\.eval\.seeds: 1 is there more than once"),
    ("embodied", "env.eval.seeds=[1,-2]", r"^env\.eval\.seeds: expected numbers from 0, found -2"),
    ("embodied", "env.eval.init_ids=[0,3,3]", r"^env\.eval\.init_ids: 3 is there more than once"),
    ("embodied", "env.eval.tasks=[]", r"^env\.eval\.tasks: there is none"),
    ("embodied", "env.eval.tasks=[red,red]", r"^env\.eval\.tasks: red is there more than once"),
    ("embodied", "runner.seed=-1", r"^runner\.seed: expected at least 0, found -1"),
    ("embodied", "reference.source=path", r"^reference\.ckpt_path: missing, and source: path takes the weights from there"),
    ("embodied", "reference.ckpt_path=x", r"^reference\.ckpt_path: is not read with source: none\. Set source: path"),
    ("reasoning", "runner.val_check_interval=-1", r"^runner\.val_check_interval: "),
    ("sft", "runner.val_check_interval=-1", r"^runner\.val_check_interval: "),
    ("embodied", "actor.optim.lr=1e30", r"^actor\.optim\.lr: expected a value in \(0, 1\], found 1e\+30"),
    ("embodied", "actor.optim.value_lr=1e30", r"^actor\.optim\.value_lr: "),
    (
        "embodied",
        "actor={model: {add_value_head: false}, optim: {value_lr: 1e-3, critic_warmup_steps: 2}}",
        r"^actor\.optim\.value_lr: 0\.001 for the critic, and 'mlp_policy' has none\. Set actor\.model\.add_value_head: true",
    ),
    (
        "embodied",
        "actor={model: {add_value_head: false}, optim: {critic_warmup_steps: 2}}",
        r"^actor\.optim\.critic_warmup_steps: 2 for the critic",
    ),
    ("embodied", "actor.optim.adam_eps=-1", r"^actor\.optim\.adam_eps: "),
    ("embodied", "actor.optim.weight_decay=1e30", r"^actor\.optim\.weight_decay: "),
    ("embodied", "runner.timeout_s=nan", r"^runner\.timeout_s: expected a finite number, found nan"),
    ("embodied", "runner.timeout_s=1e30", r"^runner\.timeout_s: "),
    ("embodied", "actor.model.logstd_init=nan", r"^actor\.model\.logstd_init: expected a finite number, found nan"),
    ("embodied", "actor.model.logstd_init=1e30", r"^actor\.model\.logstd_init: "),
    ("reasoning", "reward.success=nan", r"^reward\.success: expected a finite number, found nan"),
    ("reasoning", "runner.transcripts=-1", r"^runner\.transcripts: "),
    ("reasoning", "rollout.sampling_params.stop_token_ids=[-1]", r"^rollout\.sampling_params\.stop_token_ids: .*found -1"),
    ("reasoning", "reward.overlong={max_length: 33, cache: 4}", r"^reward\.overlong\.max_length: .*max_new_tokens.*32"),
    ("reasoning", "rollout.sampling_params.max_new_tokens=64", r"^rollout\.max_model_len: .*64"),
    ("reasoning", "eval.temperature=-1", r"^eval\.temperature: "),
    ("reasoning", "rollout.timeout_s=nan", r"^rollout\.timeout_s: "),
    # batches
    ("embodied", "actor.global_batch_size=300", r"^actor\.global_batch_size: 300 .*800.*whole.*400"),
    ("reasoning", "actor.global_batch_size=96", r"^actor\.global_batch_size: 96 .*256.*whole.*64"),
    # names
    ("embodied", "runner.experiment_name=..", r"^runner\.experiment_name: expected the name of a folder, found '\.\.'"),
    ("embodied", "runner.experiment_name=.", r"^runner\.experiment_name: "),
    ("embodied", "runner.experiment_name='  '", r"^runner\.experiment_name: "),
    ("embodied", "runner.task_type=reasoning", r"^runner\.task_type: .*'embodied'.*found 'reasoning'"),
    ("reasoning", "runner.task_type=sft", r"^runner\.task_type: .*'reasoning'.*found 'sft'"),
    ("sft", "runner.task_type=embodied", r"^runner\.task_type: .*'sft'.*found 'embodied'"),
    ("embodied", "env.train.env_type=5", r"^env\.train\.env_type: expected the name of an environment, found 5\. Installed: "),
    ("embodied", "env.train.env_type=[]", r"^env\.train\.env_type: expected the name of an environment, found \[\]"),
    ("embodied", "env.train.env_type=null", r"^env\.train\.env_type: "),
    ("embodied", "algorithm.adv_type=1.5", r"^algorithm\.adv_type: expected the name of an advantage, found 1\.5"),
    ("embodied", "algorithm.loss_type=[gae]", r"^algorithm\.loss_type: expected the name of a policy loss"),
    ("embodied", "actor.training_backend=[]", r"^actor\.training_backend: expected the name of a trainer"),
    ("embodied", "actor.weight_syncer.type=3", r"^actor\.weight_syncer\.type: expected the name of a weight sync"),
    ("reasoning", "reward.reward_type=5", r"^reward\.reward_type: expected the name of a reward"),
    ("reasoning", "data.type=5", r"^data\.type: expected the name of a task"),
    ("reasoning", "actor.gate=no_such_gate", r"^actor\.gate: no gate named 'no_such_gate'"),
    ("embodied", "actor.gate=no_such_gate", r"^actor\.gate: no gate named 'no_such_gate'"),
    # components
    ("embodied", "cluster.component_placement.evn=0", r"^cluster\.component_placement\.evn: .*Did you mean 'env'"),
    ("reasoning", "~cluster.component_placement.reward", r"^cluster\.component_placement\.reward: .*not placed"),
    ("reasoning", "+cluster.component_placement.rewrad=0", r"^cluster\.component_placement\.rewrad: .*Did you mean 'reward'"),
    (
        "reasoning",
        "+cluster.component_placement.critic=0",
        r"^cluster\.component_placement\.critic: .*actor\.model\.add_value_head",
    ),
    ("sft", "cluster.component_placement.rollout=0", r"^cluster\.component_placement\.rollout: "),
    # what one section needs of another
    ("reasoning", "algorithm.kl_beta=0.1", r"^algorithm\.kl_beta: .*reference.*reference\.source"),
    ("reasoning", "algorithm.adv_type=opd", r"^algorithm\.adv_type: 'opd' .*reference\.source"),
    ("reasoning", "algorithm={adv_type: reinpp, reinpp_kl_beta: 0.1}", r"^algorithm\.reinpp_kl_beta: .*reference\.source"),
    ("reasoning", "algorithm.adv_type=gae", r"^algorithm\.adv_type: 'gae' .*critic.*actor\.model\.add_value_head"),
    ("reasoning", "algorithm={adv_type: vtrace}", r"^algorithm\.adv_type: 'vtrace' .*actor\.model\.add_value_head"),
    ("reasoning", "algorithm.loss_type=actor_critic", r"algorithm\.loss_type: 'actor_critic' .*actor\.model\.add_value_head"),
    ("reasoning", "algorithm.loss_type=decoupled_ppo", r"^algorithm\.loss_type: .*algorithm\.recompute_logprobs"),
    ("reasoning", "+algorithm.correction={mode: truncate}", r"^algorithm\.correction: .*algorithm\.recompute_logprobs"),
    ("agent", "algorithm.adv_type=remax", r"^algorithm\.adv_type: 'remax' .*greedy"),
    ("agent", "algorithm.adv_type=optimal_token_baseline", r"^algorithm\.adv_type: .*squared probabilities.*Choose another"),
    ("reasoning", "algorithm.adv_type=optimal_token_baseline", r"^algorithm\.adv_type: .*Set algorithm\.recompute_logprobs: true"),
    (
        "reasoning",
        "rollout.sampling_params.temperature=0.7",
        r"^actor\.model\.temperature: .*0\.7.*rollout\.sampling_params\.temp.*found 1",
    ),
    ("reasoning", "actor.reference=cpu", r"^actor\.reference: .*reference\.source"),
    ("reasoning", "rollout.group_size=1", r"algorithm\.adv_type: 'grpo' .*rollout\.group_size"),
    ("embodied", "algorithm.kl_beta=0.1", r"^algorithm\.kl_beta: .*reference"),
    ("embodied", "algorithm.adv_type=remax", r"algorithm\.adv_type: 'remax' "),
    ("embodied", "algorithm.loss_type=decoupled_actor_critic", r"^algorithm\.loss_type: 'decoupled_actor_critic' "),
    ("embodied", "actor.model.add_value_head=false", r"algorithm\.adv_type: 'gae' .*actor\.model\.add_value_head"),
    ("embodied", "algorithm.adv_type=grpo", r"algorithm\.adv_type: 'grpo' .*env\.train\.group_size"),
    ("embodied", "algorithm={adv_type: grpo}", r"algorithm\.loss_type: 'actor_critic' .*target"),
    ("embodied", "actor.reference=cpu", r"^actor\.reference: "),
    (
        "embodied",
        "actor={model: {model_type: cma, preset: tiny}, global_batch_size: 20}",
        r"^actor\.global_batch_size: 'cma' has a memory and learns from pieces of 25 decisions, found batches of 20",
    ),
    ("embodied", "actor.model={model_type: causal_lm, preset: tiny}", r"^actor\.model\.model_type: 'causal_lm' writes text"),
    ("reasoning", "actor.model={model_type: mlp_policy}", r"actor\.model\.model_type: 'mlp_policy' .*language model"),
    ("sft", "actor.reference=cpu", r"^actor\.reference: "),
    ("sft", "actor.weight_syncer={type: full}", r"^actor\.weight_syncer: unknown key"),
    # the warm start is read with the run
    ("agent", "agent.max_turns=0", r"^agent\.max_turns: .*more than 0"),
    ("agent", "agent.max_failed_share=2", r"^agent\.max_failed_share: expected a value in .0, 1."),
    ("agent", "agent.workflow_type=tool", r"^agent\.workflow_type: no workflow named 'tool'\. Did you mean 'tools'"),
    ("agent", "agent.tool_format.type=hermess", r"^agent\.tool_format\.type: .*Did you mean 'hermes'"),
    ("agent", "agent.tools=[{type: calculater}]", r"^agent\.tools\[0\]\.type: no tool .*Did you mean 'calculator'"),
    ("agent", "agent.tools=[{type: calculator, timeout_s: 0}]", r"agent\.tools\[0\]\.timeout_s: "),
    ("agent", "agent.tools=[{type: calculator}, {type: calculator}]", r"^agent\.tools: two tools are called 'calculator'"),
    ("agent", "agent.tool_workers={resends: -1}", r"^agent\.tool_workers\.resends: expected .*found -1"),
    ("agent", "cluster.component_placement.tool='0'", r"^cluster\.component_placement\.tool: .*Did you mean 'tools'"),
    ("reasoning", "cluster.component_placement.tools='0'", r"^cluster\.component_placement\.tools: this run has no such component"),
    ("agent", "rollout.partial_lag=1", r"^rollout\.partial_lag: expected 0, found 1: with rollout\.oversample 1 all groups"),
    ("reasoning", "sft.runner.max_steps=0", r"^sft\.runner\.max_steps: "),
    ("reasoning", "sft.actor.optim.lrr=1", r"^sft\.actor\.optim\.lrr: unknown key"),
]


TASKS: Sequence[tuple[str, str, str]] = [
    ("tabletop_openvla_oft_ppo", "env.eval.tasks=[purple]", r"env\.eval\.env_type 'tabletop' has no task 'purple'.*red"),
    ("tabletop_openvla_oft_ppo", "env.eval.tasks=4", r"'tabletop' has no task 3\. Tasks, numbered 0 to 2: blue"),
    ("metaworld_mt10_ppo", "env.eval.tasks=[reech]", r"'metaworld' has no task 'reech'\. Did you mean 'reach'"),
    ("maniskill_ppo_mlp", "env.eval.tasks=1", r"'maniskill' can't be asked for a task, found 0\. Leave it out"),
]


@pytest.mark.parametrize(("recipe", "override", "message"), TASKS)
def test_an_evaluation_of_tasks_that_there_are_not_is_refused_before_anything_is_built(
    recipe: str, override: str, message: str
) -> None:
    with pytest.raises(ConfigError) as caught:
        embodied(override, recipe=recipe)
    assert re.search(rf"^env\.eval\.tasks: .*{message}", str(caught.value)), str(caught.value)


def test_a_policy_that_sees_is_refused_where_nothing_is_seen() -> None:
    message = r"^actor\.model\.model_type: 'cnn_policy' needs main_images or wrist_images .*, and .*'maniskill' shows states\."
    with pytest.raises(ConfigError, match=message):
        embodied("actor.model={model_type: cnn_policy}")


def test_an_evaluation_with_other_actions_is_refused_before_anything_is_built() -> None:
    message = r"^env\.eval\.env_type: 'tabletop' takes actions \[4\], and env\.train\.env_type 'tabletop' \[2\]"
    with pytest.raises(ConfigError, match=message):
        embodied("env.eval.init_params={task: pick_place, obs_mode: rgb}", recipe="tabletop_cnn_ppo")


def test_actions_with_more_numbers_than_a_network_makes_are_refused_before_anything_is_built() -> None:
    message = r"^actor\.model\.max_action_dim: 'pi0' makes actions of at most 1 numbers, and .* 'tabletop' takes 2\. Set it to 2 or"
    with pytest.raises(ConfigError, match=message):
        embodied("actor.model.max_action_dim=1", recipe="tabletop_pi0_ppo")
    embodied("actor.model.max_action_dim=2", recipe="tabletop_pi0_ppo")


def test_what_training_and_evaluations_both_lack_is_told_once() -> None:
    nowhere = ("env.train.env_type=libero", "env.train.init_params.assets=/nowhere", "env.train.wrappers=[]")
    with pytest.raises(ConfigError) as caught:
        check_run(embodied(*nowhere, recipe="tabletop_openvla_oft_ppo"))
    assert caught.value.place.startswith("env.train.init_params")
    assert len(each_fault(caught.value)) == 1


@pytest.mark.parametrize(("section", "other"), [("train", "eval"), ("eval", "train")])
def test_a_chunk_longer_than_the_simulators_own_episodes_is_refused_before_anything_is_built(section: str, other: str) -> None:
    limits = (f"env.{section}.max_episode_steps=null", f"env.{other}.max_episode_steps=100")
    message = (
        rf"^actor\.model\.num_action_chunks: .* 64 .* env\.{section}\.env_type 'maniskill' ends an episode after 50\. "
        rf"Lower it, or set env\.{section}\.max_episode_steps\.$"
    )
    with pytest.raises(ConfigError, match=message):
        embodied(*limits, "actor.model={model_type: flow_policy, num_action_chunks: 64, horizon: 64}")
    embodied(*limits, "actor.model={model_type: flow_policy, num_action_chunks: 50, horizon: 64}")


def test_tasks_have_names_texts_and_numbers() -> None:
    named = {"metaworld_mt10_ppo": ["reach", "open the door", 9], "tabletop_openvla_oft_ppo": ["green", 2]}
    for recipe, tasks in named.items():
        assert embodied(f"env.eval.tasks={tasks}", recipe=recipe).env.eval.task_ids == tuple(tasks)


@pytest.mark.parametrize(("kind", "override", "message"), REFUSED, ids=[f"{kind}-{override}" for kind, override, _ in REFUSED])
def test_a_recipe_with_one_override_off_is_refused_with_its_keys(kind: str, override: str, message: str) -> None:
    with pytest.raises(ConfigError) as caught:
        READERS[kind](override)
    lines = str(caught.value).splitlines()
    assert any(re.search(message, line.strip()) for line in lines), str(caught.value)


def test_tool_workers_without_tools_are_refused() -> None:
    with pytest.raises(ConfigError, match=r"^cluster\.component_placement\.tools: this run has no tools"):
        agent("cluster.component_placement.tools='0'", "agent.tools=[]")
    agent("cluster.component_placement.tools='0'")


def test_an_answer_that_is_rated_is_whole() -> None:
    online = compose_recipe(APPS / "agent/config", "online_coding", ("rollout.oversample=1.5", "rollout.partial_lag=1"))
    with pytest.raises(ConfigError, match=r"rollout\.partial_lag: expected 0, found 1: .*'online' is an answer that was rated"):
        read_agent(online.data)


def test_all_faults_are_told_together() -> None:
    with pytest.raises(ConfigError) as caught:
        reasoning(
            "algorithm.kl_beta=0.1", "actor.reference=cpu", "rollout.sampling_params.temperature=0.7", "actor.global_batch_size=96"
        )
    for key in ("algorithm.kl_beta", "actor.reference", "actor.model.temperature", "actor.global_batch_size"):
        assert f"\n  {key}: " in str(caught.value)


@pytest.mark.parametrize(
    ("kind", "override"),
    [
        ("reasoning", "hydra.run.dir=/tmp/x"),
        ("reasoning", "++hydra.run.dir=/tmp/x"),
        ("embodied", "hydra.job.name=x"),
        ("sft", "hydra/launcher=joblib"),
    ],
)
def test_settings_of_hydra_are_refused(kind: str, override: str) -> None:
    with pytest.raises(ConfigError, match=r"^hydra[./]\w+.*runner\.logger\.log_path and runner\.experiment_name"):
        READERS[kind](override)


def test_a_model_of_vectors_is_refused_where_actions_are_numbered() -> None:
    cartpole = ("env.train.env_type=gymnasium", "env.train.init_params.env_id=CartPole-v1")
    cfg = embodied(*cartpole, "actor.model.model_type=flow_policy")
    observation = {"states": ArraySpec(shape=(4,), dtype="float32")}
    numbered = EnvSpec(observation=observation, action=ArraySpec(shape=(), dtype="int64"), max_episode_steps=500)
    with pytest.raises(ConfigError, match=r"^actor\.model\.model_type: .flow_policy. makes vectors.*takes numbered actions"):
        check_spec(cfg, numbered)
    check_spec(cfg, replace(numbered, action=ArraySpec(shape=(1,), dtype="float32")))
    check_spec(embodied(*cartpole), numbered)


def test_what_is_right_is_not_refused() -> None:
    reasoning("algorithm.kl_beta=0.1", "reference.source=initial", "actor.reference=cpu")
    reasoning("algorithm={adv_type: gae, loss_type: actor_critic}", "actor.model.add_value_head=true")
    reasoning("algorithm={loss_type: decoupled_ppo, recompute_logprobs: true}")
    reasoning("algorithm={loss_type: decoupled_ppo, proximal: interpolated}")
    reasoning("rollout.sampling_params.temperature=0.7", "actor.model.temperature=0.7")
    embodied("algorithm={adv_type: grpo, loss_type: actor}", "env.train.group_size=4")


def test_files_that_are_not_there_are_told_together_with_their_keys() -> None:
    overrides = ("runner.ckpt_path=/nowhere/weights", "reference={source: path, ckpt_path: /nowhere/reference}")
    cfg = reasoning(*overrides, "runner.resume_dir=/nowhere/run", "algorithm.kl_beta=0.1")
    with pytest.raises(ConfigError) as caught:
        check_run(cfg)
    for key in ("runner.ckpt_path", "reference.ckpt_path", "runner.resume_dir"):
        assert f"\n  {key}: " in str(caught.value)
    with pytest.raises(ConfigError, match=r"^runner\.ckpt_path: no weights at '/nowhere/weights'"):
        check_run(embodied("runner.ckpt_path=/nowhere/weights"))
    with pytest.raises(ConfigError, match=r"^runner\.resume_dir: '/nowhere/run': no checkpoint here"):
        check_run(sft("runner.resume_dir=/nowhere/run"))
    with pytest.raises(ConfigError, match=r"^actor\.model\.model_path: expected a local folder, found none at '/nowhere/qwen'"):
        check_run(reasoning("actor.model={preset: null, model_path: /nowhere/qwen, tokens: null}"))
    check_evaluation(cfg, of_checkpoint=True)  # which has its weights


def test_weights_of_another_model_or_that_were_cut_are_refused_before_anything_is_built(tmp_path: Path) -> None:
    checkpoint = tmp_path / "run/checkpoints/global_step_3"
    (checkpoint / "actor").mkdir(parents=True)
    about = {"config.json": {"actor": {"model": {"model_type": "mlp_policy"}}}, "manifest.json": {}, "state.json": {}}
    for name, content in about.items():
        (checkpoint / name).write_text(json.dumps(content))
    file = checkpoint / "actor/model.safetensors"
    file.write_bytes((2).to_bytes(8, "little") + b"{}")
    cfg = embodied(f"runner.ckpt_path={tmp_path / 'run'}", recipe="tabletop_cnn_ppo")
    for check in (check_run, check_evaluation):
        with pytest.raises(ConfigError, match=r"^runner\.ckpt_path: .* are of a 'mlp_policy', and .* is 'cnn_policy'\. Name"):
            check(cfg)
    check_run(embodied(f"runner.ckpt_path={tmp_path / 'run'}"))
    file.write_bytes(b"cut")
    with pytest.raises(ConfigError, match=r"^runner\.ckpt_path: '.*model\.safetensors' is no safetensors file"):
        check_run(embodied(f"runner.ckpt_path={tmp_path / 'run'}"))


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        (("actor.fsdp_config.strategy=fsdp2",), r"^actor\.fsdp_config\.strategy: .*cluster\.backend local.*Leave it out, set"),
        (("actor.fsdp_config.cpu_offload=true",), r"^actor\.fsdp_config\.cpu_offload: "),
        (("actor.checkpoint.format=sharded",), r"^actor\.checkpoint\.format: .*Set it to whole"),
        (("actor.training_backend=megatron",), r"^actor\.training_backend: .*cluster\.backend: ray"),
        (
            ("cluster.backend=ray", "actor.fsdp_config={sharding_strategy: hybrid_shard, shard_group_size: 3}"),
            r"shard_group_size: 3",
        ),
    ],
)
def test_ranks_that_a_trainer_has_no_use_for_are_refused(overrides: tuple[str, ...], message: str) -> None:
    placed = ("cluster.backend=local", "cluster.virtual_accelerators.count=2", "cluster.component_placement={actor: 0-1}")
    cfg = sft(*placed, *overrides)
    with Cluster(cluster_cfg=cfg.cluster) as cluster, pytest.raises(ConfigError, match=message):
        check_ranks(cfg, cluster.placement)
    alone = sft(*placed[:2], "cluster.component_placement={actor: 0}", *overrides[:1])
    with Cluster(cluster_cfg=alone.cluster) as cluster:
        check_ranks(alone, cluster.placement)


PIPELINE = ("runner.use_training_pipeline=true", "env.train.rollout_epoch=2")
GROUPS = ("env.train.group_size=2", "algorithm.adv_type=grpo", "algorithm.loss_type=ppo_clip", "env.train.auto_reset=true")


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        (
            PIPELINE[:1],
            r"^env\.train\.rollout_epoch: expected at least 2 .*found 1\. Raise it, or set runner\.use_training_pipeline",
        ),
        (
            (*PIPELINE, "actor.global_batch_size=1600"),
            r"^actor\.global_batch_size: 1600 .* a rollout epoch with runner\.use_training_pipeline makes only 800 \(32 envs × 25",
        ),
        (
            (*PIPELINE, "algorithm.recompute_logprobs=true"),
            r"^algorithm\.recompute_logprobs: .*use_training_pipeline.*Set it to false",
        ),
        ((*PIPELINE, "actor.offload=true"), r"^actor\.offload: leaves the devices to the rollout.*Set it to false, or"),
    ],
)
def test_what_needs_the_whole_rollout_is_not_trained_on_while_it_goes_on(overrides: tuple[str, ...], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        embodied(*overrides)
    embodied(*PIPELINE, "env.train.auto_reset=true")


def test_groups_are_of_whole_episodes() -> None:
    """With `auto_reset` an episode can have a row in each of two rollout epochs, and neither has its return."""
    whole = r"^env\.train\.auto_reset: .*algorithm\.adv_type 'grpo' compares rows as episodes\. Set it to false\."
    filtered = whole.replace("adv_type 'grpo'", "filter_rewards")
    bounds = ("algorithm.filter_rewards=true", "algorithm.rewards_upper_bound=0.9", GROUPS[-1])
    for overrides, message in ((GROUPS, whole), (bounds, filtered)):
        with pytest.raises(ConfigError, match=message):
            embodied(*overrides)
        embodied(*overrides, "env.train.auto_reset=false")
        embodied(*PIPELINE, *overrides, "env.train.auto_reset=false")
