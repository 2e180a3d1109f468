"""Users rate answers when they come to it; each rated answer is an episode, whoever asked."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import openai
import pytest
from reasoning_app import ReasoningApp
from scripted_client import TOKENIZER, Scripted

from rlinf.core.agents import Episode, SessionConfig, ToolBox
from rlinf.core.language.generation import SamplingConfig
from rlinf.core.language.problems import Problem
from rlinf.engines.endpoint import OpenAIEndpointConfig
from rlinf.models.language.tool_calls import HermesFormat
from rlinf.runners.agent.episode_groups import EpisodeGroup
from rlinf.runners.agent.online import LearnFromUsers
from rlinf.runners.agent.playing import Task, TurnGenerator, play
from rlinf.runners.agent.schema import AgentSection
from rlinf.runners.conversations.tool_use import ToolFormatSection

RATED: list[int] = []
"""Problems that were rated in this process."""
SAMPLING = SamplingConfig(max_new_tokens=20, stop_token_ids=(1,))
ONLINE = ("--config-name", "online_coding")


async def patient(task: Any, client: openai.AsyncOpenAI) -> None:
    """Rates problem 0 when the others have been, which are at once."""
    messages: list[Any] = [{"role": "user", "content": task.problem.prompt}]
    answer = await client.chat.completions.create(model="policy", messages=messages)
    while task.problem.id == 0 and not RATED:
        await asyncio.sleep(0.01)
    await client.post("/feedback", cast_to=object, body={"id": answer.id, "reward": float(task.problem.id)})
    RATED.append(task.problem.id)


async def fails() -> None:
    """Rates nothing."""
    raise ConnectionError("the editor is gone")


def played(
    user: str | None, dialogue: Any, *, problems: int = 2, split: Any = "train", **changes: Any
) -> tuple[list[Episode], Any]:
    """Episodes of so many problems at once, and what a dialogue with the endpoint's address comes to."""
    workflow = LearnFromUsers(user=user)
    workflow.check("agent")
    config = AgentSection(workflow=workflow, tool_format=ToolFormatSection(format=HermesFormat()), **changes)
    generator: Any = Scripted(*(f"{n}$" for n in range(9)))

    async def run() -> tuple[list[Episode], Any]:
        session = SessionConfig(sampling=SAMPLING, fixed=True, plain=True)
        endpoint = await OpenAIEndpointConfig().start(generator, TOKENIZER, HermesFormat(), session=session)

        async def there() -> Any:
            return endpoint

        def begin(number: int, attempt: int) -> tuple[Task, TurnGenerator]:
            problem = Problem(prompt=f"ask {number} ", answer="", id=number)
            prompt = tuple(TOKENIZER.encode(problem.prompt))
            parts: Any = {"problem": problem, "prompt": prompt, "config": config, "tokenizer": TOKENIZER}
            task = Task(**parts, tools=ToolBox(), split=split, endpoint=there)
            request, playing = f"train/{number}/{attempt}", EpisodeGroup(generator).member()
            return task, TurnGenerator(generator, SAMPLING, seed=1, request=request, playing=playing)

        episodes = [play(config, lambda attempt, number=number: begin(number, attempt)) for number in range(problems)]
        try:
            *found, said = await asyncio.gather(*episodes, dialogue(endpoint.base_url))
            return found, said
        finally:
            await endpoint.close()

    return asyncio.run(run())


async def nothing(base_url: str) -> None: ...


def texts(episodes: list[Episode]) -> list[str]:
    return [TOKENIZER.decode(turn.prompt) + "|" + turn.text for episode in episodes for turn in episode.branches[0].turns]


def test_whoever_rates_first_is_learned_from_first() -> None:
    episodes, _ = played("test_online_coding:patient", nothing)
    first, second = episodes
    assert (first.branches[0].turns[0].reward, second.branches[0].turns[0].reward) == (1.0, 0.0)
    assert [text.split("|")[0] for text in texts(episodes)] == ["ask 1 ", "ask 0 "]
    assert [episode.answer for episode in episodes] == ["", ""]


def test_people_at_the_endpoint_are_learned_from_and_only_what_they_rate() -> None:
    async def talk(base_url: str) -> list[str]:
        said: list[Any] = [{"role": "user", "content": "hi "}]
        async with openai.AsyncOpenAI(base_url=base_url, api_key="ann", max_retries=0) as client:
            ids: list[str] = []
            for _ in range(3):
                answer = await client.chat.completions.create(model="policy", messages=said, temperature=1.9)
                said += [answer.choices[0].message.model_dump(exclude_none=True), {"role": "user", "content": " and "}]
                ids.append(answer.id)
            for number, reward in ((2, 0.5), (0, -1.0)):
                await client.post("/feedback", cast_to=object, body={"id": ids[number], "reward": reward})
            return ids

    (third, first), _ = played(None, talk)
    assert [turn.text for turn in third.branches[0].turns] == ["0", "1", "2"]
    assert third.branches[0].inherited == 2, "only what was rated is trained on"
    assert [turn.reward for turn in third.own_turns] == [0.5]
    assert [turn.text for turn in first.branches[0].turns] == ["0"]
    assert [turn.reward for turn in first.own_turns] == [-1.0]


def test_a_user_who_fails_is_a_failed_episode() -> None:
    (episode,), _ = played("test_online_coding:fails", nothing, problems=1)
    assert (episode.finish, episode.failure) == ("error", "ConnectionError: the editor is gone")


def test_nobody_rates_and_the_episode_ends() -> None:
    (episode,), _ = played(None, nothing, problems=1, episode_timeout_s=0.1, attempts=1)
    assert episode.finish == "timeout"


def test_an_evaluation_asks_the_policy_itself() -> None:
    (episode,), _ = played("test_online_coding:patient", nothing, problems=1, split="validation")
    assert (episode.answer, episode.finish) == ("0", "stop")


def recipe(logs: Path) -> ReasoningApp:
    return ReasoningApp(logs, app="agent", recipe=ONLINE)


def test_the_recipe_learns_while_it_serves(tmp_path: Path) -> None:
    """Ratings arrive from requests that were under way while weights changed; no request is dropped, and none is too old."""
    app = recipe(tmp_path)
    small = ("sft.runner.max_steps=1", "sft.runner.steps_per_iteration=20", "data.final_problems=8", "runner.val_check_interval=0")
    app.train(*small, "runner.max_steps=3", "data.rollout_batch_size=12", "actor.global_batch_size=12", "actor.micro_batch_size=12")
    rows = app.rows()
    assert sorted(rows) == [1, 2, 3]
    assert all(row["rollout/failed"] == 0 and row["rollout/turns"] == 1 for row in rows.values())
    assert all(row["rollout/groups_trained"] == 12 for row in rows.values())


@pytest.mark.slow
def test_users_accept_more_and_more(tmp_path: Path) -> None:
    """27 % of the answers at first, about 30 % right after the warm start; 66.4 % right was measured in the end, with this seed."""
    app = recipe(tmp_path)
    app.train("runner.seed=1", "runner.max_steps=20", "runner.val_check_interval=0", "data.final_problems=128")
    assert app.summary()["eval/accuracy"] >= 0.5
