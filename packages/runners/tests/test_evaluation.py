from __future__ import annotations

import hashlib
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from rlinf.core.errors import CheckpointError, ConfigError
from rlinf.core.evaluation import EpisodeResult, EvalProtocol, EvalReport
from rlinf.runners import RunFolder, read_checkpoint, write_checkpoint
from rlinf.runners.embodied.evaluation import episode_protocol, evaluated_protocol, failures
from rlinf.runners.embodied.rules import read_embodied
from rlinf.runners.embodied.runner import _played
from rlinf.runners.embodied.schema import EmbodiedConfig
from rlinf.runners.evaluation.command import EvaluationCommand, parse_evaluation
from rlinf.runners.evaluation.policy import evaluation_plan, weight_sums
from rlinf.runners.evaluation.published import expect_protocol, read_protocol, repeated_episodes
from rlinf.runners.evaluation.suites import read_suite
from rlinf.runners.evaluation.tables import SuiteReport, table
from rlinf.runners.reporting.summary import write_report

RECIPE = ("--config-name", "toy")
STATISTICS = {
    "success_once": np.array([True, False, True]),
    "success_at_end": np.array([False, False, True]),
    "return": np.array([1.0, 5.0, 3.0]),
    "episode_len": np.array([4, 5, 6]),
}


def changed(cfg: EmbodiedConfig, seed: int | None = None, **evaluation: Any) -> EmbodiedConfig:
    runner = cfg.runner if seed is None else replace(cfg.runner, seed=seed)
    return replace(cfg, runner=runner, env=replace(cfg.env, eval=replace(cfg.env.eval, **evaluation)))


def parsed(*argv: str, config_dir: Path = Path()) -> EvaluationCommand:
    return parse_evaluation(argv, config_dir=config_dir, description="")


@pytest.fixture
def recipes(toy_data: dict[str, Any], tmp_path: Path) -> Path:
    """A folder with the recipe `toy`."""
    folder = tmp_path / "config"
    folder.mkdir()
    (folder / "toy.yaml").write_text(json.dumps(toy_data))  # JSON is YAML
    return folder


def checkpoint(folder: Path, **config: Any) -> Path:
    write_checkpoint(folder, lambda part: (part / "model.safetensors").write_bytes(b""), config=config, state={"step": 1})
    return folder


def test_episodes_of_training_are_means_too() -> None:
    known, unknown = ([EpisodeResult.of(STATISTICS, env, knows_success=knows) for env in (0, 2)] for knows in (True, False))
    numbers = {"env/return": 2.0, "env/episode_len": 5.0, "env/episodes": 2.0}
    assert _played(known) == {"env/success_once": 1.0, "env/success_at_end": 0.5, **numbers}
    assert _played(unknown) == numbers
    assert _played([]) == {}


def test_what_changes_a_protocol_and_what_does_not(toy_data: dict[str, Any]) -> None:
    cfg = read_embodied(toy_data)
    plain = episode_protocol(cfg, final=False)
    assert plain.env["init_params"], "parameters of the environment are part of it"
    for other in (
        changed(cfg, seed=cfg.runner.seed + 1),
        changed(cfg, episodes=cfg.env.eval.episodes * 2),
        changed(cfg, mode="train"),
        changed(cfg, max_episode_steps=3),
        changed(cfg, ignore_terminations=True),
        changed(cfg, env_type="other"),
    ):
        assert episode_protocol(other, final=False).hash != plain.hash
    same = changed(cfg, total_num_envs=1, video_cfg=replace(cfg.env.eval.video_cfg, save_video=True))
    assert episode_protocol(same, final=False).hash == plain.hash
    assert EvalProtocol.from_dict(plain.to_dict()) == plain


