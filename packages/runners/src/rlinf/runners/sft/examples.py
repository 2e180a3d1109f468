"""From worked solutions to batches: tokens, packed rows, and masks that leave prompts out."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from rlinf.core.agents import Tool
from rlinf.core.data import Batch, Completion, LossOutput, Rescored, Trajectory
from rlinf.core.data.sequences import first_fit_decreasing
from rlinf.core.errors import ConfigError
from rlinf.core.language.problems import ImageProcessor, Problem, ShownPrompt, Split, TaskConfig, Tokenizer
from rlinf.core.metrics import Metric
from rlinf.core.random import keyed_generator
from rlinf.runners.conversations.conversation import TokenConversation, turn_ends
from rlinf.runners.conversations.rows import branch_row
from rlinf.runners.conversations.tool_use import ToolUseConfig
from rlinf.runners.lazy import torch
from rlinf.runners.reasoning.language import build_image_processor, encode_prompt, end_tokens, problems_of
from rlinf.runners.sft.conversations import Piece, pieces, replies


@dataclass(frozen=True, slots=True)
class Example:
    """A prompt, and what should follow it, up to and with the token that ends it."""

    prompt: tuple[int, ...]
    response: tuple[int, ...]
    seen: ShownPrompt | None = field(default=None, compare=False)
    """The prompt with its pictures; None in a split without any."""
    read: tuple[int, ...] = ()
    """Which tokens of the response others wrote (tools, the user), by their places in it: they are read, not learned."""

    def __len__(self) -> int:
        return len(self.prompt) + len(self.response)


def read_examples(
    task: TaskConfig,
    split: Split,
    tokenizer: Tokenizer,
    *,
    max_length: int,
    limit: int | None = None,
    model: Any = None,
    use: ToolUseConfig | None = None,
    mask_history: bool = False,
) -> list[Example]:
    """The problems of a split that have a solution of at most `max_length` tokens with their prompt.

    Args:
        task: where they come from.
        split: which of them.
        tokenizer: that of the model.
        max_length: tokens, those that pictures take among them.
        limit: only the first so many problems.
        model: the model's configuration, which reads pictures if there are any, and knows what ends a reply.
        use: the tools of examples that use some.
        mask_history: whether the last reply of a conversation is learned alone.

    Raises:
        ConfigError: there is none, examples use tools and nobody says how they are called, problems show pictures that the model
            can't read, or a chat template does not tell where replies are.
    """
    whole = problems_of(task, split)
    # Asked of the whole split, of which the first problems may show nothing.
    processor, problems = build_image_processor(model, whole), whole[:limit]
    ends = None if mask_history else end_tokens(model, tokenizer)
    examples = [example(problem, tokenizer, processor, ends) for problem in problems if problem.solution is not None]
    with_tools = [problem for problem in problems if problem.turns]
    if with_tools and use is None:
        found = f"{len(with_tools)} worked examples of '{split}' use tools"
        raise ConfigError("data.agent", f"missing, and {found}", "Say in data.agent which tools there are and how they are called.")
    if use is not None:
        tools = use.built()
        examples += [example_with_tools(problem, tokenizer, use, tools) for problem in with_tools]
    expect_solved(problems, split)
    short = [each for each in examples if len(each) <= max_length]
    if not short:
        problem = f"expected solutions of at most {max_length} tokens in '{split}', the shortest of {len(examples)} has "
        raise ConfigError("data.max_length", f"{problem}{min(map(len, examples))}", "Raise it.")
    return short


def expect_solved(problems: Sequence[Problem], split: Split) -> None:
    """Refuses problems of which none shows how it is solved.

    Raises:
        ConfigError: there is no solution, nor turns of one.
    """
    if not any(problem.solution is not None or problem.turns for problem in problems):
        found = f"expected worked solutions in '{split}', found {len(problems)} problems without one"
        raise ConfigError("data", found, "Choose a task that has some, or name the field that holds them (data.solution_key).")


def example(
    problem: Problem, tokenizer: Tokenizer, processor: ImageProcessor | None = None, ends: Sequence[int] | None = None
) -> Example:
    """The tokens of a problem's prompt, with its pictures if the model reads any, and of its solution with the tokenizer's end.

    Args:
        problem: with a solution.
        tokenizer: that of the model.
        processor: reads pictures.
        ends: the tokens that end a reply, to learn those within the prompt, too; None to learn the solution alone.
    """
    response = (*tokenizer.encode(problem.solution or "", add_special_tokens=False), tokenizer.eos_token_id)
    prompt, read = encode_prompt(tokenizer, problem), ()
    if ends is not None and replies(problem):
        first, *later = pieces(problem, tokenizer, ends)
        prompt = tokenizer.encode(first.text, add_special_tokens=False)
        history, read = _history(later, tokenizer)
        response = (*history, *response)
    if processor is None:
        return Example(tuple(prompt), response, read=read)
    seen = processor.read(prompt, problem.images)
    return Example(seen.tokens, response, seen, read)


def _history(later: Sequence[Piece], tokenizer: Tokenizer) -> tuple[list[int], tuple[int, ...]]:
    """The tokens of pieces, each encoded by itself as what is read and written is, and the places of those that are read only."""
    tokens: list[int] = []
    read: list[int] = []
    for piece in later:
        begin = len(tokens)
        tokens += tokenizer.encode(piece.text, add_special_tokens=False)
        read += [] if piece.learned else range(begin, len(tokens))
    return tokens, tuple(read)


def example_with_tools(problem: Problem, tokenizer: Tokenizer, use: ToolUseConfig, tools: Sequence[Tool]) -> Example:
    """The tokens of a problem and of its worked turns, exactly as an episode of these turns would have them.

    Args:
        problem: with worked turns.
        tokenizer: that of the model.
        use: how tools are called.
        tools: those of `use`.
    """
    problem, form = use.prepared(problem), use.tool_format.format
    prompt, ends = encode_prompt(tokenizer, problem), turn_ends(tokenizer, form, tools)
    conversation = TokenConversation(problem, prompt, tokenizer, form, tools)
    for turn in problem.turns:
        text = turn.text + form.write_calls(turn.calls)
        tokens = tokenizer.encode(text, add_special_tokens=False)
        # A closing tag ends a turn when the model writes it, and no further token follows.
        if not tokens or not (tokens[-1] in ends or text.endswith(conversation.stops)):
            tokens = [*tokens, tokenizer.eos_token_id]
        nothing = np.zeros(len(tokens), np.float32)
        conversation.write(
            Completion(tokens=np.asarray(tokens), logprob=nothing, version=np.zeros(len(tokens), np.int64), finish="stop")
        )
        if turn.calls:
            conversation.add(turn.results)
    row = branch_row(conversation.closed(), 0.0)
    response = row.tokens[len(prompt) :].tolist()
    read = tuple(np.flatnonzero(~row.written[len(prompt) :]).tolist())
    return Example(tuple(prompt), tuple(response), read=read)


def drawn(count: int, step: int, size: int, seed: int) -> Iterator[int]:
    """Which examples the optimizer step `step` is made of; every pass over all of them has an order of its own.

    Args:
        count: how many examples there are.
        step: counted from 0 over the whole run.
        size: examples in one step.
        seed: decides the orders.
    """
    at, end = step * size, (step + 1) * size
    while at < end:
        epoch, begin = divmod(at, count)
        # A step that reaches over the end of a pass takes the rest from the next one.
        stop = min(count, begin + end - at)
        yield from keyed_generator(seed, "sft order", epoch).permutation(count)[begin:stop].tolist()
        at += stop - begin


def packed(examples: Sequence[Example], length: int) -> list[list[Example]]:
    """Rows of at most `length` tokens, the longest examples first, each into the first row that it fits into.

    First-fit decreasing: Johnson, "Near-optimal bin packing algorithms" (1973), which needs at most 11/9 of the fewest rows.
    """
    bins = first_fit_decreasing([len(each) for each in examples], length)
    return [[examples[number] for number in row] for row in bins]


def laid_out(rows: Sequence[Sequence[Example]], *, pad_id: int) -> Batch[torch.Tensor]:
    """A batch whose mask is True where the next token belongs to a response; the sequences of a row are told apart by number."""
    # The last token of a sequence is only predicted, so that each takes one column less than it has tokens.
    width = max(sum(len(each) - 1 for each in row) for row in rows)
    ids, action = (torch.full((len(rows), width), pad_id) for _ in range(2))
    segment = torch.zeros((len(rows), width), dtype=torch.long)
    mask = torch.zeros((len(rows), width), dtype=torch.bool)
    leaves: dict[str, torch.Tensor] = {}
    for row, sequences in enumerate(rows):
        begin = 0
        for number, each in enumerate(sequences, start=1):
            tokens = torch.tensor([*each.prompt, *each.response])
            end = begin + len(tokens) - 1
            ids[row, begin:end], action[row, begin:end], segment[row, begin:end] = tokens[:-1], tokens[1:], number
            # The column of the last token of the prompt decides the first one of the response.
            first = begin + len(each.prompt) - 1
            mask[row, first:end] = True
            mask[row, [first + place for place in each.read]] = False
            _show(leaves, each.seen, row, begin, (len(rows), width))
            begin = end
    context = {"input_ids": ids, "segment_ids": segment, **leaves}
    logprob = torch.zeros((len(rows), width))
    return Batch.of(Trajectory.of(context=context, action=action[..., None, None], logprob=logprob, mask=mask))


def _show(leaves: dict[str, torch.Tensor], seen: ShownPrompt | None, row: int, begin: int, shape: tuple[int, int]) -> None:
    """Writes what a prompt shows into the columns of its tokens."""
    if seen is None:
        return
    for name, values in seen.shown.items():
        tensor = torch.as_tensor(values)
        leaf = leaves.setdefault(name, torch.zeros((*shape, *tensor.shape[1:]), dtype=tensor.dtype))
        leaf[row, begin + torch.as_tensor(seen.at)] = tensor


@dataclass(frozen=True, slots=True)
class CrossEntropy:
    """−Σ log π of the tokens of responses, over how many there are."""

    def __call__(self, batch: Batch[torch.Tensor], evaluation: Rescored[torch.Tensor]) -> LossOutput[torch.Tensor]:
        """The sum and its weight; the metric `nll` is the mean, whose exponential is the perplexity."""
        mask = batch.trajectory.mask
        total = -torch.where(mask, evaluation.logprob, 0.0).sum()
        weight = mask.sum().to(total.dtype)
        return LossOutput(total=total, weight=weight, metrics={"nll": Metric(float(total.detach()), float(weight))})
