"""What environments are wrapped in: order, training only, names, places of errors, and the protocol of an evaluation."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar, Literal

import numpy as np
import pytest

from rlinf.core.errors import ConfigError, ConfigErrors, MissingExtra
from rlinf.core.registry import ENV_WRAPPERS
from rlinf.runners.config.checks import check_evaluation, check_run
from rlinf.runners.config.sections import resolved
from rlinf.runners.embodied.env_worker import EnvWorker
from rlinf.runners.embodied.evaluation import episode_protocol
from rlinf.runners.embodied.playing.building import build_slots
from rlinf.runners.embodied.playing.slots import slot_layout
from rlinf.runners.embodied.rules import read_embodied


class Layer:
    """Passes everything on, and remembers what it is."""

    def __init__(self, env: Any, told: str) -> None:
        self.env, self.told = env, [*getattr(env, "told", []), told]

    def __getattr__(self, name: str) -> Any:
        return getattr(self.env, name)


@dataclass(frozen=True)
class ToyWrapper:
    training_only: ClassVar[bool] = False
    gain: float = 1.0

    def wrap(self, env: Any, name: str) -> Any:
        if self.gain < 0:
            raise ConfigError("toy.gain", "can't be so")
        return Layer(env, f"{type(self).__name__} {self.gain:g} {name}")


@dataclass(frozen=True)
class ToyTrainingWrapper(ToyWrapper):
    training_only: ClassVar[bool] = True

    def check(self, place: str) -> None:
        if self.gain > 8:
            raise ConfigError(f"{place}.gain", "too loud")


@dataclass(frozen=True)
class ToyRecorder(ToyWrapper):
    save_dir: str = ""


for name, item in {"toy_wrapper": ToyWrapper, "toy_training": ToyTrainingWrapper, "toy_recorder": ToyRecorder}.items():
    if name not in ENV_WRAPPERS.names():
        ENV_WRAPPERS.register(name)(item)


def worker(data: dict[str, Any]) -> EnvWorker:
    cfg = read_embodied(data)
    env = EnvWorker(cfg)
    env.init_worker(slot_layout(cfg, 1)["train"])
    return env


def with_train(data: dict[str, Any], **train: Any) -> dict[str, Any]:
    data["env"]["train"] |= train
    return data


def test_the_first_wrapper_is_nearest_to_the_simulator_and_slots_have_names_of_their_own(toy_data: dict[str, Any]) -> None:
    toy_data["rollout"] = {"pipeline_stage_num": 2}
    env = worker(with_train(toy_data, wrappers=[{"type": "toy_wrapper"}, {"type": "toy_training", "gain": 2.0}]))
    told = [slot._env.told for slot in env._env_slots]
    assert told == [[f"ToyWrapper 1 train_{n}", f"ToyTrainingWrapper 2 train_{n}"] for n in (0, 1)]


def test_episodes_are_recorded_before_what_only_training_changes(toy_data: dict[str, Any]) -> None:
    collection = {"type": "toy_recorder", "save_dir": "somewhere"}
    wrappers = [{"type": "toy_wrapper"}, {"type": "toy_training"}, {"type": "toy_wrapper", "gain": 3.0}]
    cfg = read_embodied(with_train(toy_data, wrappers=wrappers, data_collection=collection))
    assert [place for place, _ in cfg.env.train.wrapping] == [
        "env.train.wrappers[0]",
        "env.train.data_collection",
        "env.train.wrappers[1]",
        "env.train.wrappers[2]",
    ]
    assert cfg.env.train.wrapping[1][1] == ToyRecorder(save_dir="somewhere")
    assert [place for place, _ in cfg.env.eval.wrapping] == ["env.eval.wrappers[0]", "env.eval.wrappers[2]"]
    off = read_embodied(with_train(toy_data, data_collection={**collection, "enabled": False}))
    assert len(off.env.train.wrapping) == 3


def test_an_evaluation_has_its_own_wrappers_where_it_names_some(toy_data: dict[str, Any]) -> None:
    with_train(toy_data, wrappers=[{"type": "toy_wrapper"}])
    toy_data["env"]["eval"] |= {"wrappers": []}
    assert read_embodied(toy_data).env.eval.wrapping == []
    toy_data["env"]["eval"] |= {"wrappers": [{"type": "toy_wrapper", "gain": 4.0}]}
    assert read_embodied(toy_data).env.eval.wrapping == [("env.eval.wrappers[0]", ToyWrapper(gain=4.0))]


def test_a_protocol_differs_by_the_wrappers_of_an_evaluation_and_by_no_others(toy_data: dict[str, Any]) -> None:
    hashes: list[str] = []
    for wrappers in ([], [{"type": "toy_training"}], [{"type": "toy_wrapper"}], [{"type": "toy_wrapper", "gain": 2.0}]):
        protocol = episode_protocol(read_embodied(with_train(toy_data, wrappers=wrappers)), final=True)
        hashes.append(protocol.hash)
    assert hashes[0] == hashes[1]
    assert len(set(hashes)) == 3
    assert protocol.env["wrappers"] == [{"type": "toy_wrapper", "gain": 2.0}]


def test_what_is_configured_is_told_as_it_is_written(toy_data: dict[str, Any]) -> None:
    wrappers = [{"type": "toy_wrapper", "gain": 2.0}]
    assert resolved(read_embodied(with_train(toy_data, wrappers=wrappers)))["env"]["train"]["wrappers"] == wrappers


def test_faults_of_a_list_are_told_together_with_their_places(toy_data: dict[str, Any]) -> None:
    wrappers = [{"type": "toy_wraper"}, {"type": "toy_wrapper", "gian": 1.0}, 3, {"gain": 1.0}]
    with pytest.raises(ConfigErrors) as caught:
        read_embodied(with_train(toy_data, wrappers=wrappers))
    told = [str(fault) for fault in caught.value.faults if fault.place.startswith("env.train")]
    assert told[0].startswith("env.train.wrappers[0].type: no environment wrapper named 'toy_wraper'. Did you mean 'toy_wrapper'")
    assert told[1].startswith("env.train.wrappers[1].gian: unknown key. Did you mean 'gain'")
    assert told[2].startswith("env.train.wrappers[2]: expected a section, found 3")
    assert told[3].startswith("env.train.wrappers[3].type: missing")


def test_a_list_that_is_none(toy_data: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match=r"env.train.wrappers: expected a list, found 'toy_wrapper'"):
        read_embodied(with_train(toy_data, wrappers="toy_wrapper"))


def test_what_a_wrapper_refuses_has_the_key_of_its_entry(toy_data: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match=r"^env.train.wrappers\[1\].gain: can't be so"):
        worker(with_train(toy_data, wrappers=[{"type": "toy_wrapper"}, {"type": "toy_wrapper", "gain": -1.0}]))


def test_wrappers_are_checked_before_a_run_and_those_of_training_not_before_an_evaluation(toy_data: dict[str, Any]) -> None:
    cfg = read_embodied(with_train(toy_data, wrappers=[{"type": "toy_training", "gain": 9.0}]))
    with pytest.raises(ConfigError, match=r"env.train.wrappers\[0\].gain: too loud"):
        check_run(cfg)
    toy_data["env"]["eval"]["wrappers"] = []
    check_evaluation(read_embodied(toy_data))


def test_environments_are_closed_at_the_end(toy_data: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    env, closed = worker(toy_data), list[int]()
    for slot in env._env_slots:
        monkeypatch.setattr(slot._env, "close", lambda: closed.append(1))
    env.close()
    assert closed == [1] * len(env._env_slots)


@pytest.mark.parametrize("section", ["train", "eval"])
def test_what_an_environment_refuses_at_work_has_its_key(
    toy_data: dict[str, Any], monkeypatch: pytest.MonkeyPatch, section: Literal["train", "eval"]
) -> None:
    def step(actions: Any) -> Any:
        raise ConfigError("env.level", "too high")

    cfg = read_embodied(toy_data)
    (slot, *_), _ = build_slots(getattr(cfg.env, section), slot_layout(cfg, 1)[section], (), render=False)
    monkeypatch.setattr(slot._env, "step", step)
    slot.reset(np.ones(4, bool), [0] * 4)
    with pytest.raises(ConfigError, match=rf"^env\.{section}\.init_params\.level: too high"):
        slot.step(np.zeros((4, 1, *slot.spec.action.shape), np.float32))


@pytest.mark.parametrize(
    ("key", "remedy"),
    [
        ("reward_coef", "{type: shaped_reward, reward_coef: …}"),
        ("action_format", "{type: action_format, format: …}"),
        ("seed", "runner.seed"),
    ],
)
def test_keys_of_other_systems_are_told_with_their_wrapper(toy_data: dict[str, Any], key: str, remedy: str) -> None:
    with pytest.raises(ConfigError) as caught:
        read_embodied(with_train(toy_data, **{key: 1}))
    assert str(caught.value).startswith(f"env.train.{key}: unknown key")
    assert remedy in str(caught.value)


def test_what_an_environment_lacks_for_films_has_the_key_of_films(
    toy_data: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    def make(self: Any, num_envs: int, **options: Any) -> Any:
        raise MissingExtra("env.render", "the module 'imageio_ffmpeg' is not installed", "Install it.")

    def absent(module: str) -> bool:
        return False

    monkeypatch.setattr("rlinf.core.registry.is_there", absent)
    cfg = read_embodied(toy_data)
    # How a stranger's environment is filmed is not known here.
    check_evaluation(cfg)
    monkeypatch.setattr(type(cfg.env.eval.init_params), "make", make)
    with pytest.raises(MissingExtra, match=r"^env\.eval\.video_cfg\.save_video: the module 'imageio_ffmpeg'"):
        build_slots(cfg.env.eval, slot_layout(cfg, 1)["eval"], (), render=True)