def test_a_run_says_that_its_evaluations_have_two_protocols(toy_data: dict[str, Any]) -> None:
    cfg = changed(read_embodied(toy_data), episodes=4, final_episodes=8)
    interim, final = (episode_protocol(cfg, final=final) for final in (False, True))
    assert evaluation_plan(interim, final, replace(cfg.runner, val_check_interval=3)) == (
        f"evaluation: 4 episodes every 3 iterations (protocol {interim.hash}), 8 episodes at the end (protocol {final.hash}); "
        "their numbers are not comparable"
    )
    assert evaluation_plan(final, final, replace(cfg.runner, val_check_interval=3)) == (
        f"evaluation: 8 episodes every 3 iterations and at the end (protocol {final.hash})"
    )
    never = evaluation_plan(interim, final, replace(cfg.runner, val_check_interval=0))
    assert never == f"evaluation: 8 episodes at the end (protocol {final.hash})"


def test_a_summary_is_a_report(toy_data: dict[str, Any], tmp_path: Path) -> None:
    cfg = changed(read_embodied(toy_data), episodes=4)
    protocol = episode_protocol(cfg, final=False)
    results = [EpisodeResult.of(STATISTICS, e.number % 2, knows_success=True, episode=e) for e in protocol.work_list()]
    report = EvalReport(protocol=protocol, results=tuple(results))
    write_report(RunFolder(tmp_path), cfg.runner, report, {"env/steps": 7.0})
    assert EvalReport.load(tmp_path / "summary.json") == report


def test_neither_a_checkpoint_nor_a_recipe() -> None:
    for argv in ((), ("env.eval.episodes=8",)):
        with pytest.raises(
            ConfigError, match=r"CHECKPOINT: expected a checkpoint or a recipe, found neither.*--config-name RECIPE"
        ):
            parsed(*argv)


def test_both_a_checkpoint_and_a_recipe(recipes: Path) -> None:
    with pytest.raises(
        ConfigError, match=r"^CHECKPOINT: expected a checkpoint or a recipe, found both: 'logs/a' and --config-name toy"
    ):
        parsed("logs/a", "--config-name", "toy", config_dir=recipes)


def test_a_mistyped_path_is_told_with_the_keys(recipes: Path) -> None:
    with pytest.raises(ConfigError, match=r"CHECKPOINT: there is nothing at '.*/logs/nowhere'.*runner\.ckpt_path"):
        parsed("logs/nowhere")
    with pytest.raises(ConfigError, match=r"^CHECKPOINT: '/': no checkpoint here \(no manifest\.json\)"):
        parsed("/")
    policy = recipes / "policy"
    policy.mkdir()
    (policy / "model.safetensors").touch()
    with pytest.raises(ConfigError, match=r"no manifest\.json.*--config-name RECIPE runner\.ckpt_path=/.*/policy\.$"):
        parsed(str(policy))
    runner = read_embodied(parsed(*RECIPE, "runner.ckpt_path=/nowhere/weights", config_dir=recipes).data).runner
    with pytest.raises(ConfigError, match=r"runner\.ckpt_path: no weights at '/nowhere/weights'"):
        parsed(*RECIPE, config_dir=recipes).policy(runner)


def test_a_recipe_is_evaluated_with_its_weights_or_without(recipes: Path, tmp_path: Path) -> None:
    logs = f"runner.logger.log_path={tmp_path}"
    command = parsed(*RECIPE, logs, config_dir=recipes)
    base = command.policy(read_embodied(command.data).runner)
    base_name = read_embodied(command.data).runner.experiment_name
    assert (base.checkpoint_file, base.step, base.parent.parent.name) == (None, 0, f"{base_name}_eval")
    parents = {base.parent}
    for name in ("a", "b"):
        file = checkpoint(tmp_path / name / "global_step_1") / "actor/model.safetensors"
        command = parsed(*RECIPE, logs, f"runner.ckpt_path={file}", config_dir=recipes)
        policy = command.policy(read_embodied(command.data).runner)
        assert policy.name == str(file)
        parents.add(policy.parent)
    assert len(parents) == 3, "results of other weights are left alone"


