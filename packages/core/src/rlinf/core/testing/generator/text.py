"""Lines of the generator contract: what is written."""

from __future__ import annotations

import numpy as np

from rlinf.core.data.arrays import as_numpy
from rlinf.core.errors import ContractError
from rlinf.core.testing.generator.subject import GeneratorSubject

_LENGTHS = (1, 2, 3, 7, 12, 12, 19, 30)
_NEW = (9, 1, 12, 5, 17, 2, 21, 8)


async def greedy(subject: GeneratorSubject) -> None:
    """Greedy writes the likeliest tokens, for prompts of all lengths at once."""
    prompts = [subject.prompt(length) for length in _LENGTHS]
    samplings = [subject.sampling(new, temperature=0.0) for new in _NEW]
    found = await subject.together([subject.ask(p, s) for p, s in zip(prompts, samplings, strict=True)])
    for prompt, sampling, completion in zip(prompts, samplings, found, strict=True):
        if len(completion) != sampling.max_new_tokens:
            raise ContractError("Completion.tokens", f"expected {sampling.max_new_tokens} tokens, found {len(completion)}")
        subject.likeliest(prompt, completion)


async def logprobs(subject: GeneratorSubject) -> None:
    """Log-probabilities are those of teacher forcing."""
    prompts = [subject.prompt(length) for length in _LENGTHS]
    asked = [subject.ask(p, subject.sampling(new), seed=i) for i, (p, new) in enumerate(zip(prompts, _NEW, strict=True))]
    for prompt, completion in zip(prompts, await subject.together(asked), strict=True):
        subject.agrees(prompt, completion)
        wrong = set(as_numpy(completion.version).tolist()) - {subject.generator.version}
        if wrong:
            raise ContractError("Completion.version", f"expected {subject.generator.version}, found {sorted(wrong)}")


async def _first(subject: GeneratorSubject, prompt: list[int], draws: int, **changed: float | int) -> list[tuple[int, float]]:
    """The first token and its log-probability, drawn with seeds from 0 on."""
    sampling = subject.sampling(1, **changed)
    found = await subject.together([subject.ask(prompt, sampling, seed=seed) for seed in range(draws)])
    return [(int(as_numpy(c.tokens)[0]), float(as_numpy(c.logprob)[0])) for c in found]


async def unbiased(subject: GeneratorSubject) -> None:
    """Tokens are drawn from the distribution that is reported: Pearson's χ², rare tokens counted as one."""
    draws = subject.draws
    drawn = await _first(subject, subject.prompt(5), draws)
    tokens = [token for token, _ in drawn]
    cells = {token: (tokens.count(token), draws * float(np.exp(logprob))) for token, logprob in drawn}
    # The statistic is distributed as χ² only where a cell is expected about five times or more.
    often = {token: cell for token, cell in cells.items() if cell[1] >= 5}
    rest = (draws - sum(n for n, _ in often.values()), draws - sum(expected for _, expected in often.values()))
    statistic = sum((n - expected) ** 2 / max(expected, 5.0) for n, expected in [*often.values(), rest])
    # χ² of k cells has the mean k and the variance 2k: up to 4.5 standard deviations above.
    bound = len(often) + 4.5 * float(np.sqrt(2 * max(len(often), 1)))
    if statistic > bound:
        told = ", ".join(f"{token}: {n} of {expected:.0f}" for token, (n, expected) in sorted(often.items()))
        raise ContractError("tokens", f"expected χ² up to {bound:.0f} in {draws} draws, found {statistic:.0f} ({told})")


async def tempered(subject: GeneratorSubject) -> None:
    """At half the temperature, differences between log-probabilities are twice as large."""
    prompt = subject.prompt(4)
    drawn = dict(await _first(subject, prompt, 64, temperature=subject.temperature / 2))
    tokens = sorted(drawn)
    warm = [float(np.asarray(subject.score(prompt, [token])[0])[0]) for token in tokens]
    # They double up to a constant, which is the normaliser's.
    shift = [drawn[token] - 2 * logprob for token, logprob in zip(tokens, warm, strict=True)]
    if max(shift) - min(shift) > 4 * subject.tolerance:
        raise ContractError(
            "Completion.logprob", "expected differences to double at half the temperature, found others", "Divide the logits by it."
        )


async def cut(subject: GeneratorSubject) -> None:
    """A cut changes what is drawn, and not what is reported."""
    prompt = subject.prompt(6)
    drawn = await _first(subject, prompt, 32, top_k=2)
    tokens = {token for token, _ in drawn}
    if len(tokens) > 2:
        raise ContractError("top_k", f"expected at most 2 tokens, found {sorted(tokens)}")
    for changed in ({"top_k": 1}, {"top_p": 1e-6}):
        sampling = subject.sampling(8, **changed)
        found = await subject.ask(prompt, sampling, seed=3)
        subject.likeliest(prompt, found)
        subject.agrees(prompt, found)


async def stops(subject: GeneratorSubject) -> None:
    """A response ends with its first stop token, and no token is lost."""
    prompt = subject.prompt(8)
    whole: list[int] = as_numpy((await subject.ask(prompt, subject.sampling(24), seed=11)).tokens).tolist()
    for at in (0, 3, 10, 23):
        stop = (whole[-1], whole[at])
        # Either token may stand in the response before the place that it was taken from.
        end = min(map(whole.index, stop)) + 1
        found = await subject.ask(prompt, subject.sampling(24, stop_token_ids=stop), seed=11)
        if as_numpy(found.tokens).tolist() != whole[:end]:
            told = f"{whole[:end]}, found {as_numpy(found.tokens).tolist()}"
            raise ContractError("stop_token_ids", f"expected the same response up to and with {whole[end - 1]}, {told}")
        subject.agrees(prompt, found)


async def seeds(subject: GeneratorSubject) -> None:
    """The same seed draws the same tokens, whatever is beside it; others draw others."""
    prompt = subject.prompt(9)
    alone = as_numpy((await subject.ask(prompt, subject.sampling(16), seed=5)).tokens).tolist()
    others = [subject.ask(subject.prompt(length), subject.sampling(14), seed=5) for length in _LENGTHS]
    same = [subject.ask(prompt, subject.sampling(16), seed=seed) for seed in (5, 6, 7, 8)]
    found = await subject.together([*others, *same])
    crowd, *samples = [as_numpy(c.tokens).tolist() for c in found[len(others) :]]
    if crowd != alone:
        raise ContractError("generate(seed)", f"expected {alone} from the same seed in company, found {crowd}")
    if any(sample == alone for sample in samples):
        raise ContractError("generate(seed)", "expected other tokens from other seeds, found the same")
