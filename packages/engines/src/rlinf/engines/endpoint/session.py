"""What one client of an endpoint asks for, and what is recorded of it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Final

from rlinf.core.agents import Branch, ToolFormat
from rlinf.core.agents.serving import SessionConfig, Write
from rlinf.core.errors import ConfigError
from rlinf.core.language.generation import SamplingConfig
from rlinf.core.language.problems import Tokenizer
from rlinf.core.random import keyed_seed
from rlinf.engines.endpoint.chat_request import ChatRequest
from rlinf.engines.endpoint.conversation_tree import ConversationTree, Prompt, TurnState
from rlinf.engines.endpoint.replies import Reply


class Session:
    """One client's conversations; see `rlinf.core.agents.serving.ServedSession`.

    Args:
        name: that of the session.
        config: how its requests are answered.
        tokenizer: that of the model.
        form: how the model writes calls.
        base_url: what its client is pointed to.
        model: the name that its client asks for.
        api_key: what its client gives.
        write: writes in place of the endpoint's generator; None for that.
        forget: called with the name when the session is closed.
    """

    def __init__(
        self,
        name: str,
        config: SessionConfig,
        tokenizer: Tokenizer,
        form: ToolFormat,
        *,
        base_url: str,
        model: str,
        api_key: str,
        write: Write | None,
        forget: Callable[[str], None],
    ) -> None:
        self.name: Final = name
        self.config: Final = config
        self.base_url: Final = base_url
        """What an OpenAI client is pointed to, so that its requests belong to this session."""
        self.model: Final = model
        """The name that such a client asks for."""
        self.api_key: Final = api_key
        """The key that such a client gives."""
        self.write: Final = write
        """Writes in place of the endpoint's generator."""
        self.failure: Exception | None = None
        """The first error of what writes."""
        self.rewards = 0
        """How many rewards clients have given."""
        self._forget = forget
        self._tree: Final = ConversationTree(tokenizer, form, config.plain)
        self._answers: dict[str, list[TurnState]] = {}
        self._requests = 0

    @property
    def turns(self) -> int:
        """How many were written."""
        return len(self._tree.turns)

    @property
    def rendered_anew(self) -> int:
        """How often a branch of its own began, because the chat template changed what was said before."""
        return self._tree.rendered_anew

    def prompt(self, request: ChatRequest) -> Prompt:
        """What the model reads for a request."""
        return self._tree.prompt(request)

    def sampling(self, request: ChatRequest) -> SamplingConfig:
        """How the tokens of an answer are drawn."""
        own, fixed = self.config.sampling, self.config.fixed
        most = own.max_new_tokens
        if request.max_tokens is not None:
            most = min(request.max_tokens, most) if fixed else request.max_tokens
        if fixed:
            return replace(own, max_new_tokens=most)
        warm = own.temperature if request.temperature is None else request.temperature
        top_p = own.top_p if request.top_p is None else request.top_p
        return replace(own, max_new_tokens=most, temperature=warm, top_p=top_p)

    def seeds(self, request: ChatRequest) -> tuple[int, ...]:
        """Of each choice; a request that names a seed gets the same tokens again, as long as the weights are the same."""
        self._requests += 1
        if request.seed is not None and not self.config.fixed:
            return tuple(keyed_seed(request.seed, "endpoint/choice", index) for index in range(request.choices))
        # By the session, too: clients that ask one question each would otherwise all be answered from the same numbers.
        key = f"endpoint/{self.name}"
        return tuple(keyed_seed(self.config.seed, key, self._requests, index) for index in range(request.choices))

    def add(self, answer: str, prompt: Prompt, reply: Reply) -> None:
        """Records one choice of an answer."""
        said = self._tree.add(prompt, reply.completion, text=reply.text, calls=reply.calls, reply=reply.message)
        self._answers.setdefault(answer, []).append(said)

    def reward(self, value: float, completion: str | None = None) -> None:
        """Gives a turn a reward of its own, in place of an earlier one; see `rlinf.core.agents.serving.ServedSession`.

        Raises:
            ConfigError: there is no such answer.
        """
        found = self._said(completion)
        if not found:
            problem = f"no answer '{completion}' in this session" if completion else "nothing was written yet"
            raise ConfigError("reward", problem, "Give the id of one of its answers.")
        for said in found:
            said.turn = replace(said.turn, reward=value)
        self.rewards += 1

    def rated(self, completion: str | None) -> tuple[Branch, ...]:
        """The turns up to an answer, one branch for each of its choices; the last turn if None."""
        return tuple(map(self._tree.branch, self._said(completion)))

    def _said(self, completion: str | None) -> list[TurnState]:
        return self._tree.turns[-1:] if completion is None else self._answers.get(completion, [])

    def branches(self) -> tuple[Branch, ...]:
        return self._tree.branches()

    def close(self) -> None:
        self._forget(self.name)