def test_a_checkpoint_is_evaluated_with_its_own_weights(tmp_path: Path) -> None:
    folder = checkpoint(tmp_path / "global_step_1", runner={"experiment_name": "x", "ckpt_path": "a", "resume_dir": "b"})
    assert parsed(str(folder)).data["runner"] == {"experiment_name": "x"}
    assert parsed(str(folder), "a=1").checkpoint == read_checkpoint(folder)
    for key in ("ckpt_path", "resume_dir"):
        with pytest.raises(ConfigError, match=rf"runner\.{key}: "):
            parsed(str(folder), f"runner.{key}=other")
    with pytest.raises(ConfigError, match="b: not an override"):
        parsed(str(folder), "b")


def test_what_is_changed_of_a_policy_is_part_of_the_protocol(toy_data: dict[str, Any], tmp_path: Path) -> None:
    folder, (key, value) = checkpoint(tmp_path / "global_step_1", **toy_data), ("width", 4)
    hashes: list[str] = []
    for overrides in ((), (f"actor.model.{key}={value}",)):
        command = parsed(str(folder), *overrides)
        cfg = read_embodied(command.data)
        protocol = evaluated_protocol(cfg, command.policy(cfg.runner))
        assert protocol.model == ({key: value} if overrides else None)
        assert EvalProtocol.from_dict(json.loads(json.dumps(protocol.to_dict()))) == protocol
        hashes.append(protocol.hash)
    assert hashes[0] == episode_protocol(read_embodied(toy_data), final=True).hash != hashes[1]


def test_a_place_that_can_not_be_written_is_refused_before_the_work(toy_data: dict[str, Any], tmp_path: Path) -> None:
    folder = checkpoint(tmp_path / "global_step_1")
    (tmp_path / "global_step_1_eval").write_text("a file")
    with pytest.raises(CheckpointError, match=r"global_step_1_eval: the evaluation can't be written there .* Copy the run"):
        parsed(str(folder)).policy(read_embodied(toy_data).runner)


def test_what_an_evaluation_can_be_parted_into(toy_data: dict[str, Any]) -> None:
    cfg = changed(read_embodied(toy_data), tasks=3, episodes=2, seeds=(4, 5), init_ids=(7,), initial_states="id", success="at_end")
    protocol = episode_protocol(cfg, final=True)
    assert (protocol.tasks, protocol.init_ids, protocol.seeds) == ((0, 1, 2), (7,), (4, 5))
    assert (protocol.initial_states, protocol.success) == ("id", "at_end")
    assert episode_protocol(cfg, final=False).init_ids == (0, 1), "initial states by number are those of the last evaluation"
    assert episode_protocol(changed(cfg, tasks=("red", 2)), final=True).tasks == ("red", 2)
    with pytest.raises(ConfigError, match="tasks"):
        changed(cfg, tasks=0)
    with pytest.raises(ConfigError, match="nothing is filmed without save_video"):
        replace(cfg.env.eval.video_cfg, save_video=False, failures=2)


def test_a_published_protocol_becomes_the_configuration_that_has_its_hash(toy_data: dict[str, Any], tmp_path: Path) -> None:
    asked = {"tasks": (1, "a"), "init_ids": (3, 5), "seeds": (2, 9), "initial_states": "id", "mode": "train"}
    published = episode_protocol(changed(read_embodied(toy_data), success="at_end", **asked), final=True)
    file = tmp_path / "summary.json"
    file.write_text(json.dumps({"protocol": published.to_dict()}))
    data = repeated_episodes(
        {**toy_data, "env": {**toy_data["env"], "eval": {"episodes": 99}}}, read_protocol(file), ["runner.seed"]
    )
    assert episode_protocol(read_embodied(data), final=True) == published
    with pytest.raises(ConfigError, match=r"env\.eval\.init_params\.level: the file of --protocol says it"):
        repeated_episodes(toy_data, published, ["env.eval.init_params.level"])
    with pytest.raises(ConfigError, match="found the environment in words: 'a simulator'"):
        repeated_episodes(toy_data, replace(published, env="a simulator"), [])


def test_episodes_are_not_repeated_where_there_is_no_environment(toy_data: dict[str, Any]) -> None:
    published = episode_protocol(read_embodied(toy_data), final=True)
    with pytest.raises(ConfigError, match=r"^--protocol: expected a protocol of problems, as this configuration has no env"):
        repeated_episodes({"data": {"type": "arithmetic"}}, published, [])


