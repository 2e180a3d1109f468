"""One protocol: training, `eval.py` and `rlinf.envs.evaluate` measure the same numbers, to the last bit, under one hash."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, cast

import pytest
import torch
from safetensors.torch import load_file

from rlinf.core.data import Weights
from rlinf.core.evaluation import EpisodeProtocol, EvalReport, Turn
from rlinf.core.registry import MODELS
from rlinf.envs.evaluation import evaluate, protocol_env
from rlinf.envs.spaces import describe

LOCAL = "cluster.backend=local"
SIX = (
    *("env.eval.total_num_envs=6", "env.eval.episodes=4", "env.eval.final_episodes=9"),
    *("cluster.component_placement={actor: '0', rollout: '0', env: '0'}", "runner.max_steps=1"),
)


def test_training_eval_and_envs_agree(app: Any, tiny: list[str]) -> None:
    """Nine episodes in six environments, so that the last ones leave some without an episode."""
    code, said = app.train_here(*tiny, LOCAL, *SIX)
    assert code == 0, said
    folder = app.logs / "tiny"
    trained = EvalReport.load(folder / "summary.json")
    assert "evaluation: 4 episodes every 10 iterations (protocol " in said
    assert f"9 episodes at the end (protocol {trained.protocol.hash}); their numbers are not comparable" in said
    code, said = app.evaluate_here(str(folder), LOCAL)
    assert code == 0, said
    assert f"evaluation: 9 episodes (protocol {trained.protocol.hash})\n" in said
    evaluated = EvalReport.load(folder / "checkpoints/global_step_1_eval" / trained.protocol.hash / "summary.json")
    assert evaluated == trained
    alone = by_hand(trained.protocol, folder / "checkpoints/global_step_1/actor/model.safetensors")
    assert alone == trained
    assert alone.protocol.hash == evaluated.protocol.hash == trained.protocol.hash
    assert len({result.episode_return for result in trained.results}) == 9


def by_hand(protocol: EpisodeProtocol, file: Path) -> EvalReport[Any]:
    """What somebody does who has `rlinf-envs` and a policy, and no runner."""
    env = protocol_env(protocol, 6)
    model = MODELS.build("mlp_policy", {"hidden_sizes": [16]}, place="model")
    policy = cast("Any", model.build(describe(env), seed=0))
    policy.load(Weights(tensors=load_file(file), version=0))

    def decide(seen: Mapping[str, Any], turns: Sequence[Turn]) -> Any:
        with torch.no_grad():
            return policy.predict_action_batch({key: torch.from_numpy(value) for key, value in seen.items()}, "eval").action

    return evaluate(env, decide, protocol)


def test_a_policy_decides_while_its_last_chunk_is_executed(app: Any) -> None:
    """The protocol says so, has a hash of its own, and is repeated from its file."""
    timing = "env.eval.real_time_chunking={delay: 1, execution_horizon: 2}"
    short = (LOCAL, f"runner.logger.log_path={app.logs}", "env.eval.video_cfg.save_video=false")
    few = ("env.eval.total_num_envs=3", "env.eval.episodes=4", "env.train.init_params.reward_mode=progress")
    recipe = ("--config-name", "tabletop_flow_ppo")
    reports: list[EvalReport[Any]] = []
    for keys in ((), (timing,), (timing, "env.eval.real_time_chunking.guidance=false")):
        code, said = app.evaluate_here(*recipe, *short, *few, *keys)
        assert code == 0, said
        reports.append(EvalReport.load(Path(said.split()[-1])))
    assert len({report.protocol.hash for report in reports}) == 3
    assert len({tuple(result.episode_return for result in report.results) for report in reports}) == 3
    path = next(path for path in app.logs.rglob("summary.json") if path.parent.name == reports[1].protocol.hash)
    published = json.loads(path.read_text())
    assert published["protocol"]["real_time_chunking"] == {"delay": 1, "execution_horizon": 2, "guidance": True}
    (app.logs / "published.json").write_text(json.dumps(published))
    code, said = app.evaluate_here(*recipe, *short, few[0], "--protocol", str(app.logs / "published.json"))
    assert code == 0, said
    assert EvalReport.load(Path(said.split()[-1])) == reports[1]


@pytest.mark.ray
@pytest.mark.slow
@pytest.mark.usefixtures("shared_ray")
def test_a_chunk_is_executed_on_ray_while_another_process_decides(app: Any) -> None:
    """Chunks in execution travel with the observations of two env workers; the numbers are those of one process."""
    timing = "env.eval.real_time_chunking={delay: 1, execution_horizon: 2}"
    few = ("env.eval.total_num_envs=4", "env.eval.episodes=6", "env.train.init_params.reward_mode=progress")
    short = (f"runner.logger.log_path={app.logs}", "env.eval.video_cfg.save_video=false", timing, *few)
    reports: list[EvalReport[Any]] = []
    for backend in ("local", "ray"):
        code, said = app.evaluate_here("--config-name", "tabletop_flow_ppo", f"cluster.backend={backend}", *short)
        assert code == 0, said
        reports.append(EvalReport.load(Path(said.split()[-1])))
    assert reports[0] == reports[1]
    assert len(reports[1].results) == 6


def test_a_recipe_is_evaluated_without_weights_and_with_those_of_a_run(app: Any, tiny: list[str]) -> None:
    logs, one = f"runner.logger.log_path={app.logs}", "runner.max_steps=1"
    code, said = app.train_here(*tiny, LOCAL, one)
    assert code == 0, said
    trained = EvalReport.load(app.logs / "tiny/summary.json")
    for weights in ((), (f"runner.ckpt_path={app.logs / 'tiny'}",)):
        code, said = app.evaluate_here(*tiny, LOCAL, logs, one, *weights)
        assert code == 0, said
        path = Path(said.split()[-1])
        report, summary = EvalReport.load(path), json.loads(path.read_text())
        assert report.protocol == trained.protocol
        assert (report == trained) == bool(weights), "the model's own weights are others"
        assert summary["policy"] == (str(app.logs / "tiny") if weights else "actor.model as it is, without runner.ckpt_path")
    code, said = app.evaluate_here(*tiny, LOCAL, logs, "runner.ckpt_path=/nowhere/weights")
    assert code == 2
    assert "runner.ckpt_path: no weights at '/nowhere/weights'" in said
