from dataclasses import dataclass
from typing import Any

import pytest

from rlinf.core.config import expect_range
from rlinf.core.errors import ConfigError, each_fault
from rlinf.core.registry import GATES
from rlinf.runners.config.sections import resolved
from rlinf.runners.embodied.rules import read_embodied


def test_every_choice_is_made_and_its_parameters_are_read(toy_data: dict[str, Any]) -> None:
    cfg = read_embodied(toy_data)
    assert cfg.env.train.init_params.level == 2  # type: ignore[attr-defined]
    assert cfg.env.eval.init_params.level == 2  # type: ignore[attr-defined]
    assert cfg.actor.model.config.width == 8  # type: ignore[attr-defined]
    assert cfg.actor.trainer.lr == 0.5  # type: ignore[attr-defined]
    assert cfg.algorithm.advantage.gamma == 0.9  # type: ignore[attr-defined]
    assert cfg.algorithm.loss.clip_ratio_low == 0.1  # type: ignore[attr-defined]
    assert cfg.decisions_per_iteration == 24


def test_resolved_speaks_the_language_of_yaml_and_reads_back(toy_data: dict[str, Any]) -> None:
    cfg = read_embodied(toy_data)
    plain = resolved(cfg)
    assert plain["algorithm"]["gamma"] == 0.9
    assert plain["actor"]["lr"] == 0.5
    assert plain["actor"]["model"] == {"model_type": "toy_model", "width": 8}
    assert plain["env"]["train"]["init_params"] == {"level": 2}
    assert plain["runner"]["timeout_s"] == 600.0
    again = read_embodied(plain)
    assert resolved(again) == plain


@pytest.mark.parametrize(
    ("path", "value", "message"),
    [
        ("runner.max_step", 3, r"runner\.max_step: unknown key\. Did you mean 'max_steps'"),
        ("runner.max_steps", "many", r"runner\.max_steps: expected a whole number, found 'many'"),
        ("runner.only_eval", False, r"runner\.only_eval: unknown key\. Leave it out: evaluate with eval"),
        ("actor.group_name", "ActorGroup", r"actor\.group_name: unknown key\. Leave it out"),
        ("runner.max_epochs", 3, r"runner\.max_epochs: unknown key\. Runs are counted in iterations: set runner\.max_steps"),
        ("env.train.enable_offload", True, r"env\.train\.enable_offload: unknown key\. Set env\.offload: true"),
        ("algorithm.group_size", 3, r"algorithm\.group_size: unknown key\. Set env\.train\.group_size"),
        ("reward", {}, r"reward: unknown section\. Leave it out: an embodied run learns from the environment's rewards"),
        ("critic", {}, r"critic: unknown section\. .*actor\.model\.add_value_head"),
        ("runner.val_check_interval", -1, r"runner\.val_check_interval: .*found -1\. 0 evaluates only at the end"),
        ("runner.save_interval", -1, r"runner\.save_interval: .*found -1\. 0 saves by time and at the end"),
        ("actor.tokenizer", {}, r"actor\.tokenizer: unknown key\. Leave it out: the tokenizer is that of actor\.model"),
        ("actor.model.is_lora", True, r"actor\.model\.is_lora: unknown key\. Set actor\.model\.lora: \{rank: 32\}"),
        ("algorithm.staleness_threshold", 2, r"algorithm\.staleness_threshold: unknown key\. Set rollout\.max_lag"),
        ("algorithm.auto_reset", True, r"algorithm\.auto_reset: unknown key\. Set env\.train\.auto_reset"),
        ("env.train.init_params.id", 1, r"env\.train\.init_params\.id: unknown key\. Set task_id"),
        ("runner.max_steps", 0, r"runner\.max_steps: expected more than 0.*Set how many iterations"),
        ("algorithm.gama", 0.9, r"algorithm\.gama: unknown key\. Did you mean 'gamma'"),
        ("algorithm.loss_type", "toy_los", r"algorithm\.loss_type: no policy loss named 'toy_los'\. Did you mean 'toy_loss'"),
        ("actor.learning", 1, r"actor\.learning: unknown key"),
        ("actor.model.model_type", "toy", r"actor\.model\.model_type: no model named 'toy'"),
        ("actor.model.widht", 1, r"actor\.model\.widht: unknown key\. Did you mean 'width'"),
        ("env.train.env_type", "countdwn", r"env\.train\.env_type: no environment named 'countdwn'"),
        ("env.train.init_params.levle", 1, r"env\.train\.init_params\.levle: unknown key\. Did you mean 'level'"),
        ("env.train.group_size", 3, r"env\.train\.total_num_envs: 4 environments can't be parted into groups of 3"),
        ("env.test", {}, r"env\.test: unknown key"),
        ("actor.global_batch_size", 25, r"actor\.global_batch_size: 25 decisions in an optimizer step.*only 24"),
        ("envs", {}, r"envs: unknown section\. Did you mean 'env'"),
        ("runner", 4, r"runner: expected a section, found 4"),
    ],
)
def test_faults_name_the_place_the_value_and_the_way_out(toy_data: dict[str, Any], path: str, value: Any, message: str) -> None:
    section = toy_data
    *parents, key = path.split(".")
    for parent in parents:
        section = section[parent]
    section[key] = value
    with pytest.raises(ConfigError, match=message):
        read_embodied(toy_data)


