"""The commands that this part brings to `rlinf`."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path

from rlinf.core.errors import ConfigError
from rlinf.runners.composition import compose_recipe
from rlinf.runners.reading import explain_embodied, read_embodied


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
    sys.stdout.write(explain_embodied(read_embodied(composition.data), composition.provenance, key) + "\n")
    return 0
