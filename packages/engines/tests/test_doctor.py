"""What `rlinf doctor` says of devices."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from rlinf.engines import doctor


def test_torch_without_a_gpu_is_fine_unless_there_is_a_driver(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    for driver, state in ((False, "no"), (True, "FAULT")):
        monkeypatch.setattr(Path, "exists", lambda path, driver=driver: driver and "nvidia" in str(path))
        build, gpu = doctor.devices()
        assert torch.__version__ in build.told
        assert gpu.state == state


@pytest.mark.gpu
def test_each_gpu_multiplies() -> None:
    if not torch.cuda.is_available():
        pytest.skip("needs a GPU")
    _, *found = doctor.devices()
    assert len(found) == torch.cuda.device_count()
    assert all("multiplies" in finding.told for finding in found)