def test_a_batch_that_parts_nothing_is_refused_soon(toy_data: dict[str, Any]) -> None:
    toy_data["env"]["train"]["rollout_epoch"] = 2**40 + 1
    toy_data["actor"]["global_batch_size"] = 2**40
    with pytest.raises(ConfigError, match=r"actor\.global_batch_size: .*into whole steps\. Use a divisor, such as 1 or \d+"):
        read_embodied(toy_data)
    toy_data["env"]["train"]["rollout_epoch"] = 1
    toy_data["actor"]["global_batch_size"] = 7
    with pytest.raises(ConfigError, match=r"Use a divisor, such as 6 or 8\."):
        read_embodied(toy_data)


def test_faults_in_several_sections_are_reported_together(toy_data: dict[str, Any]) -> None:
    toy_data["runner"]["max_steps"] = "x"
    toy_data["actor"]["model"]["width"] = "wide"
    with pytest.raises(ConfigError) as caught:
        read_embodied(toy_data)
    assert "runner.max_steps" in str(caught.value)
    assert "actor.model.width" in str(caught.value)


def test_faults_on_several_levels_are_reported_together(toy_data: dict[str, Any]) -> None:
    toy_data["env"]["group_name"] = "EnvGroup"
    toy_data["env"]["train"] |= {"seed": 0, "total_num_envs": "x", "init_params": {"levle": 1}}
    toy_data["actor"] |= {"group_name": "ActorGroup", "micro_batch_size": 0.5}
    toy_data["actor"]["model"]["widht"] = 8
    with pytest.raises(ConfigError) as caught:
        read_embodied(toy_data)
    assert sorted(fault.place for fault in each_fault(caught.value)) == [
        "actor.group_name",
        "actor.micro_batch_size",
        "actor.model.widht",
        "env.group_name",
        "env.train.init_params.levle",
        "env.train.seed",
        "env.train.total_num_envs",
    ]


def test_two_choices_of_a_section_are_refused_together_and_a_key_of_neither_once(toy_data: dict[str, Any]) -> None:
    toy_data["algorithm"] |= {"gamma": "much", "clip_ratio_low": "little", "gama": 1}
    with pytest.raises(ConfigError) as caught:
        read_embodied(toy_data)
    assert sorted(fault.place for fault in each_fault(caught.value)) == [
        "algorithm.clip_ratio_low",
        "algorithm.gama",
        "algorithm.gamma",
    ]


@pytest.mark.parametrize(
    ("key", "value"), [("init_params", {"levle": 1}), ("max_episode_steps", 0), ("wrappers", [{"type": "no"}])]
)
def test_what_evaluations_take_over_is_refused_once(toy_data: dict[str, Any], key: str, value: Any) -> None:
    def places() -> list[str]:
        with pytest.raises(ConfigError) as caught:
            read_embodied(toy_data)
        return [fault.place for fault in each_fault(caught.value)]

    toy_data["env"]["train"][key] = value
    (told,) = places()
    assert told.startswith(f"env.train.{key}")
    toy_data["env"]["eval"][key] = value
    assert places() == [told, told.replace("train", "eval")]


def test_missing_choices_list_what_is_installed(toy_data: dict[str, Any]) -> None:
    del toy_data["env"]["train"]["env_type"]
    with pytest.raises(ConfigError, match=r"env\.train\.env_type: missing\. Installed: .*countdown"):
        read_embodied(toy_data)
    with pytest.raises(ConfigError):
        read_embodied({})


def test_what_a_gate_refuses_is_called_by_the_keys_of_runs(toy_data: dict[str, Any]) -> None:
    @dataclass(frozen=True)
    class Narrow:
        tolerance: float
        allowed_share: float

        def __post_init__(self) -> None:
            expect_range("tolerance", self.tolerance, 0.0, 0.5)

    GATES.register("narrow")(Narrow)
    with pytest.raises(ConfigError, match=r"^actor\.logprob_tolerance: expected .*found 0\.75"):
        read_embodied({**toy_data, "actor": {**toy_data["actor"], "gate": "narrow", "logprob_tolerance": 0.75}})
