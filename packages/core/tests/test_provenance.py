"""Where values came from."""

from dataclasses import dataclass, field
from typing import Any

import pytest

from rlinf.core.config import explain
from rlinf.core.config.provenance import DROPPED, flatten, origin
from rlinf.core.errors import UnknownName


@dataclass(frozen=True)
class Optimizer:
    lr: float = 1e-3
    betas: tuple[float, float] = (0.9, 0.999)


@dataclass(frozen=True)
class Config:
    optimizer: Optimizer = field(default_factory=Optimizer)
    extra: dict[str, Any] = field(default_factory=dict[str, Any])
    seed: int = 0


PROVENANCE = {"optimizer.lr": "command line", "optimizer": "ppo.yaml", "seed": "ppo.yaml"}


def test_flatten() -> None:
    assert flatten(Config(extra={"a": {"b": 1}})) == {
        "optimizer.lr": 1e-3,
        "optimizer.betas": (0.9, 0.999),
        "extra.a.b": 1,
        "seed": 0,
    }
    assert flatten(Config())["extra"] == {}


def test_origin_is_that_of_the_nearest_section() -> None:
    assert origin(PROVENANCE, "optimizer.lr") == "command line"
    assert origin(PROVENANCE, "optimizer.betas") == "ppo.yaml"
    assert origin(PROVENANCE, "extra") == "default of the schema"


def test_explain_a_value_a_section_and_everything() -> None:
    assert explain(Config(), PROVENANCE, "optimizer.lr") == "optimizer.lr = 0.001  (command line)"
    assert explain(Config(), PROVENANCE, "optimizer").splitlines() == [
        "optimizer.lr = 0.001  (command line)",
        "optimizer.betas = (0.9, 0.999)  (ppo.yaml)",
    ]
    assert len(explain(Config(), PROVENANCE, "").splitlines()) == 4


def test_explain_of_an_unknown_key_has_the_nearest() -> None:
    with pytest.raises(UnknownName, match=r"optimizer\.lrr: no such key in the configuration\. Did you mean 'optimizer\.lr'\?"):
        explain(Config(), PROVENANCE, "optimizer.lrr")


@pytest.mark.parametrize(
    ("key", "meant", "listed"),
    [
        ("some.unknown", "", "Keys: extra, optimizer, seed"),
        ("optimzer", "Did you mean 'optimizer'? ", "Keys: extra, optimizer, seed"),
        ("optimizer.rate", "", "Keys of optimizer: betas, lr"),
        ("actor.lr", "Did you mean 'optimizer.lr'? ", "Keys: extra, optimizer, seed"),
        ("optimizer.lr.x", "Did you mean 'optimizer.lr'? ", "Keys of optimizer: betas, lr"),
    ],
)
def test_an_unknown_key_lists_the_keys_of_its_section_alone(key: str, meant: str, listed: str) -> None:
    with pytest.raises(UnknownName) as caught:
        explain(Config(), PROVENANCE, key)
    said = f"{key}: no such key in the configuration. {meant}{listed}. The name of a section lists all below it."
    assert str(caught.value) == said


def test_explain_tells_what_was_dropped() -> None:
    provenance = {"env.init_params.task_id": f"{DROPPED}'gymnasium' has no such parameter (a.yaml)"}
    config = {"env": {"env_type": "gymnasium", "init_params": {}}}
    said = explain(config, provenance, "env")
    assert said.splitlines()[-1] == "env.init_params.task_id: dropped, 'gymnasium' has no such parameter (a.yaml)"
    assert explain(config, provenance, "env.init_params.task_id") == said.splitlines()[-1]
    assert "dropped" not in explain(config, provenance, "env.env_type")
