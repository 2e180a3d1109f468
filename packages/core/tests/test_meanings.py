import dataclasses

import pytest

from rlinf.core.config import read
from rlinf.core.config.meanings import attributes, summary
from rlinf.core.errors import ConfigError


@dataclasses.dataclass(frozen=True)
class Optimizer:
    lr: float
    """The step size, such as
    1e-3. A schedule
    lowers it."""
    betas: tuple[float, float] = (0.9, 0.999)


@dataclasses.dataclass(frozen=True)
class Scheduled(Optimizer):
    betas: tuple[float, float] = (0.9, 0.95)
    """Decay of both moments."""
    warmup: int = 0


def test_a_field_means_what_its_docstring_says() -> None:
    assert attributes(Optimizer)["lr"].meaning == "The step size, such as 1e-3. A schedule lowers it."
    assert summary(Optimizer, "lr") == "The step size, such as 1e-3."
    assert summary(Optimizer, "betas") == summary(Optimizer, "no field") == ""


def test_inherited_fields_keep_their_meaning() -> None:
    found = attributes(Scheduled)
    assert list(found) == ["lr", "betas", "warmup"]
    assert found["lr"] == attributes(Optimizer)["lr"]
    assert found["betas"].meaning == "Decay of both moments."
    assert attributes(Optimizer)["betas"].meaning == "", "a class must not change what is known of its base"


def test_a_missing_key_is_told_with_its_meaning() -> None:
    with pytest.raises(ConfigError) as caught:
        read(Optimizer, {}, place="actor.optim")
    assert str(caught.value) == "actor.optim.lr: missing. Expected a number: The step size, such as 1e-3."


def test_a_class_without_source_still_refuses() -> None:
    made = dataclasses.make_dataclass("Made", [("lr", float)])
    assert attributes(made) == {}
    with pytest.raises(ConfigError, match=r"^lr: missing\. Expected a number\.$"):
        read(made, {})
