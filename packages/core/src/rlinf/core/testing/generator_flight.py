"""Lines of the generator contract: what happens to requests that are in flight."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from rlinf.core.arrays import as_numpy
from rlinf.core.data import Completion
from rlinf.core.errors import ConfigError, ContractError

if TYPE_CHECKING:
    from rlinf.core.testing.generator import GeneratorContract

_TRIES = 16
_FIRST_DELAY_S = 0.004


async def refusals(contract: GeneratorContract) -> None:
    """What can't be written is refused, and nothing of it stays."""
    full = contract.prompt(contract.max_model_len)
    for what, prompt, new in (("an empty prompt", [], 4), ("one token more than the context", full, 1)):
        try:
            await contract.ask(prompt, contract.sampling(new))
        except ConfigError:
            continue
        raise ContractError("generate(prompt)", f"expected a ConfigError for {what}, found a completion")
    await contract.ask(full[1:], contract.sampling(1))
    first = asyncio.ensure_future(contract.ask(contract.prompt(4), contract.sampling(_room(contract)), request_id="twice"))
    await asyncio.sleep(0)
    try:
        await contract.ask(contract.prompt(4), contract.sampling(2), request_id="twice")
    except ConfigError:
        pass
    else:
        raise ContractError("generate(request_id)", "expected a ConfigError for an id that is in flight, found a completion")
    finally:
        contract.generator.abort(["twice"])
        await first
    _empty(contract)


def _room(contract: GeneratorContract) -> int:
    """A long response to a prompt of at most eight tokens."""
    return min(contract.max_model_len - 8, 240)


def _empty(contract: GeneratorContract) -> None:
    flying, cached = contract.generator.in_flight, contract.generator.cached_tokens
    if flying or cached:
        raise ContractError(
            "generator.in_flight", f"expected nothing in flight or cached, found {flying} requests, {cached} tokens"
        )


async def _interrupted(contract: GeneratorContract, prompt: list[int], new: int) -> Completion[Any]:
    """A completion that was aborted when some tokens had been written."""
    delay, length = _FIRST_DELAY_S, 0
    for _ in range(_TRIES):
        task = asyncio.ensure_future(contract.ask(prompt, contract.sampling(new), seed=3, request_id="cut"))
        await asyncio.sleep(delay)
        contract.generator.abort(["nobody", "cut"])
        found = await task
        length = len(found)
        if 0 < length < new:
            if found.finish != "abort":
                raise ContractError("Completion.finish", f"expected 'abort', found '{found.finish}'")
            return found
        delay *= 0.7 if length else 1.9
    raise ContractError("abort", f"expected a part of {new} tokens, found {length} after {delay:.3g} s")


async def aborts(contract: GeneratorContract) -> None:
    """An abort returns what was written, and `partial` goes on from there."""
    prompt, new = contract.prompt(6), _room(contract)
    part = await _interrupted(contract, prompt, new)
    contract.agrees(prompt, part)
    whole = await contract.ask(prompt, contract.sampling(new), seed=4, partial=part)
    for name in ("tokens", "logprob", "version"):
        kept, found = as_numpy(getattr(part, name)).tolist(), as_numpy(getattr(whole, name)).tolist()
        if found[: len(kept)] != kept:
            raise ContractError(f"Completion.{name}", "expected the part that was written before to be kept, found another")
    if len(whole) != new:
        raise ContractError("generate(partial)", f"expected {new} tokens with those of the part, found {len(whole)}")
    contract.agrees(prompt, whole, since=len(part))


async def aborts_all(contract: GeneratorContract) -> None:
    """Aborting all leaves nobody waiting, however many there are."""
    tasks = _start(contract, 40)
    await asyncio.sleep(_FIRST_DELAY_S)
    contract.generator.abort()
    found = await asyncio.gather(*tasks)
    if not any(completion.finish == "abort" for completion in found):
        raise ContractError("abort", "expected aborted completions, found none")
    _empty(contract)


def _start(contract: GeneratorContract, count: int) -> list[asyncio.Task[Completion[Any]]]:
    new = _room(contract)
    return [asyncio.ensure_future(contract.ask(contract.prompt(5), contract.sampling(new), seed=i)) for i in range(count)]


