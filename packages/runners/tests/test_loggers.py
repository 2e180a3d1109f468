"""Where the numbers of a run go."""

from __future__ import annotations

import csv
import json
import os
import subprocess
import sys
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any, ClassVar

import pytest
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from rlinf.core.errors import ConfigError, MissingExtra, RLinfError
from rlinf.runners.checkpoints.run_folder import RunFolder
from rlinf.runners.config.checks import check_run
from rlinf.runners.config.schema import RunConfig
from rlinf.runners.embodied.rules import read_embodied
from rlinf.runners.reporting.loggers.registry import LOGGERS, LoggedRun, open_loggers, register_logger
from rlinf.runners.reporting.metrics_log import MetricsLog


class Remembering:
    """Keeps what it was given."""

    opened: ClassVar[list[Any]] = []

    def __init__(self, run: LoggedRun) -> None:
        self.run, self.written, self.closed = run, list[Any](), False
        self.opened.append(self)

    def write(self, step: int, scalars: Any) -> None:
        self.written.append((step, dict(scalars)))

    def close(self) -> None:
        self.closed = True


class Failing(Remembering):
    """Can't begin."""

    def __init__(self, run: LoggedRun) -> None:
        raise OSError("no disk")


register_logger("remembering", Remembering)


@pytest.fixture(autouse=True)
def nothing_opened() -> None:
    Remembering.opened.clear()


@pytest.fixture
def configured(toy_data: dict[str, Any]) -> Any:
    def read(*backends: str, **logger: Any) -> RunConfig:
        toy_data["runner"]["logger"] = {"logger_backends": list(backends), **logger}
        return read_embodied(toy_data)

    return read


@pytest.fixture
def run(tmp_path: Path) -> LoggedRun:
    return LoggedRun(folder=tmp_path, project="robots", name="toy", config={"runner": {"seed": 1}})


def not_there(module: str) -> bool:
    return False


def is_there(module: str) -> bool:
    return True


def asks(key: str | None = None) -> bool:
    raise AssertionError("at a prompt")


def rows(path: Path) -> list[dict[str, str]]:
    with path.open(newline="") as file:
        return list(csv.DictReader(file))


def test_a_run_writes_to_all_loggers_that_it_names(configured: Any, tmp_path: Path) -> None:
    cfg = configured("csv", "remembering", "tensorboard", project_name="robots")
    with MetricsLog(RunFolder(tmp_path), cfg) as log:
        log.write(1, {"env/return": 0.5})
    (logger,) = Remembering.opened
    assert logger.written == [(1, {"env/return": 0.5})]
    assert logger.closed
    assert (logger.run.project, logger.run.name, logger.run.folder) == ("robots", "toy", tmp_path)
    assert logger.run.config == cfg.source
    assert rows(tmp_path / "metrics.csv") == [{"step": "1", "env/return": "0.5"}]
    assert json.loads((tmp_path / "metrics.jsonl").read_text()) == {"step": 1, "env/return": 0.5}
    events: Any = EventAccumulator(str(tmp_path / "tensorboard")).Reload()
    assert [(point.step, point.value) for point in events.Scalars("env/return")] == [(1, 0.5)]


def test_a_full_disk_is_named_and_leaves_no_half_line_to_a_run_that_goes_on(configured: Any, tmp_path: Path) -> None:
    cfg, folder = configured(), RunFolder(tmp_path)
    with MetricsLog(folder, cfg) as log:
        log.write(1, {"a": 1.0})
    for path in (folder.metrics, folder.transcripts):
        with path.open("a") as file:
            file.write('{"step": 2, "a"')
    log: Any = MetricsLog(folder, cfg)
    log._lines.close()
    log._lines = Path("/dev/full").open("a")  # noqa: SIM115 - the log closes it
    with pytest.raises(RLinfError, match=r"metrics\.jsonl: .*can't be written \(No space left on device\)\. Make room"), log:
        log.write(2, {"a": 2.0})
    with MetricsLog(folder, cfg) as log:
        log.write(2, {"a": 3.0})
    assert [json.loads(line) for line in folder.metrics.read_text().splitlines()] == [{"step": 1, "a": 1.0}, {"step": 2, "a": 3.0}]
    assert not folder.transcripts.read_text(), "its reader would fail, and with it the report at the end of the run"


