from typing import Any

import pytest

from rlinf.core.errors import ConfigError
from rlinf.runners.config.sections import resolved
from rlinf.runners.reasoning.rules import read_reasoning


def test_every_choice_is_made_and_its_parameters_are_read(reasoning_data: dict[str, Any]) -> None:
    cfg: Any = read_reasoning(reasoning_data)
    assert cfg.data.task.count == 6
    assert cfg.rollout.generator.pace == 2
    assert cfg.reward.reward.scale == 0.5
    assert cfg.rollout.sampling_params.max_new_tokens == 8
    assert (cfg.responses_per_iteration, cfg.optimizer_steps_per_iteration) == (8, 1)
    assert cfg.eval_sampling.temperature == 0
    assert resolved(read_reasoning(resolved(cfg))) == resolved(cfg)


def set_at(data: dict[str, Any], path: str, value: Any) -> None:
    *parents, last = path.split(".")
    for name in parents:
        data = data.setdefault(name, {})
    data[last] = value


@pytest.mark.parametrize(
    ("path", "value", "message"),
    [
        ("data.type", "toy_tsk", r"data\.type: no task named 'toy_tsk'\. Did you mean 'toy_task'"),
        ("data.cuont", 3, r"data\.cuont: unknown key\. Did you mean 'count'"),
        ("rollout.max_lag", -1, r"rollout\.max_lag: expected at least 0, found -1"),
        ("rollout.oversample", 3.0, r"rollout\.oversample: expected a value in \[1, 2\]"),
        ("rollout.sampling_params.temperature", 0.0, r"temperature: expected more than 0, found 0: greedy"),
        ("reward.overlong", {"max_length": 4, "cache": 5}, r"reward\.overlong\.cache: expected a value in \[1, max_length = 4\]"),
        ("reference.source", "path", r"reference\.ckpt_path: missing, and source: path takes"),
        ("actor.max_tokens_per_mbs", 0, r"actor\.max_tokens_per_mbs: expected more than 0"),
        ("actor.global_batch_size", 9, r"actor\.global_batch_size: 9 responses .* only 8 \(4 problems × 2 responses\)"),
        ("eval.pass_k", [1, 4], r"eval\.pass_k: expected values from 1 to samples = 1, found 4"),
        ("env", {}, r"env: unknown section"),
    ],
)
def test_a_fault_is_named_with_its_place(reasoning_data: dict[str, Any], path: str, value: Any, message: str) -> None:
    set_at(reasoning_data, path, value)
    with pytest.raises(ConfigError, match=message):
        read_reasoning(reasoning_data)


def test_a_warm_start_is_wanted_only_where_nothing_else_names_weights(reasoning_data: dict[str, Any]) -> None:
    assert not read_reasoning(reasoning_data).wants_warm_start
    reasoning_data["sft"] = {
        "runner": {"max_steps": 1},
        "actor": {"training_backend": "toy_trainer", "global_batch_size": 4},
    }
    assert read_reasoning(reasoning_data).wants_warm_start
    for key, value in (("ckpt_path", "somewhere"), ("resume_dir", "somewhere")):
        changed = {**reasoning_data, "runner": {**reasoning_data["runner"], key: value}}
        assert not read_reasoning(changed).wants_warm_start


def test_what_a_resumed_run_writes_anew_is_said(reasoning_data: dict[str, Any]) -> None:
    reasoning_data["rollout"] |= {"oversample": 1.5, "partial_lag": 1}
    assert not read_reasoning(reasoning_data).inexact_resume, "responses that were aborted are saved"
    reasoning_data["rollout"] |= {"max_lag": 2}
    assert "is written again, by newer weights. rollout.max_lag=0 gives the same" in read_reasoning(reasoning_data).inexact_resume