async def pauses(contract: GeneratorContract) -> None:
    """Nothing is written while the engine is paused."""
    await contract.generator.pause()
    task = asyncio.ensure_future(contract.ask(contract.prompt(3), contract.sampling(2)))
    try:
        done, _ = await asyncio.wait([task], timeout=0.2)
        if done:
            raise ContractError("pause", "expected no completion before resume(), found one")
    finally:
        await contract.generator.resume()
        await task


async def cancels(contract: GeneratorContract) -> None:
    """A cancelled request frees its memory, and disturbs nobody."""
    prompt, sampling = contract.prompt(7), contract.sampling(40 if contract.max_model_len > 48 else 20)
    tasks = _start(contract, 6)
    kept = asyncio.ensure_future(contract.ask(prompt, sampling, seed=2))
    await asyncio.sleep(_FIRST_DELAY_S)
    for task in tasks:
        task.cancel()
    contract.agrees(prompt, await kept)
    await asyncio.wait(tasks)
    for _ in range(_TRIES):
        if not contract.generator.in_flight and not contract.generator.cached_tokens:
            return
        await asyncio.sleep(0.05)
    _empty(contract)


async def _switch(contract: GeneratorContract) -> None:
    """Loads other weights, and has them scored from now on."""
    if contract.update is not None:
        version = contract.generator.version + 1
        weights, contract.score = contract.update(version)
        await contract.generator.load(weights)
        if contract.generator.version != version:
            raise ContractError("generator.version", f"expected {version} after load, found {contract.generator.version}")


async def loads(contract: GeneratorContract) -> None:
    """Weights that are loaded are used, and nothing cached before."""
    prompts = [contract.prompt(length) for length in (3, 20)]
    sampling = contract.sampling(20, temperature=0.0)

    async def write() -> list[Completion[Any]]:
        return await contract.together([contract.ask(prompt, sampling) for prompt in prompts])

    before = await write()
    await _switch(contract)
    after = await write()
    if _same(before, after):
        raise ContractError("load", "expected other tokens from other weights, found the same")
    for prompt, completion in zip(prompts, after, strict=True):
        contract.likeliest(prompt, completion)
        wrong = set(as_numpy(completion.version).tolist()) - {contract.generator.version}
        if wrong:
            raise ContractError("Completion.version", f"expected {contract.generator.version}, found {sorted(wrong)}")


def _same(one: Sequence[Completion[Any]], other: Sequence[Completion[Any]]) -> bool:
    return all(as_numpy(a.tokens).tolist() == as_numpy(b.tokens).tolist() for a, b in zip(one, other, strict=True))


async def loads_in_flight(contract: GeneratorContract) -> None:
    """Each token is by the weights that its version names, those before it read by the same."""
    prompts, delay, new = [contract.prompt(length) for length in (4, 8)], _FIRST_DELAY_S, _room(contract)
    counts: list[int] = []
    for _ in range(_TRIES):
        old = contract.generator.version
        tasks = [asyncio.ensure_future(contract.ask(prompt, contract.sampling(new), seed=1)) for prompt in prompts]
        await asyncio.sleep(delay)
        before = contract.score
        await _switch(contract)
        found = await asyncio.gather(*tasks)
        counts = [as_numpy(completion.version).tolist().count(old) for completion in found]
        for prompt, completion, count in zip(prompts, found, counts, strict=True):
            versions = as_numpy(completion.version).tolist()
            if versions != [old] * count + [old + 1] * (new - count):
                raise ContractError("Completion.version", f"expected {old}, then {old + 1}, found {versions}")
            contract.agrees(prompt, completion, since=count)
            after, contract.score = contract.score, before
            contract.agrees(prompt, completion, until=count)
            contract.score = after
        if all(0 < count < new for count in counts):
            return
        delay *= 0.7 if all(counts) else 1.9
    raise ContractError("load", f"expected tokens of two versions in one response of {new}, found {counts} of the old one")


async def closes(contract: GeneratorContract) -> None:
    """Closing ends what is in flight."""
    tasks = _start(contract, 3)
    await asyncio.sleep(_FIRST_DELAY_S)
    await contract.generator.close()
    found = await asyncio.gather(*tasks)
    if not any(completion.finish == "abort" for completion in found):
        raise ContractError("close", "expected aborted completions, found none")
    _empty(contract)
