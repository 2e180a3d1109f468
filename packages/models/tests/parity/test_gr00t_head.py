"""Our action head against LeRobot's: same weights, same inputs; see make_gr00t.py."""

import json
from pathlib import Path

import pytest
import torch
from made_up_weights import made_up_weights
from safetensors import safe_open

from rlinf.models.flow import FlowSampling, sample_chain
from rlinf.models.gr00t import from_public, shape_of, to_public
from rlinf.models.gr00t.head import ActionHead, bucket_of

FIXTURE = Path(__file__).parent / "gr00t_head.safetensors"
TOLERANCE = {"atol": 1e-4, "rtol": 0.0}


@pytest.fixture(scope="module")
def reference():
    with safe_open(FIXTURE, "pt") as file:
        return file.metadata(), {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118


@pytest.fixture(scope="module")
def head(reference):
    metadata, _ = reference
    shape = shape_of({"action_head_cfg": json.loads(metadata["config"])})
    shapes = {name: tuple(size) for name, size in json.loads(metadata["shapes"]).items()}
    own = {name: size for name, size in shapes.items() if name.endswith(".W")}
    made = made_up_weights(shapes) | made_up_weights(own, scale=float(metadata["scale"]))
    found = ActionHead(shape.head, 24)
    mapped = {name.removeprefix("head."): torch.from_numpy(value) for name, value in from_public(made, layers=0).items()}
    found.load_state_dict(mapped, strict=True)
    return found


def conditioned(head, reference):
    metadata, tensors = reference
    tokens, robot = tensors["tokens"], int(metadata["robot"])
    return head.condition(tokens, torch.ones(tokens.shape[:2], dtype=torch.bool), tensors["state"], robot), robot


@pytest.mark.parametrize("step", [0, 2])
def test_the_velocity_is_the_reference_s(head, reference, step):
    tensors = reference[1]
    given, robot = conditioned(head, reference)
    x = tensors["noise"] if step == 0 else tensors["noise_2"]
    velocity, _ = head.velocity(x, torch.full((3,), step / 4), given, robot)
    torch.testing.assert_close(velocity, tensors[f"velocity_{step}"], **TOLERANCE)


def test_four_steps_of_our_sampler_end_where_the_reference_s_loop_does(head, reference):
    tensors = reference[1]
    given, robot = conditioned(head, reference)

    def field(x, time):
        velocity, hidden = head.velocity(x, 1.0 - time, given, robot)
        return -velocity, hidden

    chain = sample_chain(field, tensors["noise"], FlowSampling(num_steps=4), noise_level=0.5, train=False)
    torch.testing.assert_close(chain.action, tensors["actions"], **TOLERANCE)
    assert tensors["actions"].std() > 1.0


def test_another_robot_has_other_weights(head, reference):
    tensors = reference[1]
    given, robot = conditioned(head, reference)
    velocity, _ = head.velocity(tensors["noise"], torch.zeros(3), given, 1 - robot)
    assert (velocity - tensors["velocity_0"]).abs().max() > 0.1


def test_names_go_back_to_the_reference_s(head, reference):
    names = {f"head.{name}" for name in head.state_dict()}
    assert set(to_public(dict.fromkeys(names))) == set(json.loads(reference[0]["shapes"]))


@pytest.mark.parametrize("steps", [3, 4, 5, 7, 10, 30])
def test_times_of_the_grid_fall_into_the_buckets_of_the_reference(steps):
    tau = torch.tensor([1.0 - k / steps for k in range(steps)])
    assert bucket_of(1.0 - tau.double(), 1000).tolist() == [1000 * k // steps for k in range(steps)]
