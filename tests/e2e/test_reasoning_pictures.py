"""Questions about pictures: fine-tuning and GRPO with a vision-language model, in one process and on Ray."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from reasoning_app import ReasoningApp
from safetensors.torch import load_file

from rlinf.core.errors import WorkerError
from rlinf.envs.tasks import Shapes
from rlinf.models.language import TokensConfig, VisionLanguageConfig
from rlinf.runners.sft.examples import laid_out, read_examples

IMAGE = 3
SMALL = (
    "cluster.backend=local",
    "runner.max_steps=2",
    "runner.val_check_interval=0",
    "data={train: 60, validation: 8, rollout_batch_size: 4, val_problems: 8, final_problems: 8}",
    "rollout.group_size=4",
    "actor.global_batch_size=8",
    "actor.micro_batch_size=5",
    "sft.runner={max_steps: 1, steps_per_iteration: 30}",
    "reward={overlong: {max_length: 8, cache: 7}}",  # lengths differ, so that there is something to learn
    "sft.actor.global_batch_size=8",
)


@pytest.fixture
def app(tmp_path: Path) -> ReasoningApp:
    return ReasoningApp(tmp_path)


def run(app: ReasoningApp, *overrides: str) -> list[dict[str, Any]]:
    """The recipe, smaller; the metrics of its iterations."""
    app._main("train.py", "--config-name", "grpo_shapes", *app.log_path, *SMALL, *overrides)
    lines = (app.logs / "grpo_shapes/metrics.jsonl").read_text().splitlines()
    return [row for row in map(json.loads, lines) if "train/loss" in row]


def test_a_warm_start_and_two_iterations(app: ReasoningApp) -> None:
    rows = run(app)
    assert len(rows) == 2
    assert all(row["train/grad_norm"] > 0 for row in rows)
    drift = [row["rollout/logprob_gap/max_bound"] for row in rows]
    assert max(drift) < 1e-4, "trainer and generator see the same"
    told = [json.loads(line) for line in (app.logs / "grpo_shapes/transcripts.jsonl").read_text().splitlines()]
    problems = Shapes(grid=3, most=2, questions=("color", "kind"), choices=True, shuffled=False, train=60, validation=8)
    for line in told:
        asked = problems.problems("train" if line["kind"] == "train" else "validation")[line["problem"]]
        assert line["prompt"] == asked.prompt
        assert line["answer"] == asked.answer
        assert line["prompt"].count("<image>") == 1
    exported = VisionLanguageConfig(model_path=str(app.logs / "grpo_shapes/checkpoints/global_step_2/actor/huggingface"))
    (picture,) = problems.problems("train")[0].images
    preset = VisionLanguageConfig(preset="tiny", overrides={"vision_config": {"patch_size": 8}})
    found, expected = (config.image_processor().read([IMAGE, 5], [picture]).shown["image_patches"] for config in (exported, preset))
    assert (found == expected).all(), "the folder has the image processor"
    assert list((app.logs / "warm_starts").glob("*/checkpoints/global_step_1"))


def test_packed_examples_are_scored_as_those_apart() -> None:
    config = VisionLanguageConfig(preset="tiny", tokens=TokensConfig(kind="characters"))
    task = Shapes(choices=True, train=6, validation=1)
    problems = task.problems("train")
    tokenizer = config.tokenizer([text for problem in problems for text in (problem.prompt[7:], problem.solution or "")])
    examples = read_examples(task, "train", tokenizer, max_length=512, model=config)
    model = config.build(seed=0)

    def scores(rows: Any) -> torch.Tensor:
        batch = laid_out(rows, pad_id=0)
        with torch.no_grad():
            return model.default_forward(batch).logprob[batch.trajectory.mask]

    apart = torch.cat([scores([[each]]) for each in examples])
    torch.testing.assert_close(scores([[each] for each in examples]), apart, atol=1e-5, rtol=0)
    torch.testing.assert_close(scores([examples[:4], examples[4:]]), apart, atol=1e-5, rtol=0)
    blank = [type(each)(each.prompt, each.response, examples[0].seen) for each in examples]
    assert (scores([[each] for each in blank]) - apart).abs().max() > 1e-3, "pictures matter"


def test_models_that_read_no_pictures_are_refused_before_anything_is_learned(app: ReasoningApp) -> None:
    with pytest.raises(WorkerError, match=r"actor\.model\.model_type: CausalLMConfig can't read pictures, .* Choose vlm"):
        run(app, "actor.model.model_type=causal_lm", "~actor.model.overrides", "actor.model.architecture=qwen3")


@pytest.mark.ray
@pytest.mark.slow
@pytest.mark.timeout(900)
def test_two_actor_ranks_on_ray_learn_what_one_learns(tmp_path: Path) -> None:
    """The same responses, and losses up to rounding; in one optimizer step an iteration, as ranks order samples apart."""
    shape = ("runner.max_steps=3", "actor.global_batch_size=16", "actor.micro_batch_size=3", "algorithm.update_epoch=1")
    two = ("cluster.backend=ray", "cluster.component_placement={actor: 0-1, rollout: 0-1, reward: '0'}")
    rows, told, warm = [], [], []
    for name, backend in (("one", ()), ("two", two)):
        logs = tmp_path / name
        rows.append(run(ReasoningApp(logs), *shape, *backend))
        told.append(sorted((logs / "grpo_shapes/transcripts.jsonl").read_text().splitlines()))
        (made,) = (logs / "warm_starts").glob("*/checkpoints/global_step_1/actor/model.safetensors")
        warm.append(load_file(made))
    for key, tensor in warm[0].items():
        torch.testing.assert_close(warm[1][key], tensor, atol=2e-5, rtol=0, msg=lambda text, key=key: f"{key}: {text}")
    assert told[1] == told[0]
    for expected, found in zip(*rows, strict=True):
        assert expected["train/grad_norm"] > 0.1, "there is something to learn"
        assert found["rollout/logprob_gap/max_bound"] < 1e-5, "trainer and generator see the same"
        for metric in ("train/loss", "train/grad_norm", "train/entropy", "rollout/advantages_abs"):
            assert found[metric] == pytest.approx(expected[metric], rel=1e-4), f"step {expected['step']}: {metric}"


@pytest.mark.slow
@pytest.mark.timeout(2400)
def test_answers_about_pictures_nobody_trained_on_get_better(app: ReasoningApp) -> None:
    app._main("train.py", "--config-name", "grpo_shapes", *app.log_path, "cluster.backend=local", "runner.export=false")
    lines = (app.logs / "grpo_shapes/metrics.jsonl").read_text().splitlines()
    found = [row["eval/accuracy"] for row in map(json.loads, lines) if "eval/accuracy" in row]
    assert 0.3 < found[0] < 0.8, "imitation leaves something to learn"
    assert found[-1] > found[0] + 0.08
