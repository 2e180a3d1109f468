"""Every way to share gives the gradients of one rank: real processes on gloo, text, packed and padded."""

import json
from pathlib import Path

import pytest
import torch
from engines_ranks import ON_FOUR, ON_TWO, launch, run_case, share, visible
from engines_text import ToyWriter, sequence_loss, text_batch, token_loss
from safetensors.torch import load_file

from rlinf.core.errors import CheckpointError, ConfigError
from rlinf.engines import AmpAutocast, CheckpointConfig, FSDPConfig, FSDPTrainerConfig, MixedPrecision, OptimConfig, WrapPolicy
from rlinf.engines.activation_checkpointing import blocks_of


def compare(found: Path, name: str, world_size: int, folder: Path) -> None:
    (folder / name).mkdir()
    run_case(name if name in ("frozen", "forked") else "no_shard", 0, 1, "", folder / name)
    expected = load_file(folder / name / "weights_0.safetensors")
    history = json.loads((folder / name / "seen_0.json").read_text())
    for rank in range(world_size):
        for one, other in zip(history, json.loads((found / name / f"seen_{rank}.json").read_text()), strict=True):
            assert other == pytest.approx(one, abs=1e-6)
        tensors = load_file(found / name / f"weights_{rank}.safetensors")
        assert tensors.keys() == expected.keys()
        for key, tensor in expected.items():
            # Log-probabilities after two large steps add up the rounding of all weights.
            atol = 1e-5 if key in ("scored", "reference") else 1e-6
            torch.testing.assert_close(tensors[key], tensor, atol=atol, rtol=0, msg=f"{name}: {key}")


@pytest.mark.parametrize("name", ON_TWO)
def test_two_ranks_equal_one(two, tmp_path, name) -> None:
    compare(two, name, 2, tmp_path)


@pytest.mark.slow
def test_four_ranks_equal_one(tmp_path_factory, tmp_path) -> None:
    four = launch(tmp_path_factory.mktemp("four"), 4, ON_FOUR)
    for name in ON_FOUR:
        compare(four, name, 4, tmp_path)


def test_a_checkpoint_moves_from_two_ranks_to_one_and_back(two) -> None:
    """Written in the background while the weights changed; to the bit what it was, optimizer included."""
    seen = json.loads((two / "chain/seen_0.json").read_text())
    assert seen == {"same": True, "version": 1, "again": True}
    straight = visible("no_shard").build(ToyWriter(), rank=0, world_size=1, rendezvous="")
    for loss in (token_loss, sequence_loss, token_loss):
        straight.step(share(0, 1), loss)
    for rank in range(2):
        for name, tensor in load_file(two / f"chain/weights_{rank}.safetensors").items():
            torch.testing.assert_close(tensor, straight.weights().tensors[name], atol=1e-6, rtol=0)
    files = {path.name for path in (two / "chain/two").rglob("*") if path.is_file()}
    assert {path.rpartition(".")[2] for path in files} == {"safetensors"}
    assert len(files) == 3


@pytest.mark.parametrize("way", ["full", "bucket", "patch", "disk"])
def test_two_ranks_send_what_one_would(two, way) -> None:
    """Put together tensor by tensor; a receiver that can't take them leaves both ranks in step."""
    seen = json.loads((two / "sent/seen_0.json").read_text())
    version = 3 * ["full", "bucket", "patch", "disk"].index(way)
    assert seen[way] == [True, True, version + 2]
    assert seen[f"{way} refused"] == ["WeightSyncError", "WeightSyncError"]
    alone = visible("no_shard").build(ToyWriter(), rank=0, world_size=1, rendezvous="")
    for _ in range(version + 2):
        alone.step(share(0, 1), token_loss)
    lazy = alone.lazy_weights()
    assert lazy.version == version + 2
    for name, tensor in load_file(two / f"sent/{way}_{version + 2}.safetensors").items():
        torch.testing.assert_close(tensor, lazy.tensors[name], atol=1e-5, rtol=0)


def built(fsdp: FSDPConfig, policy=None, **config):
    config = FSDPTrainerConfig(OptimConfig(lr=0.1, clip_grad=None), fsdp, **config)
    return config.build(policy or ToyWriter(), rank=0, world_size=1, rendezvous="")


def test_fsdp_on_one_rank_changes_nothing() -> None:
    """Also beside another trainer of the process, and with its state away and back."""
    plain, one, other = built(FSDPConfig()), built(FSDPConfig(strategy="fsdp2")), built(FSDPConfig(strategy="fsdp2"))
    other.close()
    for loss in (token_loss, sequence_loss):
        expected, found = plain.step([text_batch()], loss), one.step([text_batch()], loss)
        assert found["grad_norm"].mean == pytest.approx(expected["grad_norm"].mean, rel=1e-6)
        freed = one.offload()
        assert freed == one.onload() > 0
    for name, tensor in plain.weights().tensors.items():
        torch.testing.assert_close(one.weights().tensors[name], tensor, atol=1e-6, rtol=0)
    one.close()