def test_what_differs_is_named(toy_data: dict[str, Any]) -> None:
    one = episode_protocol(read_embodied(toy_data), final=True)
    expect_protocol(None, one)
    expect_protocol(one, one)
    other = replace(one, mode="train", env={"env_type": "countdown", "init_params": {}})
    with pytest.raises(ConfigError) as caught:
        expect_protocol(one, other)
    assert f"--protocol: expected {one.hash}, found {other.hash}: " in str(caught.value)
    assert "mode is 'eval' in the file and 'train' here" in str(caught.value)
    assert "env.init_params.level is only in the file" in str(caught.value)


def test_a_file_that_holds_no_protocol(tmp_path: Path, toy_data: dict[str, Any]) -> None:
    file = tmp_path / "x.json"
    for text in ("[", "[]", "{}", '{"protocol": 1}', '{"env": "a"}', '{"protocol": {"data": {}, "hash": "1"}}'):
        file.write_text(text)
        with pytest.raises(ConfigError, match=r"^--protocol"):
            read_protocol(file)
    with pytest.raises(
        ConfigError, match=r"^--protocol: '.*gone\.json' can't be read \(No such file or directory\)\. Name a summary"
    ):
        read_protocol(tmp_path / "gone.json")
    changed_by_hand = {**episode_protocol(read_embodied(toy_data), final=True).to_dict(), "mode": "train"}
    file.write_text(json.dumps(changed_by_hand))
    with pytest.raises(ConfigError, match="changed by hand"):
        read_protocol(file)


def test_a_suite_is_read_or_refused(tmp_path: Path) -> None:
    file = tmp_path / "suite.yaml"
    file.write_text("a: {env.eval.tasks: [x, 1], env: {eval: {seeds: [3]}}}\nb: {runner.seed: 2}\n")
    assert read_suite(file) == {"a": ['env.eval.tasks=["x", 1]', "env.eval.seeds=[3]"], "b": ["runner.seed=2"]}
    for text in ("- a", "a: 1", "{}", "a: {}", "a: ["):
        file.write_text(text)
        with pytest.raises(ConfigError, match="tasks: 10"):
            read_suite(file)
    with pytest.raises(ConfigError, match=r"^--suite: '.*gone\.yaml' can't be read \(No such file or directory\)\. Write"):
        read_suite(tmp_path / "gone.yaml")


def test_a_command_names_a_suite_or_a_protocol(recipes: Path, tmp_path: Path) -> None:
    file = tmp_path / "suite.yaml"
    file.write_text("a: {env.eval.episodes: 3}\nb: {env.eval.seeds: [7]}\n")
    command = parsed(*RECIPE, "--suite", str(file), "env.eval.mode=train", config_dir=recipes)
    protocols = {name: episode_protocol(read_embodied(data), final=True) for name, data in command.suite.items()}
    assert (len(protocols["a"].init_ids), protocols["b"].seeds) == (3, (7,))
    assert {protocol.mode for protocol in protocols.values()} == {"train"}
    with pytest.raises(ConfigError, match="a suite has protocols of its own"):
        parsed(*RECIPE, "--suite", str(file), "--protocol", str(file), config_dir=recipes)


def test_as_many_episodes_as_are_asked_for(recipes: Path, toy_data: dict[str, Any], tmp_path: Path) -> None:
    data = {**toy_data, "env": {**toy_data["env"], "eval": {**toy_data["env"]["eval"], "episodes": 2, "final_episodes": 8}}}
    (recipes / "toy.yaml").write_text(json.dumps(data))
    folder, file = checkpoint(tmp_path / "global_step_1", **data), tmp_path / "suite.yaml"
    file.write_text("a: {env.eval.episodes: 3}\nb: {env.eval.seeds: [7]}\n")
    for named in ([str(folder)], RECIPE):
        for changes, count in (([], 8), (["env.eval.episodes=5"], 5), (["env.eval.episodes=5", "env.eval.final_episodes=6"], 6)):
            command = parsed(*named, *changes, config_dir=recipes)
            assert len(episode_protocol(read_embodied(command.data), final=True).init_ids) == count
        suite = parsed(*named, "--suite", str(file), config_dir=recipes).suite
        assert [len(episode_protocol(read_embodied(suite[name]), final=True).init_ids) for name in "ab"] == [3, 8]


