"""Every recipe is read into types and placed; what it names is installed."""

from __future__ import annotations

from pathlib import Path

import pytest

from rlinf.core.errors import ConfigError, MissingExtra
from rlinf.runners import check_run, read_embodied_sft
from rlinf.runners.agent import read_agent
from rlinf.runners.commands import config
from rlinf.runners.config.composition import compose_recipe
from rlinf.runners.config.schema import RunConfig
from rlinf.runners.config.sections import resolved
from rlinf.runners.embodied_sft.evaluation import evaluation_config
from rlinf.runners.reasoning import read_reasoning
from rlinf.runners.sft.warm_starts import warm_start_config
from rlinf.runners.task_types import task_type_of
from rlinf.scheduler import Cluster, HybridComponentPlacement

APPS = Path(__file__).parents[1] / "apps"
CONFIG, REASONING, SFT = APPS / "embodied/config", APPS / "reasoning/config", APPS / "reasoning/config_sft"
EMBODIED_SFT = APPS / "embodied/config_sft"
AGENT = APPS / "agent/config"
RECIPES, REASONING_RECIPES, SFT_RECIPES = (sorted(p.stem for p in folder.glob("*.yaml")) for folder in (CONFIG, REASONING, SFT))


def check_on_this_machine(cfg: RunConfig) -> None:
    """Whether a run could begin, but for what is fetched or recorded by hand."""
    try:
        check_run(cfg)
    except ConfigError as error:
        absent = (
            "no LIBERO meshes",
            "expected a LeRobot dataset at",
            "expected recorded episodes at",
            "no weights at 'logs/",
            "data/arithmetic_pairs.jsonl",
            "data/arithmetic_questions.jsonl",
            "logs/sft_arithmetic/huggingface",
            "logs/reward_arithmetic_warm/huggingface",
            "logs/judge_arithmetic/huggingface",
            "the module 'genesis' is not installed",  # it wants an environment of its own
        )
        if not any(missing in str(error) for missing in absent):
            raise


def placed(cfg: RunConfig) -> HybridComponentPlacement:
    """Where the components of a recipe go, whose run could begin here; a template for other machines gets eight accelerators."""
    template = cfg.cluster.get("virtual_accelerators") is None
    if not template:
        check_on_this_machine(cfg)
    cluster = {**cfg.cluster, "virtual_accelerators": {"count": 8}} if template else cfg.cluster
    return HybridComponentPlacement(cfg, Cluster(cluster_cfg=cluster))


@pytest.mark.parametrize("recipe", RECIPES)
def test_a_recipe_is_short(recipe: str) -> None:
    lines = (CONFIG / f"{recipe}.yaml").read_text().splitlines()
    assert len(lines) <= 40
    assert lines[0].startswith("# ")


@pytest.mark.parametrize("recipe", RECIPES)
def test_a_recipe_is_valid_and_can_be_placed(recipe: str) -> None:
    data = compose_recipe(CONFIG, recipe).data
    task_type = task_type_of(data)
    assert task_type.name == data["runner"].get("task_type", "embodied")
    cfg = task_type.read(data)
    assert cfg.runner.experiment_name == recipe
    assert resolved(task_type.read(resolved(cfg))) == resolved(cfg)
    placement = placed(cfg)
    assert {"actor", "rollout", "env"} == set(placement.components)
    assert "env[0" in placement.describe()


@pytest.mark.parametrize("recipe", REASONING_RECIPES)
def test_a_reasoning_recipe_is_valid_and_can_be_placed(recipe: str) -> None:
    try:
        cfg = read_reasoning(compose_recipe(REASONING, recipe).data)
    except MissingExtra as error:
        pytest.skip(str(error))
    assert cfg.runner.experiment_name == recipe
    assert resolved(read_reasoning(resolved(cfg))) == resolved(cfg)
    assert resolved(cfg)["reference"]["source"] == cfg.reference.source
    placement = placed(cfg)
    assert {"actor", "rollout", "reward"} <= set(placement.components) <= {"actor", "rollout", "reward", "inference"}
    assert "rollout[0" in placement.describe()
    if cfg.sft is not None:
        assert warm_start_config(cfg.source).optimizer_steps > 0


