from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from rlinf.core.errors import CheckpointError, ConfigError
from rlinf.core.evaluation import EpisodeResult, EvalProtocol, EvalReport
from rlinf.runners import RunFolder, read_checkpoint, write_checkpoint
from rlinf.runners.embodied.evaluation import episode_protocol
from rlinf.runners.embodied.rules import read_embodied
from rlinf.runners.embodied.runner import _played
from rlinf.runners.embodied.schema import EmbodiedConfig
from rlinf.runners.evaluation.command import EvaluationCommand, parse_evaluation
from rlinf.runners.evaluation.policy import evaluation_plan
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


def test_a_mistyped_path_is_told_with_the_keys(recipes: Path) -> None:
    with pytest.raises(CheckpointError, match=r"CHECKPOINT: there is nothing at '.*/logs/nowhere'.*runner\.ckpt_path"):
        parsed("logs/nowhere")
    runner = read_embodied(parsed(*RECIPE, "runner.ckpt_path=/nowhere/weights", config_dir=recipes).data).runner
    with pytest.raises(CheckpointError, match=r"runner\.ckpt_path: no weights at '/nowhere/weights'"):
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


def test_a_place_that_can_not_be_written_is_refused_before_the_work(toy_data: dict[str, Any], tmp_path: Path) -> None:
    folder = checkpoint(tmp_path / "global_step_1")
    (tmp_path / "global_step_1_eval").write_text("a file")
    with pytest.raises(CheckpointError, match=r"global_step_1_eval: the evaluation can't be written there .* Copy the run"):
        parsed(str(folder)).policy(read_embodied(toy_data).runner)