@pytest.mark.parametrize(
    "fsdp", [FSDPConfig(mixed_precision=MixedPrecision("bf16", "fp32")), FSDPConfig(amp_autocast=AmpAutocast(enabled=True))]
)
def test_less_precision_is_near_and_keeps_precise_weights(fsdp) -> None:
    batch = text_batch()
    plain, less = built(FSDPConfig()), built(fsdp)
    expected, found = plain.evaluate(batch).logprob, less.evaluate(batch).logprob
    assert found.dtype == torch.float32
    assert 1e-5 < (found - expected).abs().max() < 5e-2
    norms = [trainer.step([batch], token_loss)["grad_norm"].mean for trainer in (plain, less)]
    assert norms[1] == pytest.approx(norms[0], rel=0.05)
    assert {tensor.dtype for tensor in less.weights().tensors.values()} == {torch.float32}
    less.close()


def test_recomputing_changes_no_gradient_and_no_name() -> None:
    plain, again = built(FSDPConfig()), built(FSDPConfig(gradient_checkpointing=True))
    passes = []
    again._policy.blocks[0].mix.register_forward_hook(lambda *_: passes.append(1))
    assert again.step([text_batch()], token_loss) == plain.step([text_batch()], token_loss)
    assert len(passes) == 2
    assert plain.weights().tensors.keys() == again.weights().tensors.keys()


def test_what_a_block_is() -> None:
    policy = ToyWriter()
    assert blocks_of(policy, WrapPolicy()) == list(policy.blocks)
    assert blocks_of(policy, WrapPolicy(("Linear",)))[0] is policy.blocks[0].mix
    policy._no_split_modules = ["Embedding"]
    assert blocks_of(policy, WrapPolicy()) == [policy.embedding]
    with pytest.raises(ConfigError, match=r"the model has no Qwen3DecoderLayer. It has Block, Embedding"):
        blocks_of(policy, WrapPolicy(("Qwen3DecoderLayer",)))
    with pytest.raises(ConfigError, match="gradient_checkpointing: the model has no repeated blocks"):
        built(FSDPConfig(gradient_checkpointing=True), torch.nn.Linear(2, 2))


@pytest.mark.parametrize(
    ("fields", "place"),
    [
        ({"strategy": "none", "mixed_precision": MixedPrecision(reduce_dtype="bf16")}, "mixed_precision.reduce_dtype"),
        ({"sharding_strategy": "no_shard", "cpu_offload": True}, "strategy"),
        ({"sharding_strategy": "hybrid_shard"}, "shard_group_size"),
        ({"shard_group_size": 2}, "shard_group_size"),
        ({"timeout_s": 0.0}, "timeout_s"),
    ],
)
def test_what_does_not_go_together(fields, place) -> None:
    with pytest.raises(ConfigError, match=place):
        FSDPConfig(**fields)


def test_groups_must_divide_the_ranks() -> None:
    with pytest.raises(ConfigError, match="4 does not divide 6 ranks"):
        FSDPConfig(sharding_strategy="hybrid_shard", shard_group_size=4).shards(6)


def test_a_sharded_checkpoint_of_one_rank(tmp_path) -> None:
    """Exact, random state included; refused if it is another model's or torn; either format is read."""
    straight = built(FSDPConfig(), checkpoint=CheckpointConfig(format="sharded", export=False))
    straight.step([text_batch()], token_loss)
    torch.manual_seed(4)
    straight.save(tmp_path)
    drawn = torch.rand(3)
    straight.step([text_batch()], sequence_loss)
    resumed = built(FSDPConfig(), ToyWriter(seed=8))
    resumed.load(tmp_path)
    assert torch.equal(torch.rand(3), drawn)
    resumed.step([text_batch()], sequence_loss)
    assert resumed.version == straight.version == 2
    assert all(torch.equal(resumed.weights().tensors[n], t) for n, t in straight.weights().tensors.items())
    with pytest.raises(CheckpointError, match=r"made for another model.*model/adapter.weight: expected torch.float32\[5, 5\]"):
        built(FSDPConfig(), ToyWriter(width=5)).load(tmp_path)
    (next((tmp_path / "shards").iterdir())).write_bytes(b"torn")
    with pytest.raises(CheckpointError, match="can't be read"):
        resumed.load(tmp_path)