@pytest.mark.parametrize("recipe", sorted(path.stem for path in AGENT.glob("*.yaml")))
def test_a_recipe_of_agents_is_valid_and_can_be_placed(recipe: str) -> None:
    cfg = read_agent(compose_recipe(AGENT, recipe).data)
    assert cfg.runner.experiment_name == recipe
    assert resolved(read_agent(resolved(cfg))) == resolved(cfg)
    placement = placed(cfg)
    assert {"actor", "rollout", "reward"} <= set(placement.components) <= {"actor", "rollout", "reward", "inference"}
    assert cfg.agent.toolbox().tools or cfg.agent.endpoint is not None, "something to act on, or somebody who asks"
    if cfg.sft is not None:
        examples = warm_start_config(cfg.source).data.agent
        assert examples is not None
        assert examples.tools == cfg.agent.tools


def test_an_agent_run_with_suspended_episodes_says_that_they_are_begun_anew() -> None:
    overrides = ("rollout.partial_lag=1", "rollout.oversample=1.5")
    cfg = read_agent(compose_recipe(AGENT, "calculator_grpo", overrides).data)
    assert "episodes that were suspended (rollout.partial_lag 1)" in cfg.inexact_resume


@pytest.mark.parametrize("recipe", SFT_RECIPES)
def test_a_recipe_of_fine_tuning_is_valid_and_can_be_placed(recipe: str) -> None:
    data = compose_recipe(SFT, recipe).data
    task_type = task_type_of(data)
    cfg = task_type.read(data)
    assert cfg.runner.experiment_name == recipe
    assert resolved(task_type.read(resolved(cfg))) == resolved(cfg)
    check_on_this_machine(cfg)
    assert "actor[0" in HybridComponentPlacement(cfg, Cluster(cluster_cfg=cfg.cluster)).describe()


def test_a_policy_of_fine_tuning_is_evaluated_with_the_weights_that_are_named() -> None:
    """What belongs to fine-tuning alone is left out, and nothing else."""
    overrides = ("runner.ckpt_path=named.safetensors", "runner.until_loss=0.1", "runner.seed=7")
    cfg = evaluation_config(read_embodied_sft(compose_recipe(EMBODIED_SFT, "tabletop_flow_sft", overrides).data))
    assert (cfg.runner.ckpt_path, cfg.runner.seed) == ("named.safetensors", 7)


@pytest.mark.parametrize("recipe", sorted(path.stem for path in EMBODIED_SFT.glob("*.yaml")))
def test_a_recipe_of_fine_tuning_a_policy_is_valid_and_can_be_placed(recipe: str) -> None:
    cfg = read_embodied_sft(compose_recipe(EMBODIED_SFT, recipe).data)
    assert cfg.runner.experiment_name == recipe
    assert resolved(read_embodied_sft(resolved(cfg))) == resolved(cfg)
    assert evaluation_config(cfg).env.eval == cfg.env.eval if cfg.env is not None else True
    placement = HybridComponentPlacement(cfg, Cluster(cluster_cfg=cfg.cluster))
    # A value model does not play.
    assert {"actor", *(("rollout", "env") if cfg.env is not None else ())} == set(placement.components)


@pytest.mark.parametrize("recipe", ["grpo_arithmetic", "grpo_arithmetic_async"])
def test_rlinf_config_explains_a_reasoning_recipe(recipe: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert config([str(REASONING / f"{recipe}.yaml"), "rollout.group_size=16", "--explain", "rollout"]) == 0
    said = capsys.readouterr().out
    assert "rollout.group_size = 16  (command line)" in said
    assert "rollout.sampling_params.temperature = 1.0  (default of the schema)" in said


def test_there_are_recipes() -> None:
    assert len(RECIPES) >= 5
    assert len(REASONING_RECIPES) >= 10
    assert len(SFT_RECIPES) >= 1
