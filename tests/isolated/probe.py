"""Run in a bare environment: imports a part and all its public modules, then says what that loaded.

usage: python probe.py <part>; prints a JSON object.
"""

import importlib
import importlib.util
import json
import pkgutil
import sys

PARTS = ("core", "scheduler", "algorithms", "models", "envs", "engines", "runners")


def main(part: str) -> None:
    package = importlib.import_module(f"rlinf.{part}")
    names = [info.name for info in pkgutil.walk_packages(package.__path__, f"rlinf.{part}.") if "._" not in info.name]
    for name in names:
        importlib.import_module(name)
    report = {
        "modules": [f"rlinf.{part}", *names],
        "loaded": sorted({name.partition(".")[0] for name in sys.modules}),
        "parts": [name for name in PARTS if importlib.util.find_spec(f"rlinf.{name}")],
    }
    sys.stdout.write(json.dumps(report))


main(sys.argv[1])
