"""The package as a whole: what is public has a specification, and what is registered can be built, bound and examined."""

import inspect
import re
import subprocess
import sys
from dataclasses import MISSING, fields, is_dataclass
from pathlib import Path

import pytest
import reference
import torch

import rlinf.algorithms as algorithms
from rlinf.algorithms import Estimator, PolicyLoss, advantages, logits, losses, objectives, policy_loss, rewards
from rlinf.core.registry import ADVANTAGES, LOSSES, REWARDS
from rlinf.core.testing.loss import LossContract

READ_TEXTS = {"score", "score_async", "chosen_letter", "has_think_format", "has_answer_format", "has_tags_in_order"}
NEVER_SPECIFIED = {"all_reduce", "chunk", "generator"}
"""Parameters that decide how, not what."""
SAID_OTHERWISE = {
    "aggregate": {"aggregation"},  # as mode and length
    "kl_loss": {"aggregation"},
    "sft_loss": {"aggregation"},
    "self_normalised": {"correction"},  # as its weight
    "clip_cov": {"share"},  # which decides how many are drawn; the specification names those that may be
    "cql_penalty": {"weight"},  # which only lets rows of weight 0 hold garbage
    "cql_discrete_penalty": {"weight"},
}


def functions(module):
    items = {name: getattr(module, name) for name in dir(module) if not name.startswith("_")}
    return {name: item for name, item in items.items() if inspect.isfunction(item)}


PUBLIC = {name: f for module in (advantages, losses, logits, objectives, rewards) for name, f in functions(module).items()}
OURS = [
    (registry, name)
    for registry in (ADVANTAGES, LOSSES, REWARDS)
    for name in registry.names()
    if registry.owner(name).startswith("rlinf.algorithms.")
]


PACKAGES = (algorithms, advantages, losses, objectives, rewards)
LOADED = """
import sys
{statement}
print(*(name for name in sys.modules if name.startswith("rlinf.algorithms")), "torch" if "torch" in sys.modules else "")
"""


def loaded(statement):
    """The modules that a statement loads in a fresh interpreter."""
    run = subprocess.run([sys.executable, "-c", LOADED.format(statement=statement)], capture_output=True, text=True, check=True)
    return set(run.stdout.split())


def test_one_loss_does_not_load_all_others():
    assert loaded("import rlinf.algorithms.losses") == {"rlinf.algorithms", "rlinf.algorithms.losses"}
    modules = loaded("from rlinf.algorithms.losses import PPOClip; PPOClip()")
    assert "rlinf.algorithms.losses.policy.gspo" not in modules
    assert "rlinf.algorithms.advantages.estimator" not in modules
    assert len(modules) <= 24


def test_a_verifier_that_counts_loads_no_torch():
    assert "torch" not in loaded("from rlinf.algorithms.rewards import Overlong; Overlong(max_length=4, cache=2)(['a b c'], [''])")


@pytest.mark.parametrize("package", PACKAGES, ids=lambda package: package.__name__)
def test_every_name_of_a_package_can_be_loaded_and_is_no_module(package):
    names = dir(package)
    assert names
    # A module's name would hide what is lazily loaded under the same one, as soon as anybody imports the module.
    assert not [name for name in names if inspect.ismodule(getattr(package, name))]
    assert not {name for name in names if (Path(package.__file__).parent / f"{name}.py").exists()}
    with pytest.raises(AttributeError, match=f"module '{package.__name__}' has no attribute 'nothing'"):
        package.nothing  # noqa: B018


def test_every_function_has_a_specification():
    assert len(PUBLIC) > 100
    assert set(PUBLIC) - set(functions(reference)) == READ_TEXTS


def test_the_specification_is_independent():
    for file in Path(reference.__file__).parent.glob("*.py"):
        assert not re.search(r"^\s*(import|from) (rlinf|torch)", file.read_text(), re.MULTILINE), file.name


@pytest.mark.parametrize("name", sorted(set(PUBLIC) - READ_TEXTS))
def test_a_specification_takes_what_the_function_takes(name):
    ours, theirs = (set(inspect.signature(f).parameters) for f in (PUBLIC[name], functions(reference)[name]))
    assert ours - theirs - NEVER_SPECIFIED == SAID_OTHERWISE.get(name, set())


@pytest.mark.parametrize("name", sorted(PUBLIC))
def test_what_is_public_is_explained(name):
    text = PUBLIC[name].__doc__
    if "Args:" not in text:  # another function by a name of its own, which it names
        assert set(re.findall(r"`(\w+)`", text)) & set(PUBLIC)
        return
    parameters = set(inspect.signature(PUBLIC[name]).parameters)
    assert {p for p in parameters if f"{p}:" not in text} == set()


def asks_the_policy(name):
    """Whether a loss asks the policy for more than scores; see `rlinf.core.capabilities.PolicyLoss`."""
    return hasattr(LOSSES.get(name), "of_policy")


@pytest.mark.parametrize(("registry", "name"), OURS, ids=lambda x: x if isinstance(x, str) else x.kind)
def test_what_is_registered_is_a_frozen_dataclass(registry, name):
    item = registry.get(name)
    assert is_dataclass(item)
    assert item.__dataclass_params__.frozen
    assert registry.get(name.upper()) is item
    if registry is ADVANTAGES:
        assert issubclass(item, Estimator)
    if registry is LOSSES:
        assert issubclass(item, PolicyLoss) or asks_the_policy(name)
    if all(f.default is not MISSING or f.default_factory is not MISSING for f in fields(item)) and name != "code":
        assert registry.build(name, {}, place=name) == item()


@pytest.mark.parametrize("name", [name for registry, name in OURS if registry is LOSSES and not asks_the_policy(name)])
def test_every_loss_keeps_the_contract(name):
    options = {"proximal": "interpolated"} if name.startswith("decoupled") else {}
    loss = LOSSES.build(name, options, place=name)

    def versioned(batch, evaluation):
        return loss(batch, type(evaluation)(**{f.name: getattr(evaluation, f.name) for f in fields(evaluation)} | {"version": 2}))

    LossContract(loss=versioned, as_array=torch.as_tensor).run()


def test_names_that_users_of_rlinf_know():
    for name in ("actor", "actor_critic", "decoupled_actor_critic", "opd"):
        assert issubclass(algorithms.get_policy_loss(name), PolicyLoss)
    for name in ("gae", "grpo", "grpo_video", "grpo_dynamic", "reinpp", "opd", "raw"):
        assert issubclass(algorithms.get_adv_and_returns(name), Estimator)
    for name in ("math", "vqa", "searchr1"):
        assert is_dataclass(algorithms.get_reward_class(name))
    one = torch.ones(1, 1)
    loss, metrics = policy_loss(loss_type="Actor", logprobs=0 * one, old_logprobs=0 * one, advantages=2 * one, loss_mask=one.bool())
    assert loss.item() == -2.0
    assert metrics["ratio"] == 1.0
