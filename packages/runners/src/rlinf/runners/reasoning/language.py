"""Text to tokens and back, and policies that write."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any, Protocol, cast, get_args, runtime_checkable

import numpy as np

from rlinf.core.capabilities import HasImages, LanguageModelPolicy
from rlinf.core.data import Completion
from rlinf.core.errors import ConfigError
from rlinf.core.language.generation import Generator, SamplingConfig
from rlinf.core.language.problems import ImageProcessor, Message, Problem, ShownPrompt, Split, TaskConfig, Tokenizer
from rlinf.core.random import keyed_seed
from rlinf.runners.config.schema import ModelSection
from rlinf.runners.reasoning.schema import ReasoningConfig

SPECIAL = 16
"""Tokens that a tokenizer may put around a text, at most."""


@runtime_checkable
class HasTokenizer(Protocol):
    """A model's configuration that knows the model's tokenizer."""

    def tokenizer(self, corpus: Sequence[str]) -> Tokenizer:
        """The tokenizer of the model's folder, or one that is made from texts; the same texts make the same one."""
        ...


@runtime_checkable
class ChecksCorpus(Protocol):
    """A model's configuration that knows which texts its tokens can write."""

    def check_corpus(self, corpus: Callable[[], Iterable[str]]) -> None:
        """Refuses texts that they can't; calls for them only where that is not clear anyway."""
        ...


@runtime_checkable
class HasEndTokens(Protocol):
    """A model's configuration that knows which tokens end a response."""

    def end_tokens(self) -> tuple[int, ...]:
        """Those that do so beside the tokenizer's end."""
        ...


@runtime_checkable
class HasImageProcessor(Protocol):
    """A model's configuration that knows how the model reads pictures."""

    def image_processor(self) -> ImageProcessor:
        """What turns pictures into what the model reads."""
        ...


def end_tokens(model: Any, tokenizer: Tokenizer) -> tuple[int, ...]:
    """The tokens that end a response: the tokenizer's end first, then those that a model's configuration names."""
    named = model.end_tokens() if isinstance(model, HasEndTokens) else ()
    return tuple(dict.fromkeys((tokenizer.eos_token_id, *named)))


def build_image_processor(model: Any, problems: Sequence[Problem]) -> ImageProcessor | None:
    """What turns the pictures of problems into what a model reads; None if there are none.

    Args:
        model: the model's configuration.
        problems: all of a split.

    Raises:
        ConfigError: the model can't read pictures.
    """
    if not any(problem.images for problem in problems):
        return None
    if not isinstance(model, HasImageProcessor):
        found = f"{type(model).__name__} can't read pictures, and the problems show some"
        raise ConfigError("actor.model.model_type", found, "Choose vlm, or a task without pictures.")
    return model.image_processor()


def check_images(problems: Problems, generator: Generator) -> None:
    """Refuses a generator that can't see what the problems show, those of evaluations among them.

    Raises:
        ConfigError: it can't.
    """
    shown = any(problems.image_processor(split) is not None for split in get_args(Split))
    if shown and not isinstance(generator, HasImages):
        found = f"{type(generator).__name__} can't read pictures, and the problems show some"
        raise ConfigError("rollout.rollout_backend", found, "Choose hf.")


async def complete(
    generator: Generator,
    prompt: ShownPrompt,
    sampling: SamplingConfig,
    *,
    seed: int,
    request_id: str,
    partial: Completion[Any] | None,
) -> Completion[Any]:
    """A completion of a prompt, with its pictures where it has any; see `Generator.generate` and `check_images`."""
    if len(prompt.at):
        seeing = cast("HasImages", generator)
        return await seeing.generate_with_images(prompt, sampling, seed=seed, request_id=request_id, partial=partial)
    return await generator.generate(prompt.tokens, sampling, seed=seed, request_id=request_id, partial=partial)


def as_numpy(completion: Completion[Any]) -> Completion[Any]:
    """A completion without tensors, which travels to any process."""
    if isinstance(completion.tokens, np.ndarray):
        return completion
    from rlinf.runners.training.tensors import to_numpy  # loads torch

    tokens, logprob, version = (to_numpy(x) for x in (completion.tokens, completion.logprob, completion.version))
    return Completion(tokens=tokens, logprob=logprob, version=version, finish=completion.finish)


@dataclass(frozen=True, slots=True, eq=False)
class _Asked:
    """A task as a key: its fields may have no hash, and files that it reads may have changed when another one like it is made."""

    task: TaskConfig

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Asked) and self.task is other.task

    def __hash__(self) -> int:
        return id(self.task)


