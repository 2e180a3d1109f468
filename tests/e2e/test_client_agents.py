"""Agents that only know an OpenAI client: what they say becomes an episode, with the right tokens, masks and rewards."""

from __future__ import annotations

from pathlib import Path

import pytest
from reasoning_app import HERE, ReasoningApp
from scripted_client import Scripted, marked, played

from rlinf.core.errors import ConfigError, RLinfError
from rlinf.runners.agent import episode_rows
from rlinf.runners.agent.client_agents import ClientAgent

CALL = '<tool_call>{"name": "calculator", "arguments": {"expression": "12*7"}}</tool_call>'
TOY = ("--config-dir", str(HERE / "config"), "--config-name", "toy_agent")


def test_turns_tools_masks_versions_and_rewards() -> None:
    generator = Scripted(f"let me see {CALL}$", "it is 84$")
    episode = played("toy_clients:calculates", generator, ({"role": "user", "content": "12*7"},))
    assert (episode.finish, episode.answer, episode.attempts) == ("stop", "it is 84", 1)
    (row,) = marked(episode)
    assert row.endswith(
        f"user:12*7\nassistant:⟦let me see {CALL}$⟧\nuser:<tool_response>\n84\n</tool_response>\nassistant:⟦it is 84$⟧"
    )
    assert "ystem:You can call these tools" in row
    rows = episode_rows([episode], [1.0], group=0, pad_id=0)
    mask = rows.mask[0]
    assert rows.version[0][mask].tolist() == [1] * len(f"let me see {CALL}$") + [2] * len("it is 84$")
    assert rows.logprob[0][mask].tolist() == [-n for n in range(1, len(f"let me see {CALL}$") + 1)] + [-n for n in range(1, 10)]
    assert rows.reward[0].tolist()[-1] == 1.0
    assert rows.reward[0].sum() == 1.0
    assert [[result.text for result in turn.results] for turn in episode.own_turns] == [["84"], []]


def test_a_plain_prompt_is_read_as_it_is_and_rewards_are_given() -> None:
    generator = Scripted("84$")
    episode = played("toy_clients:blocks", generator)
    assert generator.asked == ["12*7"]
    assert (episode.answer, episode.reward, [turn.reward for turn in episode.own_turns]) == ("84", 0.5, [-0.25])
    assert marked(episode) == ["2*7⟦84$⟧"], "the first column has seen the first token"


def test_turns_are_bounded() -> None:
    episode = played("toy_clients:asks_for_ever", Scripted(), max_turns=3)
    assert (episode.finish, len(episode.own_turns)) == ("turns", 3)


def test_the_context_ends_an_episode() -> None:
    episode = played("toy_clients:calculates", Scripted(f"{CALL}$", context_length=100), max_turns=3)
    assert (episode.finish, len(episode.own_turns)) == ("length", 1)


def test_failures_are_data_or_end_the_run() -> None:
    failed = played("toy_clients:fails", Scripted())
    assert (failed.finish, failed.failure, failed.attempts) == ("error", "ConnectionError: the service is gone", 2)
    assert len(failed.own_turns) == 1
    with pytest.raises(RLinfError, match="out of memory"):
        played("toy_clients:calculates", Scripted(RLinfError("generate", "out of memory")))
    assert played("toy_clients:calculates", Scripted(), aborted=True).finish == "abort"


def test_what_no_agent_can_get_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"agent\.agent: 'toy_clients:wants' takes 'weather'.*It can take task, client"):
        ClientAgent(agent="toy_clients:wants").check("agent")


def test_an_agent_of_smolagents_as_it_is() -> None:
    """It rewrites its history, so each of its steps is a row; all of them have the episode's reward."""
    pytest.importorskip("smolagents")
    final = '<tool_call>{"name": "final_answer", "arguments": {"answer": "84"}}</tool_call>'
    generator = Scripted(f"{CALL}$", f"{final}$")
    episode = played("smolagents", generator, max_turns=4)
    assert (episode.finish, episode.answer, episode.failure) == ("stop", "84", "")
    first, second = marked(episode)
    assert first.endswith(f"⟦{CALL}$⟧")
    assert second.endswith(f"⟦{final}$⟧")
    assert "84" in second[: second.index("⟦")], "it has read what the calculator said"
    assert first.count("⟦") == second.count("⟦") == 1
    rows = episode_rows([episode], [1.0], group=0, pad_id=0)
    assert rows.reward.sum(1).tolist() == [1.0, 1.0]
    assert rows.episode is not None
    assert rows.episode.tolist() == [0, 0]


def test_a_run_trains_such_an_agent(tmp_path: Path) -> None:
    """The first update passes the gate: the trainer says of every recorded token what the endpoint recorded."""
    app = ReasoningApp(tmp_path, app="agent", recipe=TOY)
    client = ("agent.workflow_type=client", "agent.agent=toy_clients:asks_twice", "agent.endpoint={}")
    app.train(*client, "runner.max_steps=1", "runner.val_check_interval=0")
    (row,) = app.rows().values()
    assert row["rollout/turns"] == 2
    assert row["rollout/failed"] == 0
    assert row["train/grad_norm"] >= 0
    with pytest.raises(ConfigError, match=r"agent\.endpoint: the workflow 'client' needs one, found null"):
        app.train(*client[:2])
