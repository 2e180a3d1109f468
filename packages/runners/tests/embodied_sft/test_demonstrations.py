"""From episodes to batches, by hand."""

from __future__ import annotations

from dataclasses import dataclass, replace
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pytest
import torch

from rlinf.core.data import ArraySpec, EnvSpec, LossOutput
from rlinf.core.data.offline import OfflineEpisode
from rlinf.core.declarations import PolicyTraits
from rlinf.core.errors import ConfigError
from rlinf.runners.embodied_sft.demonstrations import Demonstrations, Imitation, held_out
from rlinf.runners.embodied_sft.fitting import Fitting, other_shapes

CAMERAS = ("main_images", "wrist_images", "extra_view_images")


@dataclass(frozen=True)
class Traits:
    """The configuration of a model of which only its traits are known."""

    traits: PolicyTraits


def an_episode(number, length, task="push", last=True):
    """State t of episode e is 10 e + t, and so is its action, negative."""
    steps = 10.0 * number + np.arange(length + last, dtype=np.float32)[:, None]
    none = np.zeros(length, np.bool_)
    return OfflineEpisode(
        number=number,
        observation={"states": steps},
        action=-steps[:length],
        reward=np.zeros(length, np.float32),
        terminated=none,
        truncated=none,
        task=task,
    )


def test_an_example_is_a_step_and_the_actions_from_there_on():
    demonstrations = Demonstrations([an_episode(0, 3), an_episode(1, 2, "pull", last=False)], chunk=2, tasks=["pull", "push"])
    assert len(demonstrations) == 5
    trajectory = demonstrations.batch([0, 2, 3, 4]).trajectory
    assert trajectory.context["observation"]["states"][..., 0].tolist() == [[0], [2], [10], [11]]
    assert trajectory.action[:, 0, :, 0].tolist() == [[0, -1], [-2, -2], [-10, -11], [-11, -11]]
    assert trajectory.context["counted"][:, 0].tolist() == [[True, True], [True, False], [True, True], [True, False]]
    assert trajectory.task.tolist() == [1, 1, 0, 0]


@pytest.mark.parametrize("key", ["states", "action"])
def test_what_is_no_number_is_refused_with_its_place(key):
    episode = an_episode(7, 3)
    wrong = np.array(episode.observation["states"] if key == "states" else episode.action)
    wrong[1, 0] = np.nan
    episode = replace(episode, action=wrong) if key == "action" else replace(episode, observation={"states": wrong})
    with pytest.raises(ConfigError, match=rf"^data: .* found nan in '{key}' of episode 7, step 1, index \[0\]\. Mend the dataset"):
        Demonstrations([an_episode(0, 3), episode], chunk=2, tasks=["push"])


@pytest.mark.parametrize("pictures", [False, True])
def test_before_a_worker_starts_numbers_are_looked_at_and_pictures_are_not_read(pictures):
    wrong = replace(an_episode(1, 3), action=np.array([[0.0], [np.inf], [0.0]], np.float32))
    seen = {"states": ArraySpec(shape=(1,), dtype="float32")}
    seen |= {"main_images": ArraySpec(shape=(4, 4, 3), dtype="uint8")} if pictures else {}
    source = SimpleNamespace(spec=SimpleNamespace(observation=seen), episodes=lambda: iter([an_episode(0, 3), wrong]))
    fit = Fitting(SimpleNamespace(), SimpleNamespace(), source, None, "data")
    told = [str(fault) for fault in fit.not_finite()]
    place = "data: expected finite numbers, found inf in 'action' of episode 1, step 1, index [0]. Mend the dataset."
    assert told == ([] if pictures else [place])