def test_initial_states_by_number_and_a_number_of_episodes_do_not_contradict(recipes: Path, toy_data: dict[str, Any]) -> None:
    data = {**toy_data, "env": {**toy_data["env"], "eval": {**toy_data["env"]["eval"], "episodes": 2, "final_episodes": 8}}}
    (recipes / "toy.yaml").write_text(json.dumps(data))
    named = "env.eval.init_ids=[0,3,7]"
    command = parsed(*RECIPE, named, config_dir=recipes)
    assert episode_protocol(read_embodied(command.data), final=True).init_ids == (0, 3, 7), "final_episodes is the recipe's"
    with pytest.raises(ConfigError, match=r"^env\.eval\.init_ids: it names 3 .* and final_episodes is 8\. Leave out"):
        read_embodied(parsed(*RECIPE, named, "env.eval.final_episodes=8", config_dir=recipes).data)
    with pytest.raises(ConfigError, match=r"^env\.eval\.episodes: 5 episodes, and env\.eval\.init_ids names 3 initial states"):
        parsed(*RECIPE, named, "env.eval.episodes=5", config_dir=recipes)
    with pytest.raises(ConfigError, match=r"^env\.eval\.init_ids: expected"):
        read_embodied(parsed(*RECIPE, "env.eval.init_ids=3", config_dir=recipes).data)
    assert read_embodied(parsed(*RECIPE, named, "env.eval.episodes=3", config_dir=recipes).data).env.eval.init_ids == (0, 3, 7)


def test_failures_of_all_tasks_come_first(toy_data: dict[str, Any]) -> None:
    protocol = episode_protocol(changed(read_embodied(toy_data), tasks=2, episodes=3), final=True)
    results = tuple(
        EpisodeResult(episode=e, task=e.task, success_once=e.init_id == 1, success_at_end=False, episode_return=0.0, episode_len=1)
        for e in protocol.work_list()
    )
    report = EvalReport(protocol=protocol, results=results)
    assert [(key.task, key.init_id) for key in failures(report, 3)] == [(0, 0), (1, 0), (0, 2)]
    assert len(failures(report, 99)) == 4
    nothing = tuple(replace(result, success_once=None, success_at_end=None) for result in results)
    assert failures(EvalReport(protocol=protocol, results=nothing), 3) == []


def test_the_weights_are_named_with_their_sums(tmp_path: Path) -> None:
    (tmp_path / "a.safetensors").write_bytes(b"abc")
    (tmp_path / "model.safetensors.index.json").write_text(json.dumps({"weight_map": {"x": "a.safetensors", "y": "a.safetensors"}}))
    assert weight_sums(str(tmp_path)) == {str(tmp_path / "a.safetensors"): hashlib.sha256(b"abc").hexdigest()}


def test_a_table_has_a_row_for_each_entry_and_task(toy_data: dict[str, Any]) -> None:
    protocol = episode_protocol(changed(read_embodied(toy_data), tasks=2, episodes=2), final=True)
    results = [EpisodeResult.of(STATISTICS, e.number % 2, knows_success=True, episode=e) for e in protocol.work_list()]
    report = EvalReport(protocol=protocol, results=tuple(results))
    suite = SuiteReport(reports={"near": report, "far": report})
    lines = table(suite.rows, report.metric).splitlines()
    assert [line.split()[0] for line in lines] == ["n", "near/0", "near/1", "near", "far/0", "far/1", "far", "all"]
    assert lines[-1].split()[1:5] == ["8", "50.0%", "[21.5%,", "78.5%]"]
    assert len({len(line) for line in lines[:-1]}) == 1, "columns are aligned"
    assert SuiteReport(reports={"far": report}).hash != SuiteReport(reports={"near": report}).hash
