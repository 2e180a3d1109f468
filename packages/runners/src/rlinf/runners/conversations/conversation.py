"""A conversation as exact tokens: what the model wrote is never tokenised again, what it reads is rendered once.

prompt │ turn 1 (written) │ results (read) │ turn 2 (written) │ …
───────┴──────────────────┴────────────────┴──────────────────┴──►  one row; only what was written is trained on
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from rlinf.core.agents import Branch, Tool, ToolFormat, ToolResult, Turn
from rlinf.core.agents.rendering import RenderingError as RenderingError
from rlinf.core.agents.rendering import appended_tokens, continued_tokens, writable
from rlinf.core.agents.rendering import turn_ends as turn_ends
from rlinf.core.agents.rendering import turn_stops as turn_stops
from rlinf.core.data import Completion
from rlinf.core.language.problems import Message, Problem, Tokenizer


class TokenConversation:
    """One agent's conversation.

    Args:
        problem: as the model reads it, see `ToolUseConfig.prepared`.
        prompt: its tokens.
        tokenizer: that of the model.
        form: how tools are called, and results shown.
        tools: what can be called.
        agent: who writes, where there are several.
        opened: takes this conversation and all that branch off from it.
    """

    def __init__(
        self,
        problem: Problem,
        prompt: Sequence[int],
        tokenizer: Tokenizer,
        form: ToolFormat,
        tools: Sequence[Tool],
        agent: str = "",
        opened: list[TokenConversation] | None = None,
    ) -> None:
        self._opened = [] if opened is None else opened
        self._opened.append(self)
        self._problem, self.tokenizer, self._form, self._tools = problem, tokenizer, form, tuple(tools)
        # None: no chat template; texts follow each other as they are.
        self._messages: list[Message] | None = None if isinstance(problem.prompt, str) else list(problem.prompt)
        self._tokens, self._read = list(prompt), len(prompt)
        self._turns: list[Turn] = []
        self._inherited, self.agent = 0, agent
        self._stops = turn_stops(tokenizer, form, self._tools)

    @property
    def tokens(self) -> Sequence[int]:
        """Every token so far, read or written."""
        return self._tokens

    @property
    def stops(self) -> tuple[str, ...]:
        """The texts of several tokens behind which a turn is over."""
        return self._stops

    @property
    def turns(self) -> Sequence[Turn]:
        """What was written so far."""
        return self._turns

    def write(self, completion: Completion[Any]) -> Turn:
        """Takes over what the model wrote, token by token; NumPy. A turn that was cut off calls nothing."""
        written = [int(token) for token in completion.tokens]
        # Closing tags that end a turn are part of what it says; ends of texts are skipped.
        text = self.tokenizer.decode(written, skip_special_tokens=True)
        calls = self._form.parse(text, self._tools) if completion.finish == "stop" else ()
        # `[-0:]` would be the whole conversation.
        turn = Turn(prompt=tuple(self._tokens[-self._read :]) if self._read else (), completion=completion, text=text, calls=calls)
        self._tokens, self._read = [*self._tokens, *written], 0
        self._turns.append(turn)
        if self._messages is not None:
            self._messages.append({"role": "assistant", "content": text})
        return turn

    def add(self, results: Sequence[ToolResult]) -> None:
        """Puts results of the last turn's calls before the model.

        Raises:
            RenderingError: the chat template changes what was there already.
        """
        self._turns[-1] = replace(self._turns[-1], results=tuple(results))
        # What a tool says is nobody's choice, and must not end a run.
        text = writable(self.tokenizer, self._form.write_results(results))
        if self._messages is None:
            self._append(appended_tokens(self.tokenizer, text))
            return
        self._messages.append({"role": self._form.role, "content": text})
        self._append(continued_tokens(self.tokenizer, self._tokens, self._messages))

    def reward(self, value: float) -> None:
        """Gives the last turn a reward of its own, in place of an earlier one."""
        self._turns[-1] = replace(self._turns[-1], reward=value)

    def branch(self, agent: str = "") -> TokenConversation:
        """A conversation that goes on from here on its own; the turns that both share are trained on once."""
        parts = (self._problem, self._tokens, self.tokenizer, self._form, self._tools)
        other = TokenConversation(*parts, agent or self.agent, self._opened)
        other._messages = None if self._messages is None else list(self._messages)
        other._read, other._turns, other._inherited = self._read, list(self._turns), len(self._turns)
        return other

    def closed(self) -> Branch:
        """The turns so far."""
        return Branch(turns=tuple(self._turns), inherited=self._inherited, agent=self.agent)

    def _append(self, added: Sequence[int]) -> None:
        self._tokens, self._read = [*self._tokens, *added], self._read + len(added)
