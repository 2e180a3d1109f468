"""The contract of engines that write text, as an examiner. Nothing of torch is imported here."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Final

from rlinf.core.errors import ContractError
from rlinf.core.testing.finding import Finding
from rlinf.core.testing.generator import in_flight, text
from rlinf.core.testing.generator.subject import GeneratorSubject


@dataclass(kw_only=True)
class GeneratorContract(GeneratorSubject):
    """Examines an engine that writes text, against a trainer's own forward pass.

        contract = GeneratorContract(generator=config.build(policy), score=score, update=update, vocabulary=64, max_model_len=256)
        asyncio.run(contract.run())

    At the end the generator is closed. The arguments are those of `GeneratorSubject`.
    """

    async def run(self, report: Callable[[str], None] | None = None) -> list[str]:
        """Examines all lines and returns those that hold, one sentence each.

        Args:
            report: called with each sentence as soon as it is known to hold.

        Raises:
            ContractError: the first line that doesn't hold; it says what was expected and what was found.
        """
        held: list[str] = []
        for sentence in CHECKS:
            finding = await self._finding(sentence)
            if finding.error is not None:
                raise finding.error
            if finding.skipped is None:
                held.append(sentence)
                if report is not None:
                    report(sentence)
        return held

    async def examine(self, report: Callable[[Finding], None] | None = None) -> list[Finding]:
        """Examines all lines, whatever fails, and returns what became of each.

        Args:
            report: called with each finding as soon as it is known.
        """
        findings: list[Finding] = []
        for sentence in CHECKS:
            findings.append(await self._finding(sentence))
            if report is not None:
                report(findings[-1])
        return findings

    async def _finding(self, sentence: str) -> Finding:
        check, updates = CHECKS[sentence]
        if updates and self.update is None:
            return Finding(sentence, skipped="the engine takes no weights over")
        deadline = asyncio.timeout(self.deadline_s)
        try:
            async with deadline:
                await check(self)
        except Exception as error:  # noqa: BLE001 - whatever the examined thing raises is a finding
            # An engine may have deadlines of its own.
            if deadline.expired():
                return Finding(sentence, ContractError("generator", f"expected an end of '{sentence}' in {self.deadline_s:g} s"))
            return Finding(sentence, error)
        return Finding(sentence)


Check = Callable[[GeneratorSubject], Awaitable[None]]
CHECKS: Final[dict[str, tuple[Check, bool]]] = {
    "greedy writes the likeliest tokens, for prompts of all lengths at once": (text.greedy, False),
    "log-probabilities are those of teacher forcing": (text.logprobs, False),
    "tokens are drawn from the distribution that is reported": (text.unbiased, False),
    "temperature divides the logits": (text.tempered, False),
    "top_k and top_p cut what is drawn, and not what is reported": (text.cut, False),
    "a response ends with its first stop token, and no token is lost": (text.stops, False),
    "the same seed draws the same tokens, whatever is beside it; others draw others": (text.seeds, False),
    "a prompt that is empty or too long is refused, and so is an id that is in flight": (in_flight.refusals, False),
    "an abort returns what was written, and `partial` goes on from there": (in_flight.aborts, False),
    "aborting all leaves nobody waiting": (in_flight.aborts_all, False),
    "nothing is written while the engine is paused": (in_flight.pauses, False),
    "a cancelled request frees its memory, and disturbs nobody": (in_flight.cancels, False),
    "weights that are loaded are used, and nothing cached before": (in_flight.loads, True),
    "requests in flight go on with weights that are loaded": (in_flight.loads_in_flight, True),
    "closing ends what is in flight": (in_flight.closes, False),
}
"""The contract, in the order in which it is examined, and whether a line needs other weights."""
