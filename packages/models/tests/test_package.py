import subprocess
import sys

EVERY_CONFIGURATION = """
import sys
from importlib.metadata import entry_points
found = [point for point in entry_points(group="rlinf.models") if point.value.startswith("rlinf.")]
assert len(found) >= 10, found
for point in found:
    point.load()
    assert "torch" not in sys.modules, point
"""


def test_a_configuration_of_a_policy_is_read_without_torch() -> None:
    assert subprocess.run([sys.executable, "-c", EVERY_CONFIGURATION], timeout=120, check=False).returncode == 0
