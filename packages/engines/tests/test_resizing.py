"""Ranks become more and fewer between two steps: the losses are those of a run that stays as it is."""

import json
import subprocess
import sys
from pathlib import Path

import pytest
from engines_toy import ToyPolicy
from resizing_ranks import CASES, PLAN

from rlinf.core.errors import ConfigError, ShapeError
from rlinf.engines import FSDPTrainerConfig
from rlinf.engines.fsdp.resizing import rebuild, release


def test_one_two_one_two_ranks_step_as_one(two):
    first, second = (json.loads((two / f"resizing/seen_{rank}.json").read_text()) for rank in range(2))
    for name in CASES:
        found = first[name]
        assert found["version"] == len(found["losses"]) == 2 * len(PLAN)
        assert found["losses"] == pytest.approx(found["fixed"], abs=1e-5)
        assert len(set(found["losses"])) == len(found["losses"]), "something is learned in each step"
        assert found["apart"] < 1e-5
        assert second[name]["losses"] == pytest.approx(found["losses"][2:4] + found["losses"][6:8], abs=1e-7)


IMPORTED = """
import json
import sys
from engines_toy import ToyPolicy, toy_batch, toy_loss
from rlinf.engines import FSDPConfig, FSDPTrainerConfig
from rlinf.engines.fsdp.resizing import prepare, rebuild, release

trainer = FSDPTrainerConfig().build(ToyPolicy(), rank=0, world_size=1, rendezvous="")
trainer.step([toy_batch(4)], toy_loss)
compiler = sorted({"torch._dynamo", "sympy"} & set(sys.modules))
prepare()
state = release(trainer)
before = set(sys.modules)
sharded = FSDPTrainerConfig(fsdp_config=FSDPConfig(strategy="fsdp2"))
rebuild(sharded, ToyPolicy(), state, rank=0, world_size=1, rendezvous="").close()
print(json.dumps({"compiler": compiler, "first move": len(set(sys.modules) - before)}))
"""


@pytest.fixture(scope="module")
def imported():
    """What a process of its own imports: a trainer that steps, and once it is prepared its first move."""
    command = [sys.executable, "-c", IMPORTED]
    ended = subprocess.run(command, cwd=Path(__file__).parent, capture_output=True, text=True, check=False, timeout=240)
    assert ended.returncode == 0, ended.stderr
    # Older versions of torch write of their connections there, too.
    return json.loads(ended.stdout.splitlines()[-1])


def test_a_trainer_does_not_import_the_compiler(imported):
    assert imported["compiler"] == []


def test_a_prepared_process_imports_nothing_in_its_first_move(imported):
    assert imported["first move"] <= 5, "a few of gloo's own, and not the hundreds of the compiler"


def test_rank_0_must_have_the_state():
    with pytest.raises(ConfigError, match="rank 0 has no state to go on from"):
        rebuild(FSDPTrainerConfig(), ToyPolicy(), None, rank=0, world_size=1, rendezvous="")


def test_the_state_of_another_model_is_refused():
    state = release(FSDPTrainerConfig().build(ToyPolicy(), rank=0, world_size=1, rendezvous=""))
    assert state.bytes > 0
    state.tensors["model/stranger"] = state.tensors.pop("model/actor.0.weight")
    with pytest.raises(ShapeError, match=r"made for another model: 'model/actor\.0\.weight'"):
        rebuild(FSDPTrainerConfig(), ToyPolicy(), state, rank=0, world_size=1, rendezvous="")
