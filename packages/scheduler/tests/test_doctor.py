"""What `rlinf doctor` says of clusters."""

from __future__ import annotations

import pytest

from rlinf.scheduler.doctor import ray


@pytest.mark.ray
def test_a_worker_is_started_on_ray_and_answers() -> None:
    accelerators, started = ray()
    assert "CPU core" in accelerators.told
    assert started.state == "ok"
    assert "said 'ready'" in started.told
