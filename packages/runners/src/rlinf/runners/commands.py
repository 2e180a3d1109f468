"""The commands that this part brings to `rlinf`."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path

from rlinf.core.errors import ConfigError
from rlinf.runners.config.composition import Composition, compose_recipe
from rlinf.runners.config.sections import task_type
from rlinf.runners.embodied.reading import explain_embodied, read_embodied
from rlinf.runners.reasoning.reading import explain_reasoning, read_reasoning
from rlinf.runners.sft.reading import explain_sft, read_sft


def config(args: Sequence[str]) -> int:
    """Validates a recipe and says where each value comes from: `rlinf config <recipe.yaml> [key=value …] [--explain KEY]`."""
    arguments = list(args)
    key = ""
    if "--explain" in arguments:
        at = arguments.index("--explain")
        if at + 1 == len(arguments):
            raise ConfigError("rlinf config --explain", "a key is missing", "Name one, such as runner.max_steps.")
        key = arguments.pop(at + 1)
        arguments.pop(at)
    if not arguments:
        raise ConfigError("rlinf config", "a recipe is missing", "rlinf config path/to/recipe.yaml [key=value …]")
    recipe = Path(arguments[0])
    composition = compose_recipe(recipe.parent, recipe.stem, arguments[1:])
    sys.stdout.write(_explained(composition, key) + "\n")
    return 0


def _explained(composition: Composition, key: str) -> str:
    """Reads a recipe as what `runner.task_type` says it is, or else its sections, and explains a key."""
    data = composition.data
    kind = task_type(data)
    if kind == "reasoning":
        return explain_reasoning(read_reasoning(data), composition.provenance, key)
    if kind == "sft":
        return explain_sft(read_sft(data), composition.provenance, key)
    return explain_embodied(read_embodied(data), composition.provenance, key)