def test_only_interventions_count_of_what_a_policy_played():
    given, played = an_episode(0, 2), replace(an_episode(1, 4), intervened=np.array([False, False, True, False]))
    some = Demonstrations([given, played], chunk=2, tasks=["push"], interventions=True)
    trajectory = some.batch(range(len(some))).trajectory
    # Step 1 of the second episode begins a chunk whose second action is the expert's.
    assert trajectory.context["observation"]["states"][:, 0, 0].tolist() == [0, 1, 11, 12]
    assert trajectory.context["counted"][:, 0].tolist() == [[True, True], [True, False], [False, True], [True, False]]
    assert len(Demonstrations([given, played], chunk=2, tasks=["push"])) == 6


def test_a_chunk_ends_with_the_first_action_that_a_policy_took_in_place_of_the_expert():
    """What the expert says next is for where the policy went, not for where the chunk began."""
    acted = np.array([True, True, False, True])
    played = replace(an_episode(0, 4), intervened=acted, policy_action=np.zeros((4, 2), np.float32))
    every, some = (Demonstrations([played], chunk=3, tasks=["push"], interventions=only) for only in (False, True))
    counted = every.batch(range(len(every))).trajectory.context["counted"][:, 0].tolist()
    assert counted == [[True] * 3, [True, True, False], [True, False, False], [True, False, False]]
    trajectory = some.batch(range(len(some))).trajectory
    assert trajectory.context["observation"]["states"][:, 0, 0].tolist() == [0, 1, 3]
    assert trajectory.context["counted"][:, 0].tolist() == [[True, True, False], [True, False, False], [True, False, False]]


def test_a_pair_is_two_frames_of_one_episode_and_how_far_they_are_apart():
    """The first episode keeps what was seen last, the second one does not."""
    demonstrations = Demonstrations([an_episode(0, 4), an_episode(1, 3, last=False)], chunk=1, tasks=["push"])
    found = set()
    for seed in range(40):
        context = demonstrations.batch(range(7), pairs=np.random.default_rng(seed)).trajectory.context
        first, second = (context[key]["states"][:, 0, 0] for key in ("observation", "later"))
        assert first.tolist() == [0, 1, 2, 3, 10, 11, 12]
        frames = np.where(first < 10, 4, 2)
        np.testing.assert_allclose(context["offsets"][:, 0], (second - first) / frames, atol=1e-6)
        found |= set(zip(first.tolist(), second.tolist(), strict=True))
    # Every frame of its episode is drawn, before and after, and none of the other.
    assert found == {(a, b) for a in range(4) for b in range(5)} | {(a, b) for a in (10, 11, 12) for b in (10, 11, 12)}
    again = [demonstrations.batch([0, 5], pairs=np.random.default_rng(1)).trajectory.context["offsets"] for _ in range(2)]
    np.testing.assert_array_equal(*again)


def test_an_episode_of_one_frame_gets_nowhere():
    batch = Demonstrations([an_episode(0, 1, last=False)], chunk=1, tasks=["push"]).batch([0], pairs=np.random.default_rng(0))
    assert batch.trajectory.context["offsets"].tolist() == [[0.0]]


def test_statistics_are_of_what_was_seen_before_each_action():
    demonstrations = Demonstrations([an_episode(0, 3), an_episode(1, 2)], chunk=9, tasks=["push"])
    assert demonstrations.column("states")[:, 0].tolist() == [0, 1, 2, 10, 11]
    assert demonstrations.action[:, 0].tolist() == [0, -1, -2, -10, -11]
    assert demonstrations.column("main_images") is None


