"""Reading a configuration imports nothing that takes seconds: what is mistyped is refused at once."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

APPS = Path(__file__).parents[1] / "apps"
HEAVY = ("torch", "ray", "transformers", "mani_skill", "mujoco", "safetensors.torch")

EVERY_RECIPE = """
import sys
from pathlib import Path
from rlinf.core.errors import ConfigError, MissingExtra
from rlinf.runners.config.composition import compose_recipe
from rlinf.runners.task_types import task_type_of
apps, heavy = Path(sys.argv[1]), sys.argv[2:]
recipes = [path for folder in ("embodied/config", "reasoning/config", "agent/config") for path in (apps / folder).glob("*.yaml")]
assert len(recipes) > 40, recipes
for path in recipes:
    data = compose_recipe(path.parent, path.stem).data
    task_type_of(data).read(data)
    loaded = [name for name in heavy if name in sys.modules]
    assert not loaded, f"{path.stem}: reading it imported {loaded}"
"""

REFUSED = """
import sys
from pathlib import Path
from rlinf.core.errors import ConfigError
from rlinf.runners import train_app
from rlinf.runners.config import composition
folder, heavy = Path(sys.argv[1]), [*sys.argv[2:], "gymnasium", "rich", "rlinf.envs.libero", "rlinf.envs.wrappers.video"]
composed, compose = [], composition.compose
composition.compose = lambda **arguments: composed.append(arguments) or compose(**arguments)
try:
    train_app(["algorithm.clip_ratio_hihg=0.3"], config_dir=folder / "embodied/config", default="maniskill_ppo_mlp", description="")
except ConfigError as error:
    assert "Did you mean 'clip_ratio_high'?" in str(error), error
else:
    raise AssertionError("the key was not refused")
loaded = [name for name in heavy if name in sys.modules]
assert not loaded, f"refusing it imported {loaded}"
assert len(composed) == 1, "a key that chooses nothing by name needs no comparison with the recipe without it"
"""


def outcome(program: str) -> str:
    """What a program says in a fresh interpreter; nothing if all is well."""
    command = [sys.executable, "-c", program, str(APPS), *HEAVY]
    run = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)
    return "" if run.returncode == 0 else run.stderr[-800:]


def test_no_recipe_loads_torch_when_it_is_read() -> None:
    assert outcome(EVERY_RECIPE) == ""


def test_a_mistyped_key_is_refused_at_once() -> None:
    assert outcome(REFUSED) == ""
