"""Genesis itself. Only imported when an environment is built."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any, Final

import gymnasium
import numpy as np
import torch
from gymnasium.vector import VectorEnv
from numpy.typing import NDArray

from rlinf.core.errors import ConfigError
from rlinf.core.random import keyed_generator
from rlinf.envs._batched import BatchOptions, Outcome, assemble_batch
from rlinf.envs.adapters import observation_space

if TYPE_CHECKING:
    from rlinf.envs.genesis.genesis import Genesis

Tensor = torch.Tensor
# Torch's own types are unknown here.
_linalg: Any = torch.linalg

_DT: Final = 0.01
_SIM_STEPS: Final = 5
"""Simulation steps in a control step: 20 Hz."""
_STRIDE: Final = 0.025
_NEAR: Final = 0.025
_DAMPING: Final = 1e-3
_REST: Final = (0.0, 0.39, 0.0, -1.96, 0.0, 2.35, 0.785, 0.04, 0.04)
"""The hand points down, 17 cm above the plane."""
_KP: Final = (4500.0, 4500.0, 3500.0, 3500.0, 2000.0, 2000.0, 2000.0, 100.0, 100.0)
_KV: Final = (450.0, 450.0, 350.0, 350.0, 200.0, 200.0, 200.0, 10.0, 10.0)
_FORCE: Final = (87.0, 87.0, 87.0, 87.0, 12.0, 12.0, 12.0, 100.0, 100.0)
_WORKSPACE: Final = ((0.3, -0.35, 0.03), (0.7, 0.35, 0.5))
_TARGETS: Final = ((0.4, -0.25, 0.12), (0.65, 0.25, 0.4))
_CUBES: Final = ((0.45, -0.2), (0.65, 0.2))
_CUBE_EDGE: Final = 0.04
_ABOVE_CUBE: Final = 0.05
_TOOL: Final = (0.0, 0.0, 0.1034)
"""Between the finger tips, in the frame of the hand."""
_JITTER: Final = 0.02
# 9 joint positions, 9 velocities, and five vectors of 3.
_STATES: Final = 33


def make(config: Genesis, num_envs: int, limit: int, ignore_terminations: bool, render: bool) -> VectorEnv[Any, Any, Any]:
    batch = Simulation(_started(config.backend), config, num_envs)
    options = BatchOptions(max_episode_steps=limit, ignore_terminations=ignore_terminations)
    return assemble_batch(batch, options, render=render)


class Simulation:
    """The scene as a `Batch`.

    Args:
        gs: the module `genesis`, started.
        config: what is asked and rewarded.
        num_envs: N.
    """

    def __init__(self, gs: Any, config: Genesis, num_envs: int) -> None:
        self.num_envs = num_envs
        self.device = torch.device(str(gs.device))
        self.single_observation_space = observation_space(states=_STATES, text=False)
        self.single_action_space: Any = gymnasium.spaces.Box(-1.0, 1.0, (4,), np.float32)
        self.texts: NDArray[np.str_] | None = None
        self._chases_cube = config.task == "reach_cube"
        self._sparse = config.reward_mode == "sparse"
        self._low, self._high = (self._tensor(corner) for corner in _WORKSPACE)
        self._tool_in_hand = self._tensor(_TOOL)
        self._damping = _DAMPING * torch.eye(6, device=self.device)
        self._target = torch.zeros(num_envs, 3, device=self.device)
        self._commanded = torch.zeros(num_envs, 3, device=self.device)
        self._build(gs)

    def reset(self, index: list[int], seeds: list[int], numbers: list[int | None]) -> dict[str, Tensor]:
        drawn = [_draw(seed) for seed in seeds]
        joints, cube, target = (self._tensor(np.stack(column)) for column in zip(*drawn, strict=True))
        # Also forgets contacts, the solver's warm start and the controller's commands, in these rows alone.
        self._scene.reset(envs_idx=index)
        self._arm.set_qpos(joints, envs_idx=index)
        self._arm.control_dofs_position(joints, envs_idx=index)
        self._cube.set_qpos(cube, envs_idx=index)
        self._target[index] = target
        self._commanded[index] = self._tool()[0][index]
        return self._observation()

    def step(self, actions: Tensor) -> Outcome:
        moved = self._commanded + _STRIDE * actions[:, :3]
        self._commanded = torch.minimum(torch.maximum(moved, self._low), self._high)
        # From -1 … 1 to 0 … 4 cm, the travel of each finger.
        opening = (0.02 * (actions[:, 3:] + 1.0)).expand(-1, 2)
        self._arm.control_dofs_position(torch.cat([self._joints_towards(self._commanded), opening], dim=1))
        for _ in range(_SIM_STEPS):
            self._scene.step()
        observation = self._observation()
        distance: Tensor = _linalg.vector_norm(observation["states"][:, -3:], dim=1)
        success = distance < _NEAR
        reward = success.float() if self._sparse else 1.0 - torch.tanh(5.0 * distance)
        return Outcome(observation=observation, reward=reward, terminated=success, success=success)

    def close(self) -> None:
        self._scene.destroy()

    def _build(self, gs: Any) -> None:
        self._scene = gs.Scene(sim_options=gs.options.SimOptions(dt=_DT, substeps=1), show_viewer=False)
        self._scene.add_entity(gs.morphs.Plane())
        self._arm = self._scene.add_entity(gs.morphs.MJCF(file="xml/franka_emika_panda/panda.xml"))
        self._cube = self._scene.add_entity(gs.morphs.Box(size=(_CUBE_EDGE,) * 3, pos=(0.5, 0.0, _CUBE_EDGE / 2)))
        self._scene.build(n_envs=self.num_envs)
        self._hand = self._arm.get_link("hand")
        self._arm.set_dofs_kp(self._tensor(_KP))
        self._arm.set_dofs_kv(self._tensor(_KV))
        self._arm.set_dofs_force_range(-self._tensor(_FORCE), self._tensor(_FORCE))

    def _joints_towards(self, position: Tensor) -> Tensor:
        """Arm joints `[N, 7]` whose tool is at `position`, pointing down: one step of damped least squares.

        Δq = Jᵀ (J Jᵀ + λ I)⁻¹ e. Wampler, "Manipulator Inverse Kinematic Solutions Based on Vector Formulations and Damped
        Least-Squares Methods" (1986).
        """
        tool, axis_x, axis_z = self._tool()
        # Half the cross products of where the hand's axes are and where they should be: x forwards, z down.
        forwards, down = self._tensor([(1.0, 0.0, 0.0)]), self._tensor([(0.0, 0.0, -1.0)])
        turn: Tensor = 0.5 * (_linalg.cross(axis_x, forwards) + _linalg.cross(axis_z, down))
        error = torch.cat([position - tool, turn], dim=1)[:, :, None]
        # The last two columns are the fingers, which don't move the hand.
        jacobian = self._arm.get_jacobian(self._hand, self._tool_in_hand)[:, :, :7]
        transposed = jacobian.transpose(1, 2)
        change: Tensor = transposed @ _linalg.solve(jacobian @ transposed + self._damping, error)
        return self._arm.get_qpos()[:, :7] + change[:, :, 0]

    def _tool(self) -> tuple[Tensor, Tensor, Tensor]:
        """Position of the tool, and the hand's x and z axes, each `[N, 3]`."""
        w, x, y, z = self._hand.get_quat().unbind(dim=1)
        axis_x = torch.stack([1 - 2 * (y * y + z * z), 2 * (x * y + w * z), 2 * (x * z - w * y)], dim=1)
        axis_z = torch.stack([2 * (x * z + w * y), 2 * (y * z - w * x), 1 - 2 * (x * x + y * y)], dim=1)
        return self._hand.get_pos() + _TOOL[2] * axis_z, axis_x, axis_z

    def _observation(self) -> dict[str, Tensor]:
        tool, cube = self._tool()[0], self._cube.get_pos()
        target = cube + self._tensor((0.0, 0.0, _ABOVE_CUBE)) if self._chases_cube else self._target
        parts = [self._arm.get_qpos(), self._arm.get_dofs_velocity(), tool, self._commanded - tool, cube, target, target - tool]
        return {"states": torch.cat(parts, dim=1)}

    def _tensor(self, values: Any) -> Tensor:
        return torch.as_tensor(values, dtype=torch.float32, device=self.device)


