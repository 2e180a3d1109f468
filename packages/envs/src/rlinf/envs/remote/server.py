"""The simulator's side: `python -m rlinf.envs.remote.server`, started by `rlinf.envs.remote.launch` only.

It is asked and answers, one message at a time: `hello` builds the environment and describes it, `memory` maps the shared memory,
then `reset`, `step`, `show`, `render`, `expert`, and `close`. An exception is an answer, too. It needs rlinf-core, rlinf-envs,
gymnasium, numpy and the simulator; it prints nothing but to its log.
"""

from __future__ import annotations

import os
import sys
import traceback
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from typing import Any

import gymnasium
import numpy as np
from gymnasium.vector import SyncVectorEnv

from rlinf.core.capabilities import HasExpert
from rlinf.core.data.arrays import as_numpy
from rlinf.core.envs.failures import env_place
from rlinf.core.errors import ConfigError, RLinfError, error_text
from rlinf.core.process import Connection, ConnectionLost, SharedMemory
from rlinf.core.registry import ENVS
from rlinf.envs.remote.encoding import PROTOCOL, pack
from rlinf.envs.remote.memory import Arrays, Memory, plan
from rlinf.envs.remote.spaces import Json, write_metadata, write_space
from rlinf.envs.wrappers.contract import EnforceContract
from rlinf.envs.wrappers.episodes import EpisodeStatistics, MaskedActions
from rlinf.envs.wrappers.video import RecordVideo


def main(arguments: Sequence[str]) -> None:
    """Serves until the other side closes the connection.

    Args:
        arguments: the descriptor of the shared memory.
    """
    Server(Connection.to_parent(), SharedMemory(int(arguments[0]))).serve()


