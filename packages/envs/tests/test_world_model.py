"""Imagined tables: a small network is fitted to the reach task, and must imagine what the real table does."""

from __future__ import annotations

import numpy as np
import pytest

from rlinf.core.errors import ConfigError, NonFiniteError, ShapeError
from rlinf.core.registry import ENVS
from rlinf.core.testing.env import EnvContract
from rlinf.envs.tabletop import Tabletop
from rlinf.envs.world_model import Part, WorldModel, save_frames

torch = pytest.importorskip("torch")
RADIUS = 0.08


class Dynamics(torch.nn.Module):
    """Where the hand goes: the states plus what a small network says."""

    def __init__(self, width=64):
        super().__init__()
        self.layers = torch.nn.Sequential(torch.nn.Linear(8, width), torch.nn.Tanh(), torch.nn.Linear(width, 6))

    def predict(self, observation, action):
        states = observation["states"]
        return {"states": states + self.layers(torch.cat([states, action], dim=-1))}


class NumpyDynamics:
    """The same table in NumPy, with noise, and a latent that counts steps."""

    def __init__(self, spread=0.0):
        self.spread = spread

    def predict(self, observation, action, noise):
        hand = np.clip(observation["states"][:, :2] + 0.1 * action + self.spread * noise, -1, 1)
        target = observation["states"][:, 2:4]
        return {"states": np.concatenate([hand, target, target - hand], axis=1), "latent": observation["latent"] + 1}


def judge():
    def verdict(observation, action, following):
        success = (following["states"][:, 4:] ** 2).sum(-1) < RADIUS**2
        return {"reward": success, "success": success}

    return verdict


class Broken:
    def __init__(self, answer):
        self.answer = answer

    def predict(self, observation, action):
        return self.answer


def part(name, **kwargs):
    return Part(build=f"{__name__}:{name}", kwargs=kwargs)


def make(config, num_envs=3, *, ignore=True, limit=8, render=False):
    return config.make(num_envs, max_episode_steps=limit, ignore_terminations=ignore, render=render)


@pytest.fixture(scope="module")
def table():
    return make(Tabletop(task="reach"), 64, limit=30)


@pytest.fixture(scope="module")
def frames(tmp_path_factory, table):
    path = tmp_path_factory.mktemp("frames") / "reach.npz"
    save_frames(path, table, 40)
    return str(path)


@pytest.fixture(scope="module")
def weights(tmp_path_factory, table):
    """A network fitted to 30 × 64 random transitions of the real table."""
    draws = np.random.default_rng(0)
    observation, _ = table.reset(seed=100)
    rows = []
    for _ in range(30):
        action = draws.uniform(-1, 1, (64, 2)).astype(np.float32)
        before, (observation, *_) = observation["states"].copy(), table.step(action)
        rows.append((before, action, observation["states"].copy()))
    before, action, after = (torch.as_tensor(np.concatenate(column)) for column in zip(*rows, strict=True))
    with torch.random.fork_rng():
        torch.manual_seed(0)
        model = Dynamics()
    # Only the last layer is fitted, which least squares do at once.
    with torch.no_grad():
        features = model.layers[:2](torch.cat([before, action], dim=1))
        features = torch.cat([features, torch.ones(len(features), 1)], dim=1)
        solution = torch.linalg.lstsq(features, after - before).solution
        model.layers[2].weight.copy_(solution[:-1].T)
        model.layers[2].bias.copy_(solution[-1])
    path = tmp_path_factory.mktemp("weights") / "dynamics.pt"
    torch.save(model.state_dict(), path)
    return str(path)


@pytest.fixture
def fitted(frames, weights):
    return WorldModel(model=Part(build=f"{__name__}:Dynamics", weights=weights), reward=part("judge"), frames=frames)


