import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from rlinf.models.layers.running_norm import RunningNorm


def test_by_hand() -> None:
    norm = RunningNorm(2, floor=0.5)
    norm.update(torch.tensor([[1.0, 4.0], [3.0, 4.0]]))
    assert norm.mean.tolist() == [2, 4]
    assert norm.variance.tolist() == [1, 0]
    assert norm(torch.tensor([[3.0, 5.0]])).tolist() == [[1.0, 2.0]]
    assert norm(torch.tensor([[100.0, 4.0]])).tolist() == [[5.0, 0.0]]


def test_before_the_first_update_it_only_clips() -> None:
    assert RunningNorm(2)(torch.tensor([0.3, -9.0])).tolist() == pytest.approx([0.3, -5.0])


@given(parts=st.lists(st.integers(1, 6), min_size=1, max_size=5), seed=st.integers(0, 99))
def test_many_updates_are_one(parts: list[int], seed: int) -> None:
    x = torch.randn(sum(parts), 3, generator=torch.Generator().manual_seed(seed)) * 3 + 10
    norm = RunningNorm(3)
    for part in x.split(parts):
        norm.update(part)
    torch.testing.assert_close(norm.mean, x.mean(0), rtol=1e-4, atol=1e-4)
    torch.testing.assert_close(norm.variance, x.var(0, correction=0), rtol=1e-3, atol=1e-4)
    assert norm.count == len(x)


def test_ranks_see_the_statistics_of_all() -> None:
    x = torch.randn(8, 2, generator=torch.Generator().manual_seed(0))
    alone, first = RunningNorm(2), RunningNorm(2)
    alone.update(x)
    half, other = x[:5], x[5:]
    totals = iter([torch.cat([torch.tensor([8.0]).double(), x.double().sum(0)]), None])

    def all_reduce(value: torch.Tensor) -> torch.Tensor:
        total = next(totals)
        return total if total is not None else value + (other.double() - x.double().mean(0)).square().sum(0)

    first.update(half, all_reduce)
    torch.testing.assert_close(first.mean, alone.mean)
    torch.testing.assert_close(first.variance, alone.variance)


def test_statistics_travel_with_the_weights() -> None:
    assert set(RunningNorm(2).state_dict()) == {"mean", "variance", "count"}


def test_no_rows_on_any_rank_change_nothing() -> None:
    norm = RunningNorm(2)
    for update in (torch.zeros(0, 2), torch.tensor([[1.0, 4.0], [3.0, 4.0]]), torch.zeros(0, 2)):
        norm.update(update, lambda value: value)
    assert (norm.mean.tolist(), norm.variance.tolist(), norm.count.item()) == ([2, 4], [1, 0], 2)


def test_the_statistics_of_data_stay() -> None:
    norm = RunningNorm(1)
    norm.update(torch.tensor([[100.0], [200.0]]))
    norm.fit(torch.tensor([[1.0], [3.0]]))
    norm.update(torch.tensor([[50.0], [70.0]]))
    copy = RunningNorm(1)
    copy.load_state_dict(norm.state_dict())
    copy.update(torch.tensor([[50.0]]))
    assert copy.mean.tolist() == [2]
    assert copy.variance.tolist() == [1]