@lru_cache(maxsize=4)
def _read(asked: _Asked, split: Split) -> Sequence[Problem]:
    return asked.task.problems(split)


def problems_of(task: TaskConfig, split: Split) -> Sequence[Problem]:
    """The problems of a split, which a process makes or reads once, however many of its workers ask for them.

    Raises:
        ConfigError: there are none, or a row is none.
    """
    return _read(_Asked(task), split)


def build_tokenizer(model: ModelSection, task: TaskConfig) -> Tokenizer:
    """A model's tokenizer; one that has to be made is made from the training problems of a task.

    Raises:
        ConfigError: the model has none.
    """
    if not isinstance(model.config, HasTokenizer):
        raise ConfigError("actor.model.model_type", f"'{model.model_type}' has no tokenizer", "Choose a language model.")
    return model.config.tokenizer(list(_texts(problems_of(task, "train"))))


def check_corpus(model: ModelSection, task: TaskConfig) -> None:
    """Refuses a model whose tokens can't write the training problems, before a worker starts.

    Raises:
        ConfigError: with the characters that it lacks.
    """
    if isinstance(model.config, ChecksCorpus):
        model.config.check_corpus(lambda: _texts(problems_of(task, "train")))


def check_template(cfg: ReasoningConfig, splits: Sequence[Split]) -> None:
    """Refuses a chat template that can't write the first problem of a split, before a worker starts.

    Of the first one alone, as rollout workers write all; where prompts are texts no tokenizer is loaded, which takes seconds.

    Raises:
        ConfigError: see `rendered`.
    """
    firsts = [cfg.prepared(problems_of(cfg.data.task, split)[0]) for split in splits]
    chats = [problem for problem in firsts if not isinstance(problem.prompt, str)]
    tokenizer = build_tokenizer(cfg.actor.model, cfg.data.task) if chats else None
    for problem in chats:
        prompt_text(cast("Tokenizer", tokenizer), problem)


def build_policy(cfg: ReasoningConfig, *, starting_weights: bool, rollout: bool = False) -> Any:
    """The policy, with its own weights or those that the run starts from; for equal configurations the same.

    Args:
        cfg: the configuration of the run.
        starting_weights: whether it gets those of `runner.ckpt_path`.
        rollout: whether it is that of a rollout worker, whose precision may be another one.
    """
    model = cfg.rollout_model if rollout else cfg.actor.model
    policy = model.build(seed=keyed_seed(cfg.runner.seed, "model"))
    if starting_weights and cfg.runner.ckpt_path is not None:
        # Here, because it loads torch, and rules of the configuration are in this module, too.
        from rlinf.runners.checkpoints.starting_weights import load_starting_weights

        load_starting_weights(policy, cfg.runner.ckpt_path)
    return policy


def check_temperature(policy: Any, sampling: SamplingConfig) -> None:
    """Refuses a policy that scores at another temperature than that of sampling, since no ratio would be right.

    Raises:
        ConfigError: it does, or it is no language model.
    """
    if not isinstance(policy, LanguageModelPolicy):
        raise ConfigError("actor.model.model_type", f"{type(policy).__name__} can't write text", "Choose a language model.")
    if policy.temperature != sampling.temperature:
        found = f"expected {sampling.temperature:g} as in rollout.sampling_params, found {policy.temperature:g}"
        raise ConfigError("actor.model.temperature", found, "Set both to the same value.")


