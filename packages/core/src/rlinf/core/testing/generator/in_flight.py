"""Lines of the generator contract: what happens to requests that are in flight."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

from rlinf.core.data import Completion
from rlinf.core.data.arrays import as_numpy
from rlinf.core.errors import ConfigError, ContractError
from rlinf.core.testing.generator.subject import GeneratorSubject

_TRIES = 16
_FIRST_DELAY_S = 0.004


async def refusals(subject: GeneratorSubject) -> None:
    """What can't be written is refused, and nothing of it stays."""
    full = subject.prompt(subject.max_model_len)
    for what, prompt, new in (("an empty prompt", [], 4), ("one token more than the context", full, 1)):
        try:
            await subject.ask(prompt, subject.sampling(new))
        except ConfigError:
            continue
        raise ContractError("generate(prompt)", f"expected a ConfigError for {what}, found a completion")
    # Exactly as long as the context, which is fine.
    await subject.ask(full[1:], subject.sampling(1))
    first = asyncio.ensure_future(subject.ask(subject.prompt(4), subject.sampling(_room(subject)), request_id="twice"))
    # Lets the first request begin, so that its id is in flight.
    await asyncio.sleep(0)
    try:
        await subject.ask(subject.prompt(4), subject.sampling(2), request_id="twice")
    except ConfigError:
        pass
    else:
        raise ContractError("generate(request_id)", "expected a ConfigError for an id that is in flight, found a completion")
    finally:
        subject.generator.abort(["twice"])
        await first
    _empty(subject)


def _room(subject: GeneratorSubject) -> int:
    """A long response to a prompt of at most eight tokens."""
    return min(subject.max_model_len - 8, 240)


def _empty(subject: GeneratorSubject) -> None:
    flying, cached = subject.generator.in_flight, subject.generator.cached_tokens
    if flying or cached:
        raise ContractError(
            "generator.in_flight", f"expected nothing in flight or cached, found {flying} requests, {cached} tokens"
        )


async def _interrupted(subject: GeneratorSubject, prompt: list[int], new: int) -> Completion[Any]:
    """A completion that was aborted when some tokens had been written."""
    delay, length = _FIRST_DELAY_S, 0
    for _ in range(_TRIES):
        task = asyncio.ensure_future(subject.ask(prompt, subject.sampling(new), seed=3, request_id="cut"))
        await asyncio.sleep(delay)
        # An id that is not in flight is no error.
        subject.generator.abort(["nobody", "cut"])
        found = await task
        length = len(found)
        if 0 < length < new:
            if found.finish != "abort":
                raise ContractError("Completion.finish", f"expected 'abort', found '{found.finish}'")
            return found
        # Nobody knows how fast the engine is: a shorter wait if all was written, a longer one if nothing was.
        delay *= 0.7 if length else 1.9
    raise ContractError("abort", f"expected a part of {new} tokens, found {length} after {delay:.3g} s")


async def aborts(subject: GeneratorSubject) -> None:
    """An abort returns what was written, and `partial` goes on from there."""
    prompt, new = subject.prompt(6), _room(subject)
    part = await _interrupted(subject, prompt, new)
    subject.agrees(prompt, part)
    whole = await subject.ask(prompt, subject.sampling(new), seed=4, partial=part)
    for name in ("tokens", "logprob", "version"):
        kept, found = as_numpy(getattr(part, name)).tolist(), as_numpy(getattr(whole, name)).tolist()
        if found[: len(kept)] != kept:
            raise ContractError(f"Completion.{name}", "expected the part that was written before to be kept, found another")
    if len(whole) != new:
        raise ContractError("generate(partial)", f"expected {new} tokens with those of the part, found {len(whole)}")
    subject.agrees(prompt, whole, since=len(part))


async def aborts_all(subject: GeneratorSubject) -> None:
    """Aborting all leaves nobody waiting, however many there are."""
    tasks = _start(subject, 40)
    await asyncio.sleep(_FIRST_DELAY_S)
    subject.generator.abort()
    found = await asyncio.gather(*tasks)
    if not any(completion.finish == "abort" for completion in found):
        raise ContractError("abort", "expected aborted completions, found none")
    _empty(subject)


def _start(subject: GeneratorSubject, count: int) -> list[asyncio.Task[Completion[Any]]]:
    new = _room(subject)
    return [asyncio.ensure_future(subject.ask(subject.prompt(5), subject.sampling(new), seed=i)) for i in range(count)]


