"""Policies that learn from features in place of observations, and algorithms that need what another policy proposes."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from env_worker_toy import connected
from off_policy_toy import SPEC

from rlinf.core.errors import ConfigError
from rlinf.core.worker import WorkerContext, injected
from rlinf.runners.off_policy.actor_worker import OffPolicyActor
from rlinf.runners.off_policy.rules import read_off_policy


def test_features_are_kept_in_place_of_observations(off_policy_data: dict[str, Any], channels: Any, queues: Any) -> None:
    off_policy_data["actor"]["model"]["model_type"] = "off_policy_toy:WithFeatures"
    cfg = read_off_policy(off_policy_data)
    (env, _), sent = connected(cfg, 1), queues()
    env.interact(0, *channels, sent)
    with injected(WorkerContext(group="actor", rank=0, world_size=1)):
        worker: Any = OffPolicyActor(cfg)
    topology: Any = SimpleNamespace(spec=SPEC)
    worker.init_worker(topology)
    worker.recv_rollout_batch(sent, 1)
    drawn = worker._replay.sample(50)
    assert set(drawn.observation) == set(drawn.observation_next) == {"square", "acted"}
    state = drawn.observation["acted"][:, :1]
    np.testing.assert_array_equal(drawn.observation["square"], state**2)
    # Each step takes one of those that are left.
    np.testing.assert_array_equal(drawn.observation_next["square"], (state - 1) ** 2)
    # A reward, three flags and an action of one number beside what is kept: three numbers in place of one.
    assert cfg.transition_bytes(SPEC) == 3 * 4 + 4 + 4 + 3


def test_an_algorithm_and_a_policy_that_do_not_go_together_are_refused(off_policy_data: dict[str, Any]) -> None:
    off_policy_data["algorithm"]["loss_type"] = "off_policy_toy:Refines"
    with pytest.raises(ConfigError, match=r"actor\.model\.model_type: .*changes what another policy proposes.*Set it to rlt"):
        read_off_policy(off_policy_data)
    off_policy_data["actor"]["model"]["reference"] = True
    read_off_policy(off_policy_data)
    off_policy_data["algorithm"]["start_steps"] = 24
    with pytest.raises(ConfigError, match=r"algorithm\.start_steps: .*begins as what another policy proposes.* 24 actions"):
        read_off_policy(off_policy_data)
    off_policy_data["algorithm"]["start_steps"] = 0
    off_policy_data["algorithm"]["demo_buffer"] = {"type": "off_policy_toy:Recorded", "fraction": 0.5}
    with pytest.raises(ConfigError, match=r"algorithm\.demo_buffer: .*a dataset records none"):
        read_off_policy(off_policy_data)
