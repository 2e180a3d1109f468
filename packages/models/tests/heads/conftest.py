import pytest
import torch


@pytest.fixture(autouse=True)
def one_thread():
    """Small networks are an order of magnitude slower when threads compete for the cores of a busy machine."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)