@pytest.fixture
def noisy(frames, tmp_path):
    with np.load(frames) as archive:
        content = dict(archive)
    path = tmp_path / "hidden.npz"
    np.savez(path, **content, latent=np.zeros((40, 1), np.float32), task_descriptions=np.array(["left", "right"] * 20))
    return WorldModel(
        model=part("NumpyDynamics", spread=0.05),
        reward=part("judge"),
        frames=str(path),
        hidden=("latent",),
        noise_size=2,
        library="numpy",
    )


@pytest.mark.parametrize("ignore", [True, False])
def test_contract_of_a_fitted_model(fitted, ignore):
    EnvContract(factory=lambda: make(fitted, ignore=ignore), steps=6).run()


def test_contract_of_a_stochastic_model(noisy):
    EnvContract(factory=lambda: make(noisy), steps=6).run()


def test_imagination_stays_near_the_real_table(fitted, table):
    imagined = make(fitted, 40, limit=10)
    observation, _ = imagined.reset(options={"init_id": list(range(40))})
    real, _ = table.reset(seed=0)
    assert np.array_equal(observation["states"], real["states"][:40])
    draws, moved = np.random.default_rng(1), real["states"][:40, :2].copy()
    for _ in range(5):
        action = draws.uniform(-1, 1, (64, 2)).astype(np.float32)
        observation, *_ = imagined.step(action[:40])
        real, *_ = table.step(action)
    error = np.abs(observation["states"][:, :2] - real["states"][:40, :2]).mean()
    moved = np.abs(real["states"][:40, :2] - moved).mean()
    assert error < 0.15 * moved, f"{error:.4f} away after a way of {moved:.4f}"


def test_an_expert_succeeds_in_its_imagination(fitted):
    env = make(fitted, 16, ignore=False, limit=None)
    observation, _ = env.reset(seed=3)
    successes = np.zeros(16, bool)
    for _ in range(20):
        states = observation["states"]
        observation, _, terminated, _, _ = env.step(np.clip(states[:, 4:] / 0.1, -1, 1))
        successes |= terminated
        if terminated.any():
            env.reset(seed=9, options={"reset_mask": terminated})
    assert successes.mean() > 0.8


def test_frames_by_seed_and_by_number(fitted, frames):
    env = make(fitted)
    with np.load(frames) as archive:
        states = archive["states"]
    observation, _ = env.reset(options={"init_id": [5, 0, 39]})
    assert np.array_equal(observation["states"], states[[5, 0, 39]])
    drawn = {observation["states"].tobytes() for observation in (env.reset(seed=s)[0] for s in range(10))}
    assert len(drawn) == 10
    with pytest.raises(ConfigError, match=r"there is no initial state 40\. There are 40 frames"):
        env.reset(options={"init_id": 40})


def test_noise_depends_on_seed_and_step_alone(noisy):
    rollouts = []
    for num_envs in (1, 3):
        env = make(noisy, num_envs)
        env.reset(seed=[7] * num_envs, options={"init_id": 2})
        rollouts.append([env.step(np.zeros((num_envs, 2), np.float32))[0]["states"][-1] for _ in range(4)])
    assert np.array_equal(*rollouts)
    assert len({row.tobytes() for row in rollouts[0]}) == 4


def test_hidden_keys_are_carried_but_not_seen_and_texts_are_those_of_the_frame(noisy):
    env = make(noisy)
    observation, _ = env.reset(options={"init_id": [0, 1, 2]})
    assert set(observation) == {"states", "task_descriptions"}
    assert observation["task_descriptions"].tolist() == ["left", "right", "left"]
    for _ in range(3):
        env.step(np.zeros((3, 2), np.float32))
    assert env.unwrapped.batch._state["latent"].tolist() == [[3.0]] * 3