def test_a_new_number_becomes_a_column_and_a_run_that_resumes_appends(run: LoggedRun) -> None:
    logger = LOGGERS.get("csv")(run)
    logger.write(1, {"a": 1.0})
    logger.write(2, {"a": 2.0, "eval/b": 0.25})
    logger.close()
    logger = LOGGERS.get("csv")(run)
    logger.write(3, {"a": 3.0})
    logger.close()
    assert rows(run.folder / "metrics.csv") == [
        {"step": "1", "a": "1.0", "eval/b": ""},
        {"step": "2", "a": "2.0", "eval/b": "0.25"},
        {"step": "3", "a": "3.0", "eval/b": ""},
    ]
    assert [path.name for path in run.folder.iterdir()] == ["metrics.csv"]


def test_half_a_row_of_a_process_that_was_killed_is_removed(run: LoggedRun) -> None:
    logger = LOGGERS.get("csv")(run)
    logger.write(1, {"a": 1.0, "b": 2.0})
    logger.close()
    with (run.folder / "metrics.csv").open("a") as file:
        file.write("2,3")
    logger = LOGGERS.get("csv")(run)
    logger.write(2, {"a": 3.0, "b": 4.0})
    logger.close()
    assert rows(run.folder / "metrics.csv") == [{"step": "1", "a": "1.0", "b": "2.0"}, {"step": "2", "a": "3.0", "b": "4.0"}]


def test_stdout_prints_a_line(run: LoggedRun, capsys: pytest.CaptureFixture[str]) -> None:
    LOGGERS.get("stdout")(run).write(3, {"b": 1 / 3, "a": 1e6})
    assert capsys.readouterr().out == "toy step 3  a=1e+06 b=0.33333\n"


def test_loggers_are_closed_if_a_later_one_can_not_begin(run: LoggedRun) -> None:
    with pytest.raises(OSError, match="no disk"):
        open_loggers(["remembering", f"{__name__}:Failing"], run)
    assert Remembering.opened[0].closed


def test_unknown_and_absent_loggers_are_refused_by_name(configured: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ConfigError, match=r"runner\.logger\.logger_backends: no logger named 'wandbb'\. Did you mean 'wandb'"):
        configured("wandbb")
    monkeypatch.setattr("rlinf.core.registry.is_there", not_there)
    cfg = configured("wandb", "swanlab")
    with pytest.raises(ConfigError) as caught:
        check_run(cfg)
    said = str(caught.value)
    for name in ("wandb", "swanlab"):
        assert f"runner.logger.logger_backends: the module '{name}' is not installed. Install {name}: " in said
    assert issubclass(MissingExtra, ConfigError)


class Service(ModuleType):
    """The functions of a library that are documented, which keep what they were given."""

    def __init__(self) -> None:
        super().__init__(type(self).__name__.lower())
        self.calls: list[Any] = []
        self.error: Exception | None = None

    def begin(self, *given: Any) -> Any:
        if self.error is not None:
            raise self.error
        self.calls.append(("init", *given))
        return self

    def log(self, data: Any, step: int | None = None) -> None:
        self.calls.append(("log", data, step))

    def finish(self) -> None:
        self.calls.append(("finish",))


class SwanLab(Service):
    def init(self, *, project: str, experiment_name: str, config: Any, logdir: str, mode: Any = None, **more: Any) -> None:
        assert Path(logdir).is_dir()
        self.begin(project, experiment_name, config, mode, more)


@pytest.fixture
def swanlab(monkeypatch: pytest.MonkeyPatch) -> SwanLab:
    module = SwanLab()
    monkeypatch.setitem(sys.modules, "swanlab", module)
    monkeypatch.delenv("SWANLAB_MODE", raising=False)
    return module


def test_swanlab_gets_the_run_and_its_numbers(run: LoggedRun, swanlab: SwanLab, monkeypatch: pytest.MonkeyPatch) -> None:
    logger = LOGGERS.get("swanlab")(run)
    logger.write(4, {"a": 1.0})
    logger.close()
    identity = run.identity()
    assert len(identity) == 21
    goes_on = {"id": identity, "resume": "allow"}
    assert swanlab.calls == [("init", "robots", "toy", run.config, None, goes_on), ("log", {"a": 1.0}, 4), ("finish",)]
    # Without a server there is nothing to go on with.
    monkeypatch.setenv("SWANLAB_MODE", "offline")
    LOGGERS.get("swanlab")(run)
    assert swanlab.calls[-1] == ("init", "robots", "toy", run.config, "offline", {})


