import pytest
import torch

from rlinf.core.errors import CheckpointError, ConfigError
from rlinf.models.checkpoints import Drop, Rename, Split, WeightMap, inverse_names

MAP = WeightMap(
    (
        Drop("model.lm_head.**"),
        Split("model.layers.*.qkv.**", into=("model.layers.*.q.**", "model.layers.*.k.**", "model.layers.*.v.**"), sizes=(4, 2, 2)),
        Rename("**.kernel", "**.weight"),
        Rename("model.**", "language.**"),
    )
)


def published():
    def numbers(*shape):
        return torch.randn(shape, generator=torch.Generator().manual_seed(sum(shape)))

    return {
        "model.layers.0.qkv.weight": numbers(8, 3),
        "model.layers.11.qkv.bias": numbers(8),
        "model.layers.0.out.kernel": numbers(3, 5),
        "vision.patch": numbers(2),
        "model.lm_head.weight": numbers(9, 3),
    }


def test_rules_in_order():
    there = published()
    ours = MAP.to_policy(there)
    assert sorted(ours) == [
        "language.layers.0.k.weight",
        "language.layers.0.out.weight",
        "language.layers.0.q.weight",
        "language.layers.0.v.weight",
        "language.layers.11.k.bias",
        "language.layers.11.q.bias",
        "language.layers.11.v.bias",
        "vision.patch",
    ]
    torch.testing.assert_close(ours["language.layers.0.k.weight"], there["model.layers.0.qkv.weight"][4:6])
    torch.testing.assert_close(ours["language.layers.0.out.weight"], there["model.layers.0.out.kernel"])


def test_and_back():
    there = published()
    ours = WeightMap((MAP.rules[0], MAP.rules[1], MAP.rules[3])).to_policy(there)
    back = WeightMap((MAP.rules[0], MAP.rules[1], MAP.rules[3])).from_policy(ours)
    del there["model.lm_head.weight"]
    assert back.keys() == there.keys()
    for name, tensor in there.items():
        assert torch.equal(back[name], tensor)


def test_rules_that_do_not_fit():
    with pytest.raises(CheckpointError, match=r"a: expected 2 parts  along axis 0, found 3"):
        Split("a", into=("b", "c")).forward({"a": torch.zeros(3)})
    with pytest.raises(CheckpointError, match=r"a: expected 2 parts \(1, 1\) along axis 0, found 3"):
        Split("a", into=("b", "c"), sizes=(1, 1)).forward({"a": torch.zeros(3)})
    with pytest.raises(CheckpointError, match=r"a: expected 2 parts, found none for \['c'\]"):
        Split("a", into=("b", "c")).backward({"b": torch.zeros(3)})
    with pytest.raises(CheckpointError, match="b: two tensors of the checkpoint get this name"):
        Rename("a", "b").forward({"a": torch.zeros(1), "b": torch.zeros(1)})
    with pytest.raises(ConfigError, match="the same stars"):
        Rename("a.*", "b").forward({"a.1": torch.zeros(1)})


def test_the_way_back_of_a_map_that_only_renames():
    def to_ours(tensors):
        return {name.replace("their", "our"): value for name, value in tensors.items() if name != "head"}

    back = inverse_names(to_ours, ["their.a", "their.b", "head"])
    assert back({"our.a": 1, "our.b": 2, "value_head": 3}) == {"their.a": 1, "their.b": 2, "value_head": 3}
