"""What a trainer says of its memory is what it takes."""

import pytest
from engines_text import text_batch, token_loss
from test_masters import BrainWriter

from rlinf.core.protocols import SaysMemory, WeightSize
from rlinf.engines import FSDPConfig, FSDPTrainerConfig, MixedPrecision


def sizes(policy):
    return [WeightSize(elements=p.numel(), bytes_each=p.element_size(), trained=p.requires_grad) for p in policy.parameters()]


@pytest.mark.parametrize(
    "fsdp",
    [
        FSDPConfig(strategy="none"),
        FSDPConfig(strategy="fsdp2"),
        FSDPConfig(strategy="none", mixed_precision=MixedPrecision(master_weights=False)),
    ],
    ids=["whole", "fsdp2", "no masters"],
)
@pytest.mark.parametrize("frozen", [False, True])
def test_one_rank_takes_what_was_said(fsdp, frozen):
    policy = BrainWriter()
    if frozen:
        next(policy.parameters()).requires_grad_(False)
    config = FSDPTrainerConfig(fsdp_config=fsdp)
    assert isinstance(config, SaysMemory)
    said = config.bytes_per_rank(sizes(policy), 1)
    trainer = config.build(policy, rank=0, world_size=1, rendezvous="")
    gradients = 0
    collect = trainer._layout.square_norm

    def seen(held):
        nonlocal gradients
        gradients += sum(gradient.nbytes for gradient in held)
        return collect(held)

    trainer._layout.square_norm = seen
    trainer.step([text_batch()], token_loss)
    trainer.close()
    trained = [p for part in trainer._optimizers.parts for p in part.parameters]
    states = [part.optimizer.state[p] for part in trainer._optimizers.parts for p in part.parameters]
    assert said["weights"] == sum(p.nbytes for p in policy.parameters())
    assert said["optimizer"] == sum(state[name].nbytes for state in states for name in ("exp_avg", "exp_avg_sq"))
    assert said["gradients"] == gradients
    assert len(trained) == len(states) > 0


@pytest.mark.parametrize(
    ("fsdp", "ranks", "weights", "gradients", "optimizer"),
    [
        (FSDPConfig(), 8, (2 * 80 + 4 * 16) // 8, 64, 2 * 64 // 8),
        (FSDPConfig(enable_gradient_accumulation=False), 8, 28, 8, 16),
        (FSDPConfig(ignore_frozen=True), 8, 160 + 8, 64, 16),
        (FSDPConfig(sharding_strategy="hybrid_shard", shard_group_size=2), 8, 112, 64, 64),
        (FSDPConfig(strategy="none"), 8, 224, 64, 128),
        (FSDPConfig(cpu_offload=True), 8, 0, 0, 0),
    ],
)
def test_shares_by_hand(fsdp, ranks, weights, gradients, optimizer):
    """80 frozen numbers and 16 trained ones in bfloat16."""
    model = [WeightSize(elements=80, bytes_each=2, trained=False), WeightSize(elements=16, bytes_each=2, trained=True)]
    said = FSDPTrainerConfig(fsdp_config=fsdp).bytes_per_rank(model, ranks)
    assert said == {"weights": weights, "gradients": gradients, "optimizer": optimizer}
