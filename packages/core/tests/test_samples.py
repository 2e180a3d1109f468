import numpy as np
import pytest

from rlinf.core.errors import ContractError
from rlinf.core.testing.samples import same


@pytest.mark.parametrize(("expected", "gap"), [(0.0, 0.9e-5), (-10.0, 1.9e-5), (90.0, 9e-5)])
def test_large_numbers_may_differ_by_the_rounding_of_float32(expected: float, gap: float) -> None:
    same("x", np.array([1.0, expected]), np.array([1.0, expected + gap]), 1e-5)
    with pytest.raises(ContractError, match=r"^x: expected agreement to 1e-05, found a difference of "):
        same("x", np.array([1.0, expected]), np.array([1.0, expected + 1.3 * gap]), 1e-5)


def test_without_a_tolerance_and_of_what_is_no_number_nothing_may_differ() -> None:
    same("x", np.array([90.0]), np.array([90.0]), 0.0)
    for found in (np.nextafter(90.0, 91.0), np.nan):
        with pytest.raises(ContractError):
            same("x", np.array([90.0]), np.array([found]), 0.0)