class Problems:
    """The problems of a run, as tokens.

    Args:
        cfg: the configuration of the run.
        tokenizer: that of its model.
    """

    def __init__(self, cfg: ReasoningConfig, tokenizer: Tokenizer) -> None:
        self._cfg, self._tokenizer, self._model = cfg, tokenizer, cfg.actor.model.config
        self._ends = end_tokens(self._model, tokenizer)
        self._splits: dict[Split, Sequence[Problem]] = {}
        self._image_processors: dict[Split, ImageProcessor | None] = {}
        self._sizes: dict[tuple[tuple[int, ...], ...], int] = {}

    def get(self, split: Split, number: int) -> Problem:
        """The problem at a place of a split."""
        return self._all(split)[number]

    def image_processor(self, split: Split) -> ImageProcessor | None:
        """What turns the pictures of a split into what the model reads; see `build_image_processor`."""
        if split not in self._image_processors:
            self._image_processors[split] = build_image_processor(self._model, self._all(split))
        return self._image_processors[split]

    def prompt(self, split: Split, number: int) -> ShownPrompt:
        """A problem's prompt as the model reads it; messages go through the tokenizer's chat template.

        In a split with pictures every prompt has the leaves of what is shown; in one without, none has.
        """
        problem, processor = self.get(split, number), self.image_processor(split)
        tokens = encode_prompt(self._tokenizer, problem)
        if processor is not None:
            return processor.read(tokens, problem.images)
        return ShownPrompt(tokens=tuple(tokens), at=np.zeros(0, np.int64), shown={})

    def length(self, split: Split, number: int, *, enough: int | None) -> int:
        """How many tokens a prompt has, or a larger number of which `enough` is as many; None is any.

        A text has no more tokens than bytes, but for those that begin and end it, and bytes are counted sooner.
        """
        problem = self.get(split, number)
        text, shown = prompt_text(self._tokenizer, problem), self._shown(split, problem)
        most = len(text.encode()) + shown + SPECIAL
        # An empty text is encoded all the same: `measure` refuses a prompt without a token.
        if text and (enough is None or most <= enough):
            return most
        return len(encode_prompt(self._tokenizer, problem)) + shown

    def _shown(self, split: Split, problem: Problem) -> int:
        """Tokens of pictures beside their marks, which depend on no more than sizes."""
        processor = self.image_processor(split)
        if processor is None or not problem.images:
            return 0
        sizes = tuple(np.shape(image) for image in problem.images)
        if sizes not in self._sizes:
            tokens = encode_prompt(self._tokenizer, problem)
            self._sizes[sizes] = len(processor.read(tokens, problem.images).tokens) - len(tokens)
        return self._sizes[sizes]

    def count(self, split: Split) -> int:
        """How many a split has."""
        return len(self._all(split))

    def name(self, split: Split, number: int) -> str:
        """What a person finds a problem by: `file:line`, or its place in the split."""
        return self.get(split, number).place or f"problem {number} of '{split}'"

    def text(self, split: Split, number: int) -> str:
        """The prompt as text, each picture as its mark."""
        return self._tokenizer.decode(encode_prompt(self._tokenizer, self.get(split, number)))

    def _all(self, split: Split) -> Sequence[Problem]:
        if split not in self._splits:
            self._splits[split] = list(map(self._cfg.prepared, problems_of(self._cfg.data.task, split)))
        return self._splits[split]

    def stopped(self, sampling: SamplingConfig) -> SamplingConfig:
        """The same, with the tokenizer's end and those that the model names where there are no stop tokens."""
        return sampling if sampling.stop_token_ids else replace(sampling, stop_token_ids=self._ends)


def encode_prompt(tokenizer: Tokenizer, problem: Problem) -> list[int]:
    """The token ids of a prompt; messages go through the tokenizer's chat template."""
    # A chat template writes special tokens itself.
    return tokenizer.encode(prompt_text(tokenizer, problem), add_special_tokens=isinstance(problem.prompt, str))


def prompt_text(tokenizer: Tokenizer, problem: Problem) -> str:
    """A prompt as text, with each picture as its mark."""
    if isinstance(problem.prompt, str):
        return problem.prompt
    return rendered(tokenizer, problem.prompt, problem.place)


def rendered(tokenizer: Tokenizer, messages: Sequence[Message], place: str) -> str:
    """Messages as the chat template writes them, and the beginning of a reply.

    Args:
        tokenizer: that of the model.
        messages: what was said.
        place: where a person finds them; "" for what was made on the spot.

    Raises:
        ConfigError: the template refuses them, as some do a message of the system, or two of the user in a row.
    """
    try:
        return tokenizer.apply_chat_template(messages, tokenize=False, add_generation_prompt=True)
    except Exception as error:
        # Any error: those of templates are of jinja2, which is not known here.
        roles = ", ".join(message["role"] for message in messages)
        found = f"the chat template can't write messages of {roles}: {error}"
        raise ConfigError(place or "data", found, "Change the messages, or use another template.") from error


def _texts(problems: Sequence[Problem]) -> Iterator[str]:
    for problem in problems:
        messages = problem.prompt
        yield from [messages] if isinstance(messages, str) else [message["content"] for message in messages]
        yield problem.solution or problem.answer
        for turn in problem.turns:
            yield turn.text
            yield from (str(value) for call in turn.calls for value in call.arguments.values())
            yield from (result.text for result in turn.results)