def test_tensors_and_images(tmp_path):
    path = tmp_path / "images.npz"
    table = make(Tabletop(task="reach", obs_mode="rgb", image_size=8), 2)
    save_frames(path, table, 2)
    config = WorldModel(model=part("Broken", answer={}), reward=part("judge_nothing"), frames=str(path), arrays="torch")
    env = make(config, 2)
    observation, _ = env.reset(seed=1)
    assert observation["main_images"].dtype == torch.uint8
    assert str(observation["task_descriptions"][0]) == "move to the target"
    following, reward, *_ = env.step(torch.zeros(2, 2))
    assert torch.equal(following["main_images"], observation["main_images"])
    assert reward.tolist() == [0.5, 0.5]
    pytest.importorskip("imageio_ffmpeg")
    frame = make(WorldModel(model=config.model, reward=config.reward, frames=str(path)), 2, render=True)
    observation, _ = frame.reset(seed=1)
    assert np.array_equal(np.stack(frame.render()), observation["main_images"])


def judge_nothing():
    return lambda observation, action, following: {"reward": torch.full((len(action),), 0.5)}


@pytest.mark.parametrize(
    ("answer", "kind", "message"),
    [
        ({"states": torch.zeros(3, 5)}, ShapeError, r"expected 'states' of shape \[3, 6\], found \[3, 5\]"),
        ({"states": torch.zeros(3, 6, dtype=torch.float64)}, ShapeError, "expected 'states' of torch.float32"),
        ({"state": torch.zeros(3, 6)}, ShapeError, "predict returned 'state', which the frames don't have"),
        ({"states": torch.full((3, 6), torch.nan)}, NonFiniteError, "'states' of environment 0 is not finite after 1 steps"),
    ],
)
def test_wrong_predictions(frames, answer, kind, message):
    env = make(WorldModel(model=part("Broken", answer=answer), reward=part("judge"), frames=frames))
    env.reset(seed=1)
    with pytest.raises(kind, match=message):
        env.step(np.zeros((3, 2), np.float32))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"model": Part(build="nowhere.to:find")}, r"env\.model\.build: there is no module 'nowhere\.to'"),
        ({"model": Part(build="Dynamics")}, "expected module:attr, found 'Dynamics'"),
        ({"reward": Part(build="math:sqrt", weights="none.pt")}, r"env\.reward\.weights: there is no file 'none\.pt'"),
        ({"frames": "none.npz"}, r"env\.frames: there is no file 'none\.npz'"),
        ({"hidden": ("latent",)}, "has no 'latent'"),
        ({"horizon": 0}, "must be at least 1, found 0"),
    ],
)
def test_refusals_before_the_start(frames, change, message):
    config = WorldModel(**({"model": part("Dynamics"), "reward": part("judge"), "frames": frames} | change))
    with pytest.raises(ConfigError, match=message):
        config.check("env")


def test_it_is_read_from_a_configuration(frames):
    given = {"model": {"build": f"{__name__}:Dynamics", "kwargs": {"width": 64}}, "reward": {"build": "m:j"}, "frames": frames}
    config = ENVS.build("world_model", given, place="env.train")
    assert config == WorldModel(model=part("Dynamics", width=64), reward=Part(build="m:j"), frames=frames)


def test_weights_by_safetensors(frames, weights, fitted, tmp_path):
    pytest.importorskip("safetensors")
    from safetensors.torch import save_file

    path = tmp_path / "dynamics.safetensors"
    save_file(torch.load(weights, weights_only=True), path)
    other = WorldModel(model=Part(build=f"{__name__}:Dynamics", weights=str(path)), reward=part("judge"), frames=frames)
    states = []
    for config in (fitted, other):
        env = make(config)
        env.reset(seed=1)
        states.append(env.step(np.ones((3, 2), np.float32))[0]["states"])
    assert np.array_equal(*states)


def test_a_file_that_would_run_code_is_refused(frames, tmp_path):
    path = tmp_path / "evil.pt"
    torch.save({"x": judge}, path)
    config = WorldModel(model=Part(build=f"{__name__}:Dynamics", weights=str(path)), reward=part("judge"), frames=frames)
    with pytest.raises(Exception, match=r"[Ww]eights"):
        make(config)
