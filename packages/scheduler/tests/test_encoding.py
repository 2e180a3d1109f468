"""What comes out of an item's bytes; tensors of all kinds travel beside the pickle."""

import pickle
from typing import Any

import numpy as np
import pytest

from rlinf.scheduler.transport.encoding import BESIDE_BYTES, Blobs, decode, encode, snapshot

torch = pytest.importorskip("torch")
pytestmark = pytest.mark.torch

DTYPES = (
    *("float64", "float32", "float16", "bfloat16", "complex64", "complex128", "bool", "int8", "uint8", "int16", "int32", "int64"),
    *("float8_e4m3fn", "float8_e5m2", "float8_e8m0fnu", "uint16", "uint32", "uint64"),
)
MANY = BESIDE_BYTES + 8


class Marked(torch.nn.Parameter):
    """A parameter of a class of its own."""


class Plain(torch.Tensor):
    """A tensor of a class of its own."""


class Scaled(torch.Tensor):
    """One that computes its values when they are asked for; it has no memory of its own."""

    @staticmethod
    def __new__(cls: Any, inner: Any) -> Any:
        return torch.Tensor._make_wrapper_subclass(cls, inner.shape, dtype=inner.dtype)

    def __init__(self, inner: Any) -> None:
        self.inner = inner

    @classmethod
    def __torch_dispatch__(cls: Any, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return function(*[each.inner * 2 if isinstance(each, Scaled) else each for each in args], **(kwargs or {}))

    def __reduce_ex__(self, protocol: Any) -> Any:
        return Scaled, (self.inner,)


def there_and_back(item: Any) -> tuple[Any, Blobs]:
    blobs = snapshot(encode(item))
    return decode(blobs), blobs


def raw(tensor: Any) -> bytes:
    plain = tensor.detach().resolve_conj().resolve_neg().contiguous()
    return plain.reshape(-1).view(torch.uint8).numpy().tobytes()


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("shape", [(), (0,), (3, 0), (5, 3), (MANY,)])
def test_tensors_of_all_types(dtype: str, shape: tuple[int, ...]) -> None:
    tensor = torch.randint(0, 2, shape).to(getattr(torch, dtype))
    found, blobs = there_and_back({"tensor": tensor})
    assert found["tensor"].dtype == tensor.dtype
    assert found["tensor"].shape == tensor.shape
    assert raw(found["tensor"]) == raw(tensor)
    if shape == (MANY,):
        assert [len(blob) for blob in blobs[1:]] == [MANY * tensor.element_size()]
        assert len(blobs[0]) < 500


@pytest.mark.parametrize("dtype", ["complex64", "complex128"])
def test_lazy_conjugates_and_negatives_are_what_they_stand_for(dtype: str) -> None:
    tensor = torch.randn(MANY, dtype=getattr(torch, dtype))
    assert torch.equal(there_and_back(tensor.conj())[0], tensor.conj().clone())
    assert torch.equal(there_and_back(tensor.conj().imag)[0], -tensor.imag)


@pytest.mark.parametrize(
    "view", [lambda t: t.T, lambda t: t[::2], lambda t: t[:, 1:3], lambda t: t.expand(3, *t.shape), lambda t: t[5]]
)
def test_a_view_travels_without_the_rest_of_its_memory(view: Any) -> None:
    tensor = view(torch.randn(4, BESIDE_BYTES).T)
    found, blobs = there_and_back(tensor)
    assert torch.equal(found, tensor)
    assert sum(len(blob) for blob in blobs) < tensor.numel() * 4 + 500


def test_arrays_that_are_not_contiguous_travel_beside_the_pickle() -> None:
    array = np.arange(4 * MANY).reshape(-1, 4)
    for each in (array[:, :2], array.T, array[::-1]):
        found, blobs = there_and_back(each)
        np.testing.assert_array_equal(found, each)
        assert len(blobs[0]) < 500
        found += 1


def test_a_plain_tensor_comes_without_its_graph_and_a_parameter_stays_one() -> None:
    found, _ = there_and_back(torch.ones(3, requires_grad=True) * 2)
    assert not found.requires_grad
    found.fill_(0)
    for requires_grad in (True, False):
        parameter = torch.nn.Parameter(torch.randn(MANY), requires_grad)
        parameter.note = "mine"
        found, blobs = there_and_back(parameter)
        assert (type(found), found.requires_grad, found.note) == (torch.nn.Parameter, requires_grad, "mine")
        assert torch.equal(found, parameter)
        assert len(blobs) == 2


@pytest.mark.parametrize("make", [lambda t: t.as_subclass(Plain), Marked])
def test_classes_of_tensors_keep_their_class_and_attributes(make: Any) -> None:
    tensor = make(torch.randn(MANY))
    tensor.note = {"a": 1}
    found, blobs = there_and_back(tensor)
    assert type(found) is type(tensor)
    assert found.note == {"a": 1}
    assert torch.equal(found.detach(), tensor.detach())
    assert len(blobs) == 2


def test_a_module_travels_with_its_weights_beside() -> None:
    module = torch.nn.Sequential(torch.nn.Linear(200, 200), torch.nn.BatchNorm1d(200))
    found, blobs = there_and_back(module)
    assert len(blobs) == 2
    for (name, one), (_, two) in zip(module.state_dict().items(), found.state_dict().items(), strict=True):
        assert torch.equal(one, two), name
    assert [type(each) for each in found.parameters()] == [torch.nn.Parameter] * 4


def test_torch_pickles_what_memory_alone_does_not_tell() -> None:
    sparse = torch.eye(5).to_sparse()
    assert torch.equal(there_and_back(sparse)[0].to_dense(), torch.eye(5))
    assert there_and_back(torch.ones(3, device="meta"))[0].device.type == "meta"
    scaled, _ = there_and_back(Scaled(torch.ones(3)))
    assert type(scaled) is Scaled
    assert torch.equal(scaled + 0, torch.full((3,), 2.0))


@pytest.mark.filterwarnings("ignore")
def test_a_quantized_tensor_keeps_its_scale() -> None:
    tensor = torch.quantize_per_tensor(torch.randn(100), 0.25, 3, torch.qint8)
    found, _ = there_and_back(tensor)
    assert (found.q_scale(), found.q_zero_point()) == (0.25, 3)
    assert torch.equal(found.int_repr(), tensor.int_repr())


def test_one_tensor_twice_stays_one() -> None:
    tensor = torch.ones(3)
    found, _ = there_and_back([tensor, {"again": tensor}])
    assert found[0] is found[1]["again"]


def test_the_bytes_are_a_pickle_that_does_not_name_torch_reductions() -> None:
    blobs = encode(torch.ones(MANY))
    assert b"_rebuild_tensor" not in bytes(blobs[0])
    assert pickle.loads(bytes(blobs[0]), buffers=blobs[1:]).shape == (MANY,)


@pytest.mark.parametrize("count", [1, BESIDE_BYTES // 4 - 1, BESIDE_BYTES // 4, BESIDE_BYTES])
def test_tensors_survive(count: int) -> None:
    tensors = {
        "float": torch.arange(count, dtype=torch.float32),
        "half": torch.arange(count).to(torch.bfloat16),
        "bool": torch.arange(count) % 2 == 0,
        "view": torch.arange(2 * count).reshape(2, count).T,
        "grad": torch.ones(count, requires_grad=True) * 2,
        "scalar": torch.tensor(3),
    }
    found = decode(snapshot(encode(tensors)))
    for name, tensor in tensors.items():
        assert found[name].dtype == tensor.dtype
        assert found[name].shape == tensor.shape
        assert torch.equal(found[name], tensor.detach())
        found[name].fill_(0)
