"""What films of evaluations need is asked for before a worker starts, under the key that switches them off."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from rlinf.core.errors import ConfigError, each_fault
from rlinf.runners import check_evaluation, check_run
from rlinf.runners.config.composition import compose_recipe
from rlinf.runners.task_types import task_type_of

EMBODIED = Path(__file__).parents[1] / "apps/embodied"
KEY = "env.eval.video_cfg.save_video"
SAID = rf"{re.escape(KEY)}: the module 'imageio_ffmpeg' is not installed\. Install rlinf-envs\[video\]: .*, or set it to false\."


@pytest.fixture(autouse=True)
def no_encoder(monkeypatch: pytest.MonkeyPatch) -> None:
    def there(module: str) -> bool:
        return module != "imageio_ffmpeg"

    monkeypatch.setattr("rlinf.core.registry.is_there", there)


def refused(check: Any, recipe: str, *overrides: str) -> list[str]:
    """What is refused of a recipe, one text per fault."""
    path = EMBODIED / recipe
    data = compose_recipe(path.parent, path.name, overrides).data
    try:
        check(task_type_of(data).read(data))
    except ConfigError as error:
        return [str(fault) for fault in each_fault(error)]
    return []


@pytest.mark.parametrize("check", [check_run, check_evaluation])
@pytest.mark.parametrize("recipe", ["config/cartpole_ppo", "config/pendulum_sac", "config_sft/tabletop_flow_sft"])
def test_a_run_that_could_not_be_filmed_is_refused(check: Any, recipe: str) -> None:
    faults = refused(check, recipe, f"{KEY}=true")
    assert [fault for fault in faults if re.fullmatch(SAID, fault)], faults
    assert not [fault for fault in refused(check, recipe, f"{KEY}=false") if fault.startswith(KEY)]


def test_so_is_one_in_an_interpreter_of_its_own_whose_films_are_made_here() -> None:
    other = "env.eval={env_type: remote, init_params: {python: /bin/sh, env: gymnasium, params: {env_id: CartPole-v1}}}"
    (fault,) = refused(check_run, "config/cartpole_ppo", other)
    assert re.fullmatch(SAID, fault)
