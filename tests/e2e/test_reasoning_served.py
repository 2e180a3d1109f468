"""The reasoning app with a server of OpenAI's completions, which writes and takes weights: nothing differs from writing here."""

from __future__ import annotations

import runpy
from pathlib import Path
from types import SimpleNamespace

import pytest
from reasoning_app import ROOT, ReasoningApp
from toy_reasoning import TinyLM

COMPARED = ("train/loss", "train/grad_norm", "rollout/rewards", "rollout/tokens")
SHORT = ("reward={overlong: {max_length: 6, cache: 5, weight: 2}}", "cluster.component_placement.rollout=0")


@pytest.fixture(scope="module")
def openai_server() -> SimpleNamespace:
    """The server of the engines' own tests."""
    return SimpleNamespace(**runpy.run_path(str(ROOT / "packages/engines/tests/generation/openai_server.py")))


@pytest.mark.slow
def test_a_run_whose_responses_a_server_writes(
    tmp_path: Path, openai_server: SimpleNamespace, monkeypatch: pytest.MonkeyPatch
) -> None:
    here, there = ReasoningApp(tmp_path / "here"), ReasoningApp(tmp_path / "there")
    here.train(*SHORT)
    monkeypatch.setenv("LOOPBACK_KEY", openai_server.KEY)
    with openai_server.LoopbackServer(TinyLM().build(seed=5)) as server:
        update = f"update_path: /update_weights_from_disk, update_folder: '{tmp_path}'"
        client = f"rollout_backend: openai, base_url: '{server.url}', model: toy, api_key_env: LOOPBACK_KEY, {update}"
        there.train(*SHORT, f"rollout={{{client}}}")
        asked = [path for path, _ in server.seen]
    assert asked.count("/update_weights_from_disk") >= 3, "before the first iteration, and after each"
    for step, row in here.rows().items():
        found = there.rows()[step]
        assert found["rollout/logprob_gap/max_bound"] < 1e-5
        assert found["train/grad_norm"] > 1e-3, "there is something to learn"
        for metric in COMPARED:
            assert found[metric] == pytest.approx(row[metric], rel=1e-4, abs=1e-6), f"step {step}: {metric}"
