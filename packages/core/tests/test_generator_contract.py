"""The contract of generators passes one that keeps it, and each of its lines finds what breaks it."""

import asyncio

import numpy as np
import pytest

from rlinf.core import Completion, Weights
from rlinf.core.errors import ConfigError, ContractError, DeadlineExceeded
from rlinf.core.language.generation import SamplingConfig
from rlinf.core.testing import GeneratorContract
from rlinf.core.testing.generator import CHECKS

VOCABULARY, LIMIT, WIDTH = 12, 96, 6


def make(version):
    random = np.random.default_rng(version)
    return {"embed": random.standard_normal((VOCABULARY, WIDTH)), "head": 0.7 * random.standard_normal((WIDTH, VOCABULARY))}


def state_of(weights, tokens):
    state = np.zeros(WIDTH)
    for token in tokens:
        state = 0.6 * state + weights["embed"][token]
    return state


def log_softmax(logits):
    return logits - np.log(np.exp(logits - logits.max()).sum()) - logits.max()


def scorer(weights):
    def score(prompt, tokens):
        logprobs = [log_softmax(state_of(weights, [*prompt, *tokens[:i]]) @ weights["head"]) for i in range(len(tokens))]
        return np.array([row[t] for row, t in zip(logprobs, tokens, strict=True)]), np.array([row.argmax() for row in logprobs])

    return score


def update(version):
    weights = make(version)
    return Weights(tensors=weights, version=version), scorer(weights)


class ToyGenerator:
    """A recurrence instead of a network; its state is the cache."""

    def __init__(self):
        self.weights, self.version, self.paused, self.closed = make(0), 0, False, False
        self.states, self.aborted = {}, set()

    @property
    def in_flight(self):
        return len(self.states)

    @property
    def cached_tokens(self):
        return sum(len(tokens) for tokens, _ in self.states.values())

    def refuse(self, prompt, sampling, request_id):
        if not prompt or len(prompt) + sampling.max_new_tokens > LIMIT or request_id in self.states:
            raise ConfigError("generate(prompt)", "no")

    async def generate(self, prompt, sampling, *, seed, request_id=None, partial=None):
        self.refuse(prompt, sampling, request_id)
        key = request_id or object()
        written = [] if partial is None else self.resume_from(partial)
        tokens = [*prompt, *(token for token, _, _ in written)]
        self.states[key] = (tokens, state_of(self.weights, tokens))
        uniform = np.random.default_rng(seed).random(sampling.max_new_tokens)
        finish = "length"
        try:
            while len(written) < sampling.max_new_tokens:
                await self.turn()
                if key in self.aborted or self.closed:
                    finish = "abort"
                    break
                written.append((*self.write(key, sampling, uniform[len(written)]), self.version))
                if written[-1][0] in sampling.stop_token_ids:
                    finish = "stop"
                    break
        finally:
            self.leave(key)
        return self.completion(written, finish)

    def resume_from(self, partial):
        return list(zip(partial.tokens.tolist(), partial.logprob.tolist(), partial.version.tolist(), strict=True))

    async def turn(self):
        await asyncio.sleep(0.0002)
        while self.paused:
            await asyncio.sleep(0.001)

    def leave(self, key):
        self.aborted.discard(key)
        del self.states[key]

    def completion(self, written, finish):
        columns = [np.array(column) for column in zip(*written, strict=True)] or [np.zeros(0)] * 3
        return Completion(tokens=columns[0].astype(int), logprob=columns[1], version=columns[2].astype(int), finish=finish)

    def write(self, key, sampling, uniform):
        tokens, state = self.states[key]
        logprobs = log_softmax(state @ self.weights["head"] / (sampling.temperature or 1.0))
        token = int(logprobs.argmax()) if sampling.temperature == 0 else self.pick(logprobs, sampling, uniform)
        self.states[key] = ([*tokens, token], 0.6 * state + self.weights["embed"][token])
        return token, logprobs[token]

    def pick(self, logprobs, sampling, uniform):
        order = np.argsort(-logprobs)
        p = np.exp(logprobs[order])
        p = np.where((np.arange(len(p)) < (sampling.top_k or len(p))) & (p.cumsum() - p < sampling.top_p), p, 0)
        return int(order[np.searchsorted(p.cumsum(), uniform * p.sum(), side="right")])

    def abort(self, request_ids=None):
        self.aborted |= set(self.states) if request_ids is None else set(request_ids) & set(self.states)

    async def pause(self):
        self.paused = True

    async def resume(self):
        self.paused = False

    async def load(self, weights):
        self.weights, self.version = weights.tensors, weights.version
        self.states = {key: (tokens, state_of(self.weights, tokens)) for key, (tokens, _) in self.states.items()}

    async def close(self):
        self.closed = True


class Unlikely(ToyGenerator):
    def write(self, key, sampling, uniform):
        return super().write(key, SamplingConfig(max_new_tokens=1) if sampling.temperature == 0 else sampling, uniform)