class Server:
    """Answers messages about the environments of this process.

    Args:
        connection: to the other side.
        memory: where observations and actions lie.
    """

    def __init__(self, connection: Connection, memory: SharedMemory) -> None:
        self._connection = connection
        self._shared = memory
        self._env: Any = None
        self._rows = slice(0, 0)
        self._slots: list[Arrays] = []
        self._seen: Any = None
        self._form: Json = {}
        self._forms = 0

    def serve(self) -> None:
        """Answers until it is asked to close, or the connection is lost."""
        answers: dict[str, Callable[[Json], tuple[Json, bytes]]] = {
            "hello": self._hello,
            "memory": self._map,
            "reset": self._reset,
            "step": self._step,
            "show": self._show,
            "render": self._render,
            "expert": self._expert,
        }
        try:
            while True:
                asked, _ = self._connection.wait()
                if asked["call"] == "close":
                    break
                try:
                    fields, payload = answers[asked["call"]](asked)
                except Exception as error:  # noqa: BLE001 - a simulator may raise anything; it is told to whoever asked
                    # To the log as well, where it stands among what the simulator printed.
                    traceback.print_exc()
                    fields, payload = {"error": _describe(error, self._rows)}, b""
                self._connection.send({**fields, "number": asked["number"]}, payload)
        except ConnectionLost:
            pass
        finally:
            if self._env is not None:
                self._env.close()

    def _hello(self, asked: Json) -> tuple[Json, bytes]:
        if asked["protocol"] != PROTOCOL:
            problem = f"the simulator's interpreter speaks protocol {PROTOCOL}, the other side {asked['protocol']}"
            raise ConfigError("env.python", problem, "Give both the same version of rlinf-envs.")
        if asked["cpu"] is not None:
            # Before the environment is built: threads inherit the processor of whoever starts them.
            os.sched_setaffinity(0, {asked["cpu"]})
        config: Any = ENVS.build(asked["env"], asked["params"], place="env")
        if not callable(getattr(config, "make", None)):
            raise ConfigError("env", f"'{asked['env']}' is no environment's configuration", "It needs a method `make`.")
        first, count = asked["rows"]
        settings = {key: asked[key] for key in ("max_episode_steps", "ignore_terminations", "render")}
        self._env = _bare(config.make(count, **settings))
        self._rows = slice(first, first + count)
        return {
            "protocol": PROTOCOL,
            "versions": {"python": sys.version.split()[0], "numpy": np.__version__, "gymnasium": gymnasium.__version__},
            "observation": write_space(self._env.single_observation_space, "env.observation"),
            "action": write_space(self._env.single_action_space, "env.action"),
            "metadata": write_metadata(self._env.metadata),
            "expert": isinstance(self._env.unwrapped, HasExpert),
        }, b""

    def _map(self, asked: Json) -> tuple[Json, bytes]:
        layout = plan(self._env.single_observation_space, self._env.single_action_space, asked["num_envs"])
        if layout.size != asked["size"]:
            problem = f"the memory is {asked['size']} bytes large, but the layout asks for {layout.size}"
            raise ConfigError("env.python", problem, "Give both sides the same version of rlinf-envs.")
        memory = Memory(self._shared, layout)
        self._actions = memory.actions[self._rows]
        for index, results in enumerate(memory.results):
            # The slash keeps results apart from observations with the same key.
            whole = memory.observation(index) | {f"/{key}": array for key, array in results.items()}
            self._slots.append({key: array[self._rows] for key, array in whole.items()})
        return {}, b""

    def _reset(self, asked: Json) -> tuple[Json, bytes]:
        options: dict[str, Any] = dict(asked["options"])
        mask = np.array(asked["mask"], np.bool_)
        if not mask.all():
            options["reset_mask"] = mask
        self._seen, infos = self._env.reset(seed=asked["seed"], options=options)
        form, payload = pack(infos, "infos")
        return self._show(asked)[0] | {"infos": form}, payload

    def _step(self, asked: Json) -> tuple[Json, bytes]:
        # The next actions overwrite the shared ones, which an environment may have kept.
        actions: Any = self._actions.copy()
        if asked["active"] is None:
            self._seen, reward, terminated, truncated, infos = self._env.step(actions)
        else:
            active = np.array(asked["active"], np.bool_)
            before = {key: as_numpy(array)[~active] for key, array in self._seen.items()}
            self._seen, reward, terminated, truncated, infos = self._env.step(MaskedActions(actions, active))
            # What stands still is seen as before, although the environment's own former observation may be overwritten (`_bare`).
            self._seen = {key: np.array(as_numpy(array)) for key, array in self._seen.items()}
            for key, rows in before.items():
                self._seen[key][~active] = rows
        self._write(asked["slot"], {**self._seen, "/reward": reward, "/terminated": terminated, "/truncated": truncated})
        form, payload = pack(infos, "infos")
        if form != self._form:
            self._form, self._forms = form, self._forms + 1
        # The form is sent again until the other side names its number.
        return {"form": self._forms} | ({} if asked["form"] == self._forms else {"infos": form}), payload

    def _show(self, asked: Json) -> tuple[Json, bytes]:
        self._write(asked["slot"], self._seen)
        return {}, b""

    def _write(self, slot: int, arrays: Mapping[str, Any]) -> None:
        for key, array in arrays.items():
            self._slots[slot][key][:] = as_numpy(array)

    def _render(self, asked: Json) -> tuple[Json, bytes]:
        form, payload = pack({str(i): np.asarray(frame) for i, frame in enumerate(self._env.render())}, "frames")
        return {"frames": form}, payload

    def _expert(self, asked: Json) -> tuple[Json, bytes]:
        form, payload = pack({"actions": as_numpy(self._env.unwrapped.expert_actions())}, "expert")
        return {"expert": form}, payload


def _bare(env: Any) -> Any:
    """The environment without what the other side does itself: the checks, and one copy of each observation."""
    # A subclass stays: it may do more than check.
    if type(env) is EnforceContract:
        env = env.env
    inner = env
    while type(inner) in (EpisodeStatistics, EnforceContract, RecordVideo):
        inner = inner.env
    if isinstance(inner, SyncVectorEnv):
        inner.copy = False  # it is copied into the shared memory at once
    return env


def _describe(error: Exception, rows: slice) -> Json:
    found = env_place(error)
    # On the other side the environments of all processes are numbered.
    of = asdict(found) | {"env": None if found.env is None else rows.start + found.env}
    place, problem, remedy = "env", error_text(error), ""
    if isinstance(error, RLinfError):
        place, problem, remedy = error.place, error.problem, error.remedy
    told = {"kind": type(error).__name__, "place": place, "problem": problem, "remedy": remedy}
    return told | {"traceback": traceback.format_exc(), "of": of}


if __name__ == "__main__":
    main(sys.argv[1:])
