"""What is refused when simulators are up leaves no folder behind."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from rlinf.core.commands import main

ROOT = Path(__file__).parents[2]


def test_a_chunk_that_is_longer_than_the_episodes_of_a_simulator(app: Any) -> None:
    model = "actor.model={model_type: mlp_policy, num_action_chunks: 31}"
    code, said = app.train_here("--config-name", "tabletop_cnn_ppo", "cluster.backend=local", model)
    assert code == 2
    assert "'mlp_policy' decides for 31 control steps at once, and env.train.env_type 'tabletop' ends an episode after 30" in said
    assert not list(app.logs.glob("tabletop*"))


def test_texts_that_the_tokens_of_a_model_can_not_write(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    recipe, logs = ROOT / "apps/reasoning/config/grpo_arithmetic.yaml", tmp_path / "logs"
    tokens = ("actor.model.tokens.kind=characters", "actor.model.tokens.alphabet='0123456789+='")
    with pytest.raises(SystemExit, match="2"):
        main(["train", str(recipe), f"runner.logger.log_path={logs}", *tokens])
    said = capsys.readouterr().err
    assert "actor.model.tokens.alphabet: expected all characters of the texts, the texts also have '#-'" in said
    assert not logs.exists()


def test_examples_that_show_no_solution(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    recipe, logs, rows = ROOT / "apps/reasoning/config_sft/sft_arithmetic.yaml", tmp_path / "logs", tmp_path / "rows.jsonl"
    rows.write_text("".join(f'{{"prompt": "{n}+1=", "answer": "{n + 1}"}}\n' for n in range(40)))
    data = f"data={{type: dataset, path: '{rows}', validation_share: 0.4, chat: false}}"
    with pytest.raises(SystemExit, match="2"):
        main(["train", str(recipe), f"runner.logger.log_path={logs}", data])
    assert "data: expected worked solutions in 'train', found " in capsys.readouterr().err
    assert not logs.exists()
