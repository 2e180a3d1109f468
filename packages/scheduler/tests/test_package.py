import re
import subprocess
import sys
from pathlib import Path

import pytest

README = Path(__file__).parents[1] / "README.md"


def example() -> str:
    (code,) = re.findall(r"```python\n(.*?)```", README.read_text(), re.DOTALL)
    return code


def run(script: str, tmp_path: Path) -> str:
    path = tmp_path / "script.py"
    path.write_text(script)
    return subprocess.run([sys.executable, str(path)], capture_output=True, text=True, check=True, timeout=120).stdout


def test_the_local_back_end_imports_neither_ray_nor_torch(tmp_path: Path) -> None:
    script = example().replace('"virtual_accelerators":', '"backend": "local", "virtual_accelerators":')
    script += "\n    import sys\n    print('ray' in sys.modules, 'torch' in sys.modules)\n"
    assert re.fullmatch(r"\[\d+, \d+\] 100\nFalse False\n", run(script, tmp_path))


@pytest.mark.ray
@pytest.mark.slow
def test_the_readme_example_runs_as_it_is_and_never_imports_torch(tmp_path: Path) -> None:
    found = run(f"{example()}\n    import sys\n    print('torch' in sys.modules)\n", tmp_path)
    assert re.fullmatch(r"\[\d+, \d+\] 100\nFalse\n", found)


@pytest.mark.ray
def test_no_ray_at_the_address(tmp_path: Path) -> None:
    script = """
from rlinf.core.errors import ConfigError
from rlinf.scheduler import Cluster

try:
    Cluster(cluster_cfg={"address": "127.0.0.1:1"}).create_channel("any")
except ConfigError as error:
    print(error)
"""
    assert run(script, tmp_path).startswith("cluster.address: no Ray answers at '127.0.0.1:1'. Start one with")
