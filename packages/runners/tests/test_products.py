"""Which library multiplies matrices on a processor: where it may be chosen, and that nothing but time is lost."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from torch import nn

from rlinf.runners.training import products

pytestmark = pytest.mark.skipif(torch.accelerator.is_available(), reason="an accelerator multiplies")

LARGE, SMALL = nn.Linear(256, 256), nn.Sequential(nn.Linear(64, 64), nn.Embedding(2000, 64))


@pytest.fixture(autouse=True)
def as_before() -> Iterator[None]:
    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision("highest")
    products._own = "highest"
    yield
    torch.set_float32_matmul_precision(before)
    products._own = before


@pytest.fixture
def exact(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(products, "_exact", lambda: True)


@pytest.mark.usefixtures("exact")
@pytest.mark.parametrize("other", [SMALL, None], ids=["small", "none"])
def test_the_policy_that_was_built_last_chooses(other: nn.Module | None) -> None:
    products.choose_products(LARGE)
    assert torch.get_float32_matmul_precision() == "medium"
    products.choose_products(other)
    assert torch.get_float32_matmul_precision() == "highest", "a run is computed alike, whatever ran in this process before"


@pytest.mark.usefixtures("exact")
def test_what_somebody_else_chose_stays() -> None:
    torch.set_float32_matmul_precision("high")
    products.choose_products(LARGE)
    assert torch.get_float32_matmul_precision() == "high"


def test_where_products_would_be_rounded_nothing_changes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(products, "_PRECISE", 0.0)
    products._exact.cache_clear()
    products.choose_products(LARGE)
    assert torch.get_float32_matmul_precision() == "highest"
    products._exact.cache_clear()


def test_on_another_processor_nothing_changes(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    other = tmp_path / "cpuinfo"
    other.write_text("vendor_id : GenuineIntel\n")
    monkeypatch.setattr(products, "Path", lambda _: other)
    products._exact.cache_clear()
    assert not products._exact()
    products._exact.cache_clear()


@pytest.mark.parametrize("shape", [(256, 256, 256), (100, 300, 70), (2048, 64, 256)])
def test_products_are_as_exact_as_before(shape: tuple[int, int, int]) -> None:
    rows, inner, columns = shape
    draws = torch.Generator().manual_seed(1)
    a, b = torch.randn(rows, inner, generator=draws), torch.randn(inner, columns, generator=draws)
    products.choose_products(LARGE)
    error = (a @ b - a.double() @ b.double()).abs().max() / inner**0.5
    assert error < 1e-5, f"of float32, found {error} at {torch.get_float32_matmul_precision()}"