def test_the_policy_is_shown_observations_actions_mask_and_task():
    seen = {}

    def sft_loss(env_obs, action, *, mask, generator):
        seen.update(obs=env_obs, action=action, mask=mask, draw=torch.rand(1, generator=generator).item())
        return LossOutput(total=torch.ones(()), weight=torch.ones(()), metrics={})

    batch = Demonstrations([an_episode(0, 2), an_episode(1, 1, "pull")], chunk=2, tasks=["pull", "push"]).batch([1, 2])
    moved = batch.trajectory.map(torch.as_tensor)
    loss = Imitation(["pull", "push"], torch.Generator().manual_seed(3))
    loss.of_policy(SimpleNamespace(sft_loss=sft_loss), SimpleNamespace(trajectory=moved))
    assert seen["obs"]["states"].tolist() == [[1], [10]]
    assert seen["obs"]["task_descriptions"].tolist() == ["push", "pull"]
    assert seen["action"].tolist() == [[[-1], [-1]], [[-10], [-10]]]
    assert seen["mask"].tolist() == [[True, False], [True, False]]
    assert seen["draw"] == torch.rand(1, generator=torch.Generator().manual_seed(3)).item()
    Imitation([""], torch.Generator()).of_policy(SimpleNamespace(sft_loss=sft_loss), SimpleNamespace(trajectory=moved))
    assert set(seen["obs"]) == {"states"}


def test_a_tenth_is_held_out_but_at_least_one():
    assert [held_out(n, None) for n in (1, 5, 25)] == [1, 1, 2]
    assert held_out(25, 7) == 7


def spec_of(**cameras):
    """A side with cameras, by the shapes of their pictures."""
    seen = {name: ArraySpec(shape=shape, dtype="uint8") for name, shape in cameras.items()}
    return EnvSpec(observation=seen, action=ArraySpec(shape=(2,), dtype="float32"), max_episode_steps=9)


@pytest.mark.parametrize(
    ("traits", "of_env", "recorded", "shown", "lacking"),
    [
        ({"any_observation": CAMERAS}, False, ("main_images", "wrist_images"), ("main_images",), "wrist_images"),
        ({"any_observation": CAMERAS}, False, ("main_images",), ("main_images", "wrist_images"), None),
        ({"any_observation": CAMERAS}, True, ("main_images",), ("main_images", "wrist_images"), "wrist_images"),
        ({"any_observation": CAMERAS, "observations": ("main_images",)}, False, CAMERAS, ("main_images",), None),
        ({"observations": ("main_images",), "optional_observations": CAMERAS[1:]}, False, CAMERAS, CAMERAS[:2], CAMERAS[2]),
        ({"observations": ("main_images",)}, False, CAMERAS, ("main_images",), None),
    ],
)
def test_a_camera_that_one_side_lacks_is_refused_with_both(traits, of_env, recorded, shown, lacking):
    model = SimpleNamespace(model_type="eyes", config=Traits(PolicyTraits(**traits)))
    side = [spec_of(**dict.fromkeys(names, (8, 8, 3))) for names in (recorded, shown)]
    source = SimpleNamespace(name="a folder", spec=side[0], features=())
    fit = Fitting(cast("Any", model), cast("Any", None), cast("Any", source), None, "data")
    told = [str(fault) for fault in fit.unfit_for_env("env.eval", "table", side[1], of_env=of_env)]
    if lacking is None:
        assert told == []
        return
    (fault,) = told
    assert fault.startswith("data.keys: " if of_env else "env.eval.init_params: ")
    assert f"and {lacking} is on one side only: 'a folder' has {', '.join(recorded)}, and env.eval.env_type 'table' " in fault
    assert fault.endswith(f"{', '.join(shown)}. Choose the environment that it was recorded in.")


def test_pictures_may_have_another_size_but_not_another_number_of_views():
    source = SimpleNamespace(name="a folder", spec=spec_of(main_images=(8, 8, 3), extra_view_images=(2, 8, 8, 3)))
    assert not list(other_shapes(cast("Any", source), "data", "env", spec_of(main_images=(64, 48, 3)), any_size=True))
    one = spec_of(main_images=(8, 8, 3), extra_view_images=(1, 64, 64, 3))
    (fault,) = other_shapes(cast("Any", source), "data", "env", one, any_size=True)
    assert str(fault).startswith("data.keys.extra_view_images: 'extra_view_images' of 'a folder' has the shape [2, 8, 8, 3]")