def _draw(seed: int) -> tuple[NDArray[np.float64], NDArray[np.float64], NDArray[np.float64]]:
    """Joint positions `[9]`, the cube's pose `[7]` (position, quaternion w first) and a target `[3]`."""
    random = keyed_generator(seed, "genesis")
    joints = np.array(_REST)
    joints[:7] += random.uniform(-_JITTER, _JITTER, 7)
    # After a quarter turn a cube looks the same.
    yaw = random.uniform(0.0, np.pi / 2)
    cube = np.array([*random.uniform(*_CUBES), _CUBE_EDGE / 2, np.cos(yaw / 2), 0.0, 0.0, np.sin(yaw / 2)])
    return joints, cube, random.uniform(*_TARGETS)


def _started(backend: str) -> Any:
    """The module `genesis`; it is started by the first call, and what it computes on can't be changed afterwards."""
    gs: Any = importlib.import_module("genesis")
    cuda = torch.cuda.is_available()
    if backend == "gpu" and not cuda:
        raise ConfigError("env.backend", "'gpu' needs a CUDA device, found none", "Use backend: cpu.")
    wanted = gs.cpu if backend == "cpu" or not cuda else gs.cuda
    if not gs._initialized:
        gs.init(backend=wanted, logging_level="error")
    elif gs.backend != wanted:
        problem = f"this process runs Genesis on '{gs.backend.name}' already"
        raise ConfigError("env.backend", problem, "Use one backend in a process.")
    return gs
