"""Problems that show pictures, and who has to see them."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from rlinf.core.errors import ConfigError
from rlinf.runners.reasoning.language import check_images


@pytest.mark.parametrize("split", ["train", "validation"])
def test_a_generator_that_can_not_see_is_refused_whichever_split_shows_pictures(split: str) -> None:
    problems: Any = SimpleNamespace(image_processor=lambda asked: object() if asked == split else None)
    generator: Any = SimpleNamespace()
    with pytest.raises(ConfigError, match=r"rollout\.rollout_backend: SimpleNamespace can't read pictures"):
        check_images(problems, generator)