class Rounded(ToyGenerator):
    def write(self, key, sampling, uniform):
        token, logprob = super().write(key, sampling, uniform)
        return token, logprob * 1.001


class Sharp(ToyGenerator):
    def pick(self, logprobs, sampling, uniform):
        return super().pick(log_softmax(1.5 * logprobs), sampling, uniform)


class Lukewarm(ToyGenerator):
    def write(self, key, sampling, uniform):
        warm = SamplingConfig(max_new_tokens=1, top_k=sampling.top_k, top_p=sampling.top_p)
        return super().write(key, warm if sampling.temperature else sampling, uniform)


class Uncut(ToyGenerator):
    def pick(self, logprobs, sampling, uniform):
        return super().pick(logprobs, SamplingConfig(max_new_tokens=1), uniform)


class Renormalised(ToyGenerator):
    def write(self, key, sampling, uniform):
        token, logprob = super().write(key, sampling, uniform)
        return token, 0.0 if sampling.top_k == 1 else logprob


class Swallowing(ToyGenerator):
    def completion(self, written, finish):
        return super().completion(written[:-1] if finish == "stop" else written, "length" if finish == "stop" else finish)


class Deaf(ToyGenerator):
    async def generate(self, prompt, sampling, *, seed, **more):
        return await super().generate(prompt, sampling, seed=0, **more)


class Sociable(ToyGenerator):
    def pick(self, logprobs, sampling, uniform):
        return super().pick(logprobs, sampling, (uniform + 0.3 * (self.in_flight > 1)) % 1)


class Greedy(ToyGenerator):
    def refuse(self, prompt, sampling, request_id):
        if not prompt:
            raise ConfigError("generate(prompt)", "no")


class Forgetful(ToyGenerator):
    def resume_from(self, partial):
        return []


class Relabelling(ToyGenerator):
    def resume_from(self, partial):
        return [(token, logprob - 0.01, version) for token, logprob, version in super().resume_from(partial)]


class Stubborn(ToyGenerator):
    def abort(self, request_ids=None):
        if request_ids is not None:
            super().abort(request_ids)


class Restless(ToyGenerator):
    async def pause(self):
        pass


class Leaking(ToyGenerator):
    cached_tokens = 3


class Unmoved(ToyGenerator):
    async def load(self, weights):
        self.version = weights.version


class Stale(ToyGenerator):
    async def load(self, weights):
        self.weights, self.version = weights.tensors, weights.version


class Versionless(ToyGenerator):
    def completion(self, written, finish):
        return super().completion([(token, logprob, self.version) for token, logprob, _ in written], finish)


class Immortal(ToyGenerator):
    async def close(self):
        pass


LINES = list(CHECKS)
BROKEN = [
    (Unlikely, 0),
    (Rounded, 1),
    (Sharp, 2),
    (Lukewarm, 3),
    (Uncut, 4),
    (Renormalised, 4),
    (Swallowing, 5),
    (Deaf, 6),
    (Sociable, 6),
    (Greedy, 7),
    (Forgetful, 8),
    (Relabelling, 8),
    (Stubborn, 9),
    (Restless, 10),
    (Leaking, 11),
    (Unmoved, 12),
    (Stale, 13),
    (Versionless, 13),
    (Immortal, 14),
]


def contract(generator, **changed):
    fields = {"score": scorer(make(0)), "update": update, "vocabulary": VOCABULARY, "max_model_len": LIMIT, "deadline_s": 20.0}
    return GeneratorContract(generator=generator, **{**fields, **changed})


def test_a_generator_that_keeps_the_contract_passes():
    seen = []
    assert asyncio.run(contract(ToyGenerator()).run(seen.append)) == LINES == seen


def test_an_engine_without_updates_is_examined_without_them():
    findings = asyncio.run(contract(ToyGenerator(), update=None).examine())
    assert [finding.sentence for finding in findings if finding.skipped] == LINES[12:14]
    assert not any(finding.error for finding in findings)


@pytest.mark.parametrize(("kind", "line"), BROKEN, ids=lambda value: getattr(value, "__name__", str(value)))
def test_each_line_finds_what_breaks_it(kind, line):
    short = contract(kind())
    found = asyncio.run(short._finding(LINES[line]))
    assert isinstance(found.error, ContractError), found


def test_who_never_answers_fails_in_time():
    class Silent(ToyGenerator):
        async def turn(self):
            await asyncio.sleep(3600)

    with pytest.raises(ContractError, match=r"expected an end of .* in 0\.1 s"):
        asyncio.run(contract(Silent(), deadline_s=0.1).run())


def test_an_engines_own_deadline_is_told_as_it_is():
    class Late(ToyGenerator):
        async def turn(self):
            raise DeadlineExceeded("engine", "no answer in 1 s")

    with pytest.raises(DeadlineExceeded, match="engine: no answer in 1 s"):
        asyncio.run(contract(Late()).run())
