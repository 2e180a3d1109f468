"""What episodes are worth: what is reported of them, and what is trained on."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from agent_toy import written
from reasoning_toy import channels, job
from suspended_toy import agent_data

from rlinf.core.agents import Branch, Episode, Turn
from rlinf.runners.agent.reward_worker import AgentRewardWorker
from rlinf.runners.agent.rules import read_agent
from rlinf.runners.reasoning.topology import ReasoningTopology, WrittenGroup, queue_name

TOPOLOGY = ReasoningTopology(actor="actor", actor_ranks=1, rollout="rollout", rollout_ranks=1, reward_ranks=1)


def branch(*rewards: float, agent: str = "") -> Branch:
    said = Turn(prompt=(2,), completion=written("ab"), text="ab")
    return Branch(agent=agent, turns=tuple(replace(said, reward=reward) for reward in rewards))


def test_what_a_turn_earned_is_reported_and_trained_on_once(reasoning_data: dict[str, Any], new_queue: Any) -> None:
    cfg = read_agent(agent_data(reasoning_data))
    worker = AgentRewardWorker(replace(cfg, reward=replace(cfg.reward, reward=lambda texts, answers: [2.0] * len(texts))))
    worker.init_worker(TOPOLOGY)
    team = Episode(branches=(branch(0.25, 0.5, agent="a"), branch(0.0, agent="b")), finish="stop")
    alone = Episode(branches=(branch(1.0),), finish="stop", reward=4.0)
    task, between = job(0), channels(new_queue)
    group = WrittenGroup(prompt_group=task.prompt_groups[0], completions=(team, alone))
    between.completions.put(group, key=queue_name(task.key, 0))
    (report,) = worker.compute_rewards(task, between)
    assert [response.reward for response in report.responses] == pytest.approx([2.75, 7.0])
    worker.deliver({0: 0}, between)
    _, rows = between.trajectories.get(key=0)
    assert [row[row != 0].tolist() for row in rows.reward] == [[0.25, 2.5], [2.0], [7.0]]