def test_a_service_that_does_not_let_in_is_told_with_its_key(run: LoggedRun, swanlab: SwanLab) -> None:
    swanlab.error = RuntimeError("not logged in")
    with pytest.raises(ConfigError, match=r"runner\.logger\.logger_backends: swanlab can't begin \(not logged in\)\. Log in with"):
        LOGGERS.get("swanlab")(run)


class Wandb(Service):
    Error = type("Error", (Exception,), {})
    mode, key = "online", ""

    def setup(self) -> Any:
        return SimpleNamespace(settings=self)

    def login(self, *, prompt: bool, verify: bool) -> bool:
        assert (prompt, verify) == (False, False)
        if self.error is not None:
            raise self.error
        return bool(self.key)

    def init(self, *, project: str, name: str, id: str, resume: str, dir: str, config: Any) -> Any:
        return self.begin(project, name, id, resume, dir, config)


def test_wandb_gets_the_run_and_its_numbers(run: LoggedRun, monkeypatch: pytest.MonkeyPatch) -> None:
    module = Wandb()
    monkeypatch.setitem(sys.modules, "wandb", module)
    for step in (4, 5):  # the second one as after a resume
        logger = LOGGERS.get("wandb")(run)
        logger.write(step, {"a": 1.0})
        logger.close()
    begun = ("init", "robots", "toy", run.identity(), "allow", str(run.folder), run.config)
    assert module.calls == [begun, ("log", {"a": 1.0}, 4), ("finish",), begun, ("log", {"a": 1.0}, 5), ("finish",)]
    module.error = module.Error("api_key not configured")
    with pytest.raises(
        ConfigError, match=r"logger_backends: wandb can't begin \(api_key not configured\)\. Log in with `wandb login`"
    ):
        LOGGERS.get("wandb")(run)


def test_wandb_without_an_account_is_refused_before_anything_starts(configured: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    module = Wandb()
    monkeypatch.setitem(sys.modules, "wandb", module)
    monkeypatch.setattr("rlinf.core.registry.is_there", is_there)
    cfg = configured("wandb")
    with pytest.raises(ConfigError, match=r"^runner\.logger\.logger_backends: wandb has no key of an account\. Log in with `wandb"):
        check_run(cfg)
    module.mode = "offline"
    check_run(cfg)
    module.mode, module.key = "online", "k" * 40
    check_run(cfg)
    module.error = module.Error("API key must have 40+ characters")
    with pytest.raises(ConfigError, match=r"wandb can't begin \(API key must have 40\+ characters\)\. Log in with"):
        check_run(cfg)
    # A version that would ask at a prompt is not asked.
    monkeypatch.setattr(module, "login", asks)
    check_run(cfg)


@pytest.mark.slow
def test_wandb_knows_its_account_without_a_network(tmp_path: Path) -> None:
    pytest.importorskip("wandb")
    program = "from rlinf.runners.reporting.loggers.registry import check_logger; check_logger('wandb')"
    own = {"HOME": str(tmp_path), "WANDB_SILENT": "true"}
    plain = {name: value for name, value in os.environ.items() if not name.startswith("WANDB_")}
    for more, told in (({}, "no key of an account"), ({"WANDB_MODE": "offline"}, ""), ({"WANDB_API_KEY": "k" * 40}, "")):
        done = subprocess.run(
            [sys.executable, "-c", program], cwd=tmp_path, env=plain | own | more, capture_output=True, text=True, check=False
        )
        assert (told in done.stderr, done.returncode) == (True, int(bool(told))), done.stderr


@pytest.mark.slow
def test_wandb_writes_a_run_without_a_network(run: LoggedRun, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("wandb")
    monkeypatch.setenv("WANDB_MODE", "offline")
    monkeypatch.setenv("WANDB_SILENT", "true")
    logger = LOGGERS.get("wandb")(run)
    logger.write(1, {"a": 1.0})
    logger.write(2, {"a": 2.0})
    logger.close()
    (record,) = (run.folder / "wandb").glob("offline-run-*/run-*.wandb")
    assert record.stem == f"run-{run.identity()}"
    assert record.stat().st_size > 0
