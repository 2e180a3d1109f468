"""An episode for people: what was written, and, in marks, what was read and is masked."""

from __future__ import annotations

from rlinf.core.agents import Branch, Episode
from rlinf.core.problems import Tokenizer

READ = ("⟦", "⟧")
"""Around what the model read and did not write: masked, nothing is learned from it."""


def transcript(episode: Episode, tokenizer: Tokenizer) -> str:
    """What was written after the prompt; branches follow each other, and a failure is named at the end."""
    parts = [_branch(branch, tokenizer) for branch in episode.branches]
    if episode.failure:
        parts.append(f"[{episode.finish}: {episode.failure}]")
    return "\n".join(parts)


def _branch(branch: Branch, tokenizer: Tokenizer) -> str:
    text = f"[{branch.agent}] " if branch.agent else ""
    for number, turn in enumerate(branch.turns):
        if number < branch.inherited:
            continue
        # The prompt of the first turn is that of the problem, which stands beside it.
        read = tokenizer.decode(turn.prompt) if number else ""
        text += f"{READ[0]}{read}{READ[1]}" if read else ""
        text += tokenizer.decode([int(token) for token in turn.completion.tokens])
    return text
