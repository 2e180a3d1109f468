import importlib.util
import sys
from pathlib import Path
from typing import Any

import pytest

from rlinf.core import installing
from rlinf.core.errors import MissingExtra
from rlinf.core.installing import import_from_here, install_command, is_there
from rlinf.core.registry import require_importable, require_modules

WORKSPACE = """
[dependency-groups]
dev = ["nox", {include-group = "embodied"}]
embodied = ["rlinf-envs[maniskill,video]"]
policies = ["rlinf-models[all]"]
[tool.uv.sources]
rlinf-envs = { workspace = true }
rlinf-models = { workspace = true }
"""


@pytest.fixture
def environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder of the environment that is taken to run: it has pip, and nobody says who made it."""
    folder = tmp_path / "project" / ".venv"
    folder.mkdir(parents=True)
    (folder / "pyvenv.cfg").write_text("home = /usr/bin\n")
    monkeypatch.setattr(sys, "prefix", str(folder))
    monkeypatch.setattr(sys, "argv", ["-c"])
    monkeypatch.setenv("VIRTUAL_ENV", str(folder))
    has_pip(monkeypatch, True)
    return folder


def has_pip(monkeypatch: pytest.MonkeyPatch, there: bool) -> None:
    real: Any = importlib.util.find_spec

    def find_spec(name: str) -> Any:
        return (there or None) if name == "pip" else real(name)

    monkeypatch.setattr(importlib.util, "find_spec", find_spec)


def by_uv(environment: Path, project: str | None = None) -> None:
    (environment / "pyvenv.cfg").write_text("home = /usr/bin\nuv = 0.13.9\n")
    if project is not None:
        (environment.parent / "pyproject.toml").write_text(project)


def test_pip_where_there_is_pip(environment: Path) -> None:
    assert install_command("rlinf-envs[maniskill]") == "pip install 'rlinf-envs[maniskill]'"


def test_uv_where_there_is_no_pip_or_uv_made_the_environment(environment: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    has_pip(monkeypatch, False)
    assert install_command("x") == "uv pip install 'x'"
    monkeypatch.delenv("VIRTUAL_ENV")
    assert install_command("x") == f"uv pip install --python {environment} 'x'"
    has_pip(monkeypatch, True)
    by_uv(environment)
    assert install_command("x") == f"uv pip install --python {environment} 'x'"


def test_a_group_of_this_repository_or_an_extra_of_one_of_its_packages(environment: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    by_uv(environment, WORKSPACE)
    metadata = {"rlinf-models": ["rlinf-models[vla,lora]; extra == 'all'", 'rlinf-models[language,images] ; extra == "vla"']}
    monkeypatch.setattr(installing, "requires", metadata.get)
    assert install_command("rlinf-envs[maniskill]") == "uv sync --group embodied"
    assert install_command("rlinf-models[language,images]") == "uv sync --group policies"
    assert install_command("rlinf-envs[genesis]") == "uv sync --inexact --package rlinf-envs --extra genesis"
    assert install_command("franky-control") == "uv add 'franky-control'"


def test_a_program_of_this_repository_is_run_again_with_the_group(environment: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    by_uv(environment, WORKSPACE)
    script = environment.parent / "apps" / "train.py"
    script.parent.mkdir()
    script.write_text("")
    monkeypatch.chdir(environment.parent)
    for started, again in (("apps/train.py", "apps/train.py"), (str(script), str(script)), (f"{environment}/bin/rlinf", "rlinf")):
        monkeypatch.setattr(sys, "argv", [started, "--config-name", "mine", "env.train.init_params={a: 1}"])
        command = f"uv run --group embodied {again} --config-name mine 'env.train.init_params={{a: 1}}'"
        assert install_command("rlinf-envs[maniskill]") == command
        assert install_command("rlinf-envs[genesis]") == command.replace("--group embodied", "--all-packages --extra genesis")
    worker = environment / "lib" / "default_worker.py"
    worker.parent.mkdir()
    worker.write_text("")
    for started in (str(worker), "apps/missing.py", "/elsewhere/train.py", "-c", ""):
        monkeypatch.setattr(sys, "argv", [started])
        assert install_command("rlinf-envs[maniskill]") == "uv sync --group embodied", started


def test_a_dependency_of_somebody_elses_project(environment: Path) -> None:
    by_uv(environment, "[project]\nname = 'mine'\n")
    assert install_command("rlinf-envs[maniskill]") == "uv add 'rlinf-envs[maniskill]'"


def test_a_missing_module_of_an_extra_names_the_command(environment: Path) -> None:
    require_modules("json", "numpy", place="env.train", extra="rlinf-envs[maniskill]")
    with pytest.raises(MissingExtra) as caught:
        require_modules("json", "no_such_module", place="env.train", extra="rlinf-envs[maniskill]")
    remedy = "Install rlinf-envs[maniskill]: pip install 'rlinf-envs[maniskill]'."
    assert str(caught.value) == f"env.train: the module 'no_such_module' is not installed. {remedy}"


@pytest.mark.parametrize("module", ["no_such_module", "no_such_package.module", "json.nothing"])
def test_a_missing_module_of_the_users_is_never_to_be_installed_by_its_name(module: str) -> None:
    require_importable("json", "json.decoder", place="env.train")
    with pytest.raises(MissingExtra, match=rf"^env\.train: there is no module '{module}'\. Run from the folder") as caught:
        require_importable("json", module, place="env.train")
    assert "pip" not in str(caught.value)
    assert "uv" not in str(caught.value)


def test_a_module_made_by_hand_is_there(monkeypatch: pytest.MonkeyPatch) -> None:
    module = type(sys)("made_by_hand")
    monkeypatch.setitem(sys.modules, "made_by_hand", module)
    assert is_there("made_by_hand")


def test_the_current_folder_comes_first_and_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", ["/elsewhere"])
    import_from_here()
    import_from_here()
    assert sys.path == [str(tmp_path), "/elsewhere"]
    monkeypatch.setattr(sys, "path", ["", "/elsewhere"])
    import_from_here()
    assert sys.path == ["", "/elsewhere"]
