"""Learning from people who use the policy: their ratings come when they come, and each rated answer is an episode.

user ──request──► endpoint ──► answer …… (thinks) …… ──rating──► endpoint ──► episode ──► training
                      ▲ new weights, between two passes; requests under way go on ◄──────────┘
"""

from __future__ import annotations

import asyncio
import logging
from dataclasses import dataclass
from typing import Any, Final, cast

from rlinf.core.agents import AgentTask, Episode, Generate
from rlinf.core.errors import error_text
from rlinf.runners.agent.client_agents import ClientAgent
from rlinf.runners.agent.playing import Task

_LOG: Final = logging.getLogger(__name__)
_USERS: Final = set[asyncio.Task[Any]]()
"""Simulated users who have asked and not yet rated; an event loop alone would forget them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LearnFromUsers:
    """Trains on answers that users have accepted or rejected, by name: `agent.workflow_type: online`.

    Users reach the policy at `agent.endpoint` with any OpenAI client, and rate an answer with `POST /v1/feedback`. An episode is
    the next answer that anybody has rated, with its rating as reward; what came before it in its conversation is read, not
    trained on. How old the weights may be that wrote it, `rollout.max_lag` says. The problems of the run are not asked, but
    for evaluations and by simulated users.
    """

    user: str | None = None
    """A registered agent, or `module:attr` of a function as `ClientAgent` takes it, that asks and rates as users would: it is
    started once for each episode, on a problem of the run, and never waited for. null: the users are people."""

    def check(self, place: str) -> None:
        """Refuses what can't play a user; see `ClientAgent.check`."""
        if self.user is not None:
            ClientAgent(agent=self.user).check(place)

    async def __call__(self, task: AgentTask, generate: Generate) -> Episode:
        """The next episode, from anybody; of a problem that is held out, the policy's own answer."""
        if task.split == "validation":
            return await self._evaluated(task, generate)
        endpoint = await cast("Task", task).served()
        asked = None
        if self.user is not None:
            user = ClientAgent(agent=self.user)
            name = f"user-{cast('Any', generate).request}"
            asked = asyncio.create_task(user.run(task, endpoint.base_url, name, endpoint.model))
            _USERS.add(asked)
            asked.add_done_callback(_left)
        rated = asyncio.ensure_future(endpoint.rated())
        try:
            while not rated.done():
                waiting = {rated, asked} if asked is not None and not asked.done() else {rated}
                await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
                if asked is not None and asked.done() and not rated.done():
                    asked.result()  # a user who fails rates nothing, and nobody else may come
        finally:
            # Otherwise it would take the rating of another episode, as each is given once.
            rated.cancel()
        answer = rated.result()
        # What it is worth is the reward of its turn; the run's reward, which knows other problems, has nothing to say.
        return Episode(branches=(answer.branch,), finish="stop", answer="")

    async def _evaluated(self, task: AgentTask, generate: Generate) -> Episode:
        chat = task.conversation()
        turn = await generate(chat)
        cut = turn.completion.finish == "length"
        return Episode(branches=(chat.closed(),), finish="length" if cut else "stop", answer=turn.text)


def _left(user: asyncio.Task[Any]) -> None:
    _USERS.discard(user)
    # Once an episode has its rating nobody waits for its user, whose failure would be told nowhere else.
    if not user.cancelled() and (error := user.exception()) is not None:
        _LOG.warning("a simulated user failed: %s", error_text(error))
