"""Films of evaluations: which are made, and what that takes."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from rlinf.core.declarations import ChecksFilms
from rlinf.core.errors import ConfigError
from rlinf.core.protocols import EnvConfig
from rlinf.core.registry import require_modules
from rlinf.runners.config.schema import not_negative

FILMED: Final = "env.eval.video_cfg.save_video"
_OTHERWISE: Final = "set it to false"


@dataclass(frozen=True, slots=True, kw_only=True)
class VideoConfig:
    """`env.eval.video_cfg`."""

    save_video: bool = True
    """Whether a video of the last evaluation is made."""
    failures: int = 0
    """How many of the episodes that were not solved are played again at the end, each for a video of its own."""

    def __post_init__(self) -> None:
        not_negative(failures=self.failures)
        if self.failures and not self.save_video:
            raise ConfigError("failures", "nothing is filmed without save_video", "Set save_video: true.")


def check_films(films: VideoConfig, env: EnvConfig) -> None:
    """Refuses films without what makes them, here and where the environments are, for those of rlinf-envs; others are unknown.

    Raises:
        MissingExtra: a module is not installed.
        ConfigError: it is not installed for the interpreter of the environments.
    """
    if not films.save_video:
        return
    if type(env).__module__.startswith("rlinf.envs."):
        modules = ("PIL", "imageio", "imageio_ffmpeg")
        require_modules(*modules, place=FILMED, extra="rlinf-envs[video]", otherwise=_OTHERWISE)
    if isinstance(env, ChecksFilms):
        env.check_films(FILMED, _OTHERWISE)