async def pauses(subject: GeneratorSubject) -> None:
    """Nothing is written while the engine is paused."""
    await subject.generator.pause()
    task = asyncio.ensure_future(subject.ask(subject.prompt(3), subject.sampling(2)))
    try:
        done, _ = await asyncio.wait([task], timeout=0.2)
        if done:
            raise ContractError("pause", "expected no completion before resume(), found one")
    finally:
        await subject.generator.resume()
        await task


async def cancels(subject: GeneratorSubject) -> None:
    """A cancelled request frees its memory, and disturbs nobody."""
    prompt, sampling = subject.prompt(7), subject.sampling(40 if subject.max_model_len > 48 else 20)
    tasks = _start(subject, 6)
    kept = asyncio.ensure_future(subject.ask(prompt, sampling, seed=2))
    await asyncio.sleep(_FIRST_DELAY_S)
    for task in tasks:
        task.cancel()
    subject.agrees(prompt, await kept)
    await asyncio.wait(tasks)
    for _ in range(_TRIES):
        # An engine may free what a cancelled request held a moment later.
        if not subject.generator.in_flight and not subject.generator.cached_tokens:
            return
        await asyncio.sleep(0.05)
    _empty(subject)


async def _switch(subject: GeneratorSubject) -> None:
    """Loads other weights, and has them scored from now on."""
    if subject.update is not None:
        version = subject.generator.version + 1
        weights, subject.score = subject.update(version)
        await subject.generator.load(weights)
        if subject.generator.version != version:
            raise ContractError("generator.version", f"expected {version} after load, found {subject.generator.version}")


async def loads(subject: GeneratorSubject) -> None:
    """Weights that are loaded are used, and nothing cached before."""
    prompts = [subject.prompt(length) for length in (3, 20)]
    sampling = subject.sampling(20, temperature=0.0)

    async def write() -> list[Completion[Any]]:
        return await subject.together([subject.ask(prompt, sampling) for prompt in prompts])

    before = await write()
    await _switch(subject)
    after = await write()
    if _same(before, after):
        raise ContractError("load", "expected other tokens from other weights, found the same")
    for prompt, completion in zip(prompts, after, strict=True):
        subject.likeliest(prompt, completion)
        wrong = set(as_numpy(completion.version).tolist()) - {subject.generator.version}
        if wrong:
            raise ContractError("Completion.version", f"expected {subject.generator.version}, found {sorted(wrong)}")


def _same(one: Sequence[Completion[Any]], other: Sequence[Completion[Any]]) -> bool:
    return all(as_numpy(a.tokens).tolist() == as_numpy(b.tokens).tolist() for a, b in zip(one, other, strict=True))


async def loads_in_flight(subject: GeneratorSubject) -> None:
    """Each token is by the weights that its version names, those before it read by the same."""
    prompts, delay, new = [subject.prompt(length) for length in (4, 8)], _FIRST_DELAY_S, _room(subject)
    counts: list[int] = []
    for _ in range(_TRIES):
        old = subject.generator.version
        tasks = [asyncio.ensure_future(subject.ask(prompt, subject.sampling(new), seed=1)) for prompt in prompts]
        await asyncio.sleep(delay)
        before = subject.score
        await _switch(subject)
        found = await asyncio.gather(*tasks)
        counts = [as_numpy(completion.version).tolist().count(old) for completion in found]
        for prompt, completion, count in zip(prompts, found, counts, strict=True):
            versions = as_numpy(completion.version).tolist()
            if versions != [old] * count + [old + 1] * (new - count):
                raise ContractError("Completion.version", f"expected {old}, then {old + 1}, found {versions}")
            subject.agrees(prompt, completion, since=count)
            after, subject.score = subject.score, before
            subject.agrees(prompt, completion, until=count)
            subject.score = after
        if all(0 < count < new for count in counts):
            return
        # As in `_interrupted`.
        delay *= 0.7 if all(counts) else 1.9
    raise ContractError("load", f"expected tokens of two versions in one response of {new}, found {counts} of the old one")


async def closes(subject: GeneratorSubject) -> None:
    """Closing ends what is in flight."""
    tasks = _start(subject, 3)
    await asyncio.sleep(_FIRST_DELAY_S)
    await subject.generator.close()
    found = await asyncio.gather(*tasks)
    if not any(completion.finish == "abort" for completion in found):
        raise ContractError("close", "expected aborted completions, found none")
    _empty(subject)
