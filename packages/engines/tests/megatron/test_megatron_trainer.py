"""Every way to share a model gives what transformers and the trainer of one rank give: real processes on gloo."""

import json
from importlib.util import find_spec
from pathlib import Path

import pytest
import torch
from megatron_ranks import ALONE, CASES, CHAINS, ON_FOUR, ON_TWO, OPTIM, SCORES, config_of, launch, share, uneven
from megatron_text import Writer, text_batch, text_loss
from safetensors.torch import load_file

from rlinf.engines import FSDPTrainerConfig

installed = find_spec("megatron") is not None and find_spec("megatron.core") is not None
pytestmark = pytest.mark.skipif(not installed, reason="megatron-core is not installed")


def compare(found: Path, name: str, world_size: int) -> None:
    family, config = CASES[name][0], config_of(name)
    oracle = FSDPTrainerConfig(OPTIM).build(Writer(family, seed=0), rank=0, world_size=1, rendezvous="")
    start = oracle.weights().tensors
    batches = {"right": text_batch(), "left": text_batch(left=True), "packed": text_batch(packed=True)}
    scored = {kind: oracle.evaluate(batch) for kind, batch in batches.items()}
    history = [{key: metric.mean for key, metric in oracle.step(share(0, 1), text_loss).items()} for _ in range(2)]
    end = oracle.weights().tensors
    for rank in range(world_size):
        folder, own = (found / name / str(rank), 0) if name in ALONE else (found / name, rank)
        index, shares = config.data_rank(own, 1 if name in ALONE else world_size)
        tensors = load_file(folder / f"found_{own}.safetensors")
        *seen, version = json.loads((folder / f"seen_{own}.json").read_text())
        assert version == 2
        assert tensors["shares"].item() == shares
        for one, other in zip(history, seen, strict=True):
            assert other == pytest.approx(one, rel=1e-5, abs=1e-5)
        assert {key.removeprefix("start/") for key in tensors if key.startswith("start/")} == start.keys()
        for key, tensor in start.items():
            assert torch.equal(tensors[f"start/{key}"], tensor), key
            torch.testing.assert_close(tensors[f"end/{key}"], end[key], atol=1e-5, rtol=0, msg=f"{name}: {key}")
        rows = len(uneven(index))
        for field in SCORES:
            expected = getattr(scored["right"], field)[:rows]
            torch.testing.assert_close(tensors[f"uneven/{field}"], expected, atol=1e-5, rtol=0)
        for kind, evaluation in scored.items():
            for field in SCORES:
                torch.testing.assert_close(tensors[f"{kind}/{field}"], getattr(evaluation, field), atol=1e-5, rtol=0)
        torch.testing.assert_close(tensors["reference"], scored["right"].logprob, atol=1e-5, rtol=0)


@pytest.mark.parametrize("name", ON_TWO)
def test_two_ranks_equal_one_of_fsdp(two, name) -> None:
    compare(two, name, 2)


@pytest.mark.slow
def test_four_ranks_equal_one_of_fsdp(tmp_path_factory) -> None:
    four = launch(tmp_path_factory.mktemp("four"), 4, ON_FOUR)
    for name in ON_FOUR:
        compare(four, name, 4)


@pytest.mark.parametrize("name", CHAINS)
def test_a_checkpoint_moves_between_sizes_and_to_fsdp(two, name) -> None:
    """Weights to the bit; optimizer too, as the steps after show: all four are those of one rank of FSDP."""
    family, plans = CHAINS[name]
    seen = json.loads((two / name / "seen_0.json").read_text())
    assert seen == {f"{case}{number}": [True, number] for number, (case, _) in enumerate(plans) if number}
    straight = FSDPTrainerConfig(OPTIM).build(Writer(family, seed=7), rank=0, world_size=1, rendezvous="")
    for _ in range(4):
        straight.step(share(0, 1), text_loss)
    resumed = FSDPTrainerConfig(OPTIM).build(Writer(family, seed=8), rank=0, world_size=1, rendezvous="")
    resumed.load(two / name / "2")
    assert resumed.version == 3
    resumed.step(share(0, 1), text_loss)
    ends = [load_file(two / name / f"end_{rank}.safetensors") for rank in range(2)] + [resumed.weights().tensors]
    for weight, tensor in straight.weights().tensors.items():
        for end in ends:
            # Rounding grows over four large steps.
            torch.testing.assert_close(end[weight], tensor, atol=1e-4, rtol=0, msg=weight)
    assert {path.suffix for path in (two / name).rglob("*") if path.is_file()} == {".safetensors", ".json"}
