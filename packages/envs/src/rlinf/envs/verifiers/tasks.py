"""Environments of the library verifiers: their rows are problems, and they play and score episodes themselves."""

from __future__ import annotations

import json
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, cast

from rlinf.core.agents import AgentTask
from rlinf.core.config.ranges import expect_range
from rlinf.core.errors import ConfigError, below
from rlinf.core.language.problems import Message, Problem, Split
from rlinf.core.registry import require_modules
from rlinf.envs.verifiers.service import Launch, listed, service

EXTRA: Final = "rlinf-envs[verifiers]"


@dataclass(frozen=True, slots=True, kw_only=True)
class Verifiers:
    """An environment of `verifiers.v1`, by name: `data.type: verifiers`; the agent `verifiers` plays it.

    It runs in a process of its own, whose interpreter may be another one: the library pins versions of `openai` and `mcp`.
    """

    taskset: str
    """Its name as the library knows it: a module that can be imported there and exports a `Taskset`."""
    env: Mapping[str, Any] = field(default_factory=dict[str, Any])
    """The library's configuration of the environment, such as `{agent: {max_turns: 4}}`."""
    params: Mapping[str, Any] = field(default_factory=dict[str, Any])
    """The configuration of the taskset, as the library reads it."""
    train: int = 1000
    """Tasks to train on at most: those after the held-out ones."""
    validation: int = 64
    """Tasks held out: the first ones. A task to train on that asks the same is left out."""
    chat: bool = True
    """Whether prompts are messages, for the tokenizer's chat template; false for text as it stands."""
    solution: str = ""
    """A field of the tasks with a worked response, for a warm start; "" if they have none."""
    python: str | None = None
    """An interpreter that has verifiers; null for the one that runs this."""
    paths: tuple[str, ...] = ()
    """Folders from which tasksets are imported, beside what is installed there."""
    start_s: float = 120.0
    """Seconds within which the process has to be ready."""

    def __post_init__(self) -> None:
        expect_range("train", self.train, 1, float("inf"))
        expect_range("validation", self.validation, 1, float("inf"))
        expect_range("start_s", self.start_s, 0.0, 86400.0, open_low=True)
        try:
            # They go to another interpreter as JSON.
            json.dumps([dict(self.env), dict(self.params)])
        except TypeError as error:
            raise ConfigError("env", f"expected values that JSON knows, found otherwise ({error})") from error

    def check(self, place: str) -> None:
        """Asks the library for the tasks.

        Raises:
            ConfigError: there is no such environment, it refuses its configuration, or has too few tasks.
            MissingExtra: this interpreter has no verifiers, and no other is named.
        """
        if self.python is None:
            require_modules("verifiers", place=place, extra=EXTRA)
        elif shutil.which(self.python) is None:
            raise ConfigError(f"{place}.python", f"no program '{self.python}'", "Give the path of a `python` that has verifiers.")
        try:
            self.problems("train")
        except ConfigError as error:
            raise below(place, error) from error

    def problems(self, split: Split) -> Sequence[Problem]:
        """The tasks of a split, each with the library's own data as its row.

        Raises:
            ConfigError: there is no such environment, it refuses its configuration, or has too few tasks.
        """
        launch = self._launch()
        tasks = listed(launch)
        if len(tasks) <= self.validation:
            found = f"'{self.taskset}' has {len(tasks)} tasks, of which {self.validation} are held out"
            raise ConfigError("validation", found, "Hold out fewer, or ask for more by data.params.")
        made = [self._problem(launch, number, task) for number, task in enumerate(tasks)]
        held_out = made[: self.validation]
        if split == "validation":
            return held_out
        asked = [problem.prompt for problem in held_out]
        left = [problem for problem in made[self.validation :] if problem.prompt not in asked]
        if not left:
            found = f"every task of '{self.taskset}' asks what one that is held out asks"
            raise ConfigError("validation", found, "Hold out fewer.")
        return left

    def _launch(self) -> Launch:
        whole = {**self.env, "taskset": {**self.params, "id": self.taskset}}
        env = json.dumps(whole, sort_keys=True)
        return Launch(env, self.train + self.validation, self.python, tuple(self.paths), self.start_s)

    def _problem(self, launch: Launch, number: int, task: Mapping[str, Any]) -> Problem:
        data: Mapping[str, Any] = task["data"]
        if self.solution and not isinstance(data.get(self.solution), str):
            found = f"task {number} of '{self.taskset}' has no text '{self.solution}'"
            raise ConfigError("solution", found, f"It has: {', '.join(data)}.")
        solution = str(data[self.solution]) if self.solution else None
        messages = _messages(data)
        prompt = messages if self.chat else "".join(message["content"] for message in messages)
        # By the launch the agent finds the process with these tasks; by the key that process sees whether they are still the same.
        row = {"data": data, "verifiers": launch, "key": task["key"]}
        answer = data.get("answer")
        return Problem(prompt=prompt, answer="" if answer is None else str(answer), id=number, solution=solution, row=row)


def _messages(data: Mapping[str, Any]) -> tuple[Message, ...]:
    found: list[Message] = []
    if data.get("system_prompt"):
        found.append({"role": "system", "content": data["system_prompt"]})
    prompt = data.get("prompt")
    if isinstance(prompt, str):
        return (*found, {"role": "user", "content": prompt})
    if prompt is None:
        problem = "a task has no prompt, for its user opens the conversation"
        raise ConfigError("taskset", problem, "Choose tasks that begin with a prompt.")
    for message in cast("Sequence[Mapping[str, Any]]", prompt):
        if not isinstance(message.get("content"), str):
            raise ConfigError("taskset", "a prompt has parts that are no text", "Choose tasks of text.")
        found.append({"role": message["role"], "content": message["content"]})
    return tuple(found)


async def play(task: AgentTask, base_url: str, api_key: str, model: str) -> tuple[str, float]:
    """The agent `verifiers`: the environment plays the task with the policy, and scores it.

    Args:
        task: a problem of `Verifiers`.
        base_url: of the session.
        api_key: of the session.
        model: the name that is asked for.

    Returns:
        The last reply, and the mean of what the agents that learn have earned.

    Raises:
        ConfigError: the problem is of another task.
    """
    row = task.problem.row
    launch = row.get("verifiers")
    if not isinstance(launch, Launch):
        raise ConfigError("agent.agent", "expected problems of data.type verifiers", "Choose another agent.")
    playing = service(launch, task.max_turns)
    return await playing.play(task.problem.id, row["key"], base_url=base_url, api_key=api_key, model=model)
