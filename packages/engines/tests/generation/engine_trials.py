"""What the tests of engines in processes of their own share: the contract, agreement in figures, and a sudden death."""

import asyncio
import time

import numpy as np
import psutil

from rlinf.core import SamplingConfig
from rlinf.core.errors import RLinfError
from rlinf.core.testing import GeneratorContract


async def held(policy, config):
    """The lines of the contract that hold; the engine is gone at the end, whatever fails."""

    generator = config.build(policy)
    sizes = {"vocabulary": 64, "max_model_len": 256, "deadline_s": 900.0}
    try:
        return await GeneratorContract(generator=generator, score=policy.again().score, update=policy.updated, **sizes).run(
            report=print
        )
    finally:
        await generator.close()


async def gap(generator, oracle, *, responses=24, new=48):
    """The largest difference between log-probabilities of the engine and of a forward pass of transformers."""
    random = np.random.default_rng(3)
    prompts = [random.integers(0, 64, size=1 + n).tolist() for n in range(responses)]
    found = await asyncio.gather(
        *(generator.generate(p, SamplingConfig(max_new_tokens=new), seed=n) for n, p in enumerate(prompts))
    )
    gaps = [np.abs(oracle.score(p, f.tokens.tolist())[0] - f.logprob.numpy()).max() for p, f in zip(prompts, found, strict=True)]
    return float(max(gaps))


async def ends_one_alone(generator):
    """Of many requests one ends at a time, by a token or an abort, and the others go on."""

    def asked(n):
        sampling = SamplingConfig(max_new_tokens=8 + n, stop_token_ids=tuple(range(0, 64, 8)) if n < 12 else ())
        return asyncio.create_task(generator.generate([1, 2], sampling, seed=n, request_id=str(n)))

    tasks = [asked(n) for n in range(128)]
    await asyncio.sleep(0.05)
    generator.abort(["12"])
    found = await asyncio.gather(*tasks)
    assert [completion.finish for completion in found[13:]] == ["length"] * 115


async def agrees_until_it_dies(generator, oracle, process_name):
    """Log-probabilities are those of transformers, requests end one by one; returns what they were told when it died."""
    far = await gap(generator, oracle)
    print(f"log-probabilities agree with transformers to {far:.1e}")
    assert far < 2e-5
    await ends_one_alone(generator)
    told = await dies_with_a_cause(generator, process_name)
    await generator.close()
    print(told[0])
    return told


async def dies_with_a_cause(generator, process_name):
    """SIGKILL of a process below this one while requests are written; returns what they were told."""
    victims = [child for child in psutil.Process().children(recursive=True) if process_name in " ".join(child.cmdline())]
    assert victims
    for attempt in range(8):
        asked = [asyncio.create_task(generator.generate([1, 2], SamplingConfig(max_new_tokens=250), seed=n)) for n in range(3)]
        until = time.monotonic() + 600.0
        while generator.cached_tokens < 3 * 2 + 2 and not all(task.done() for task in asked):
            assert time.monotonic() < until
            await asyncio.sleep(0.002)
        for victim in victims:
            victim.suspend()
        await asyncio.sleep(1.0)  # what was on its way has arrived
        late = [task for task in asked if not task.done()]
        for victim in victims:
            victim.kill() if late else victim.resume()
        if late:
            break
        assert attempt < 7, "the engine writes faster than it can be killed"
    found = await asyncio.wait_for(asyncio.gather(*late, return_exceptions=True), 120.0)
    assert all(isinstance(error, RLinfError) for error in found), found
    try:
        whole = await asyncio.wait_for(generator.generate([1, 2], SamplingConfig(max_new_tokens=4), seed=0), 120.0)
    except RLinfError as error:
        found.append(error)
    else:
        raise AssertionError(f"expected an error from an engine that is dead, found {whole}")
    return [str(error) for error in found]
