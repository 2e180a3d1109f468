"""The cameras of an observation."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from rlinf.core.data import EnvSpec
from rlinf.core.errors import ConfigError, did_you_mean

CAMERAS = ("main_images", "wrist_images", "extra_view_images")
"""The keys of images, in the order in which policies see them."""


@dataclass(frozen=True, slots=True)
class Camera:
    """A key of the observation with one view, or with several."""

    key: str
    """One of `CAMERAS`."""
    shape: tuple[int, ...]
    """`[H, W, 3]`, or `[V, H, W, 3]`."""

    @property
    def views(self) -> int:
        """How many images there are."""
        return self.shape[0] if len(self.shape) == 4 else 1

    @property
    def size(self) -> tuple[int, int]:
        """Height and width in pixels."""
        return self.shape[-3], self.shape[-2]


def cameras_of(spec: EnvSpec, keys: Sequence[str] | None, place: str) -> tuple[Camera, ...]:
    """The cameras that a policy looks through.

    Args:
        spec: of the environment.
        keys: which, some of `CAMERAS`; all that the environment has if None.
        place: the name of the policy, for messages.

    Raises:
        ConfigError: there is none, one is missing, or one has no images.
    """
    present = [key for key in CAMERAS if key in spec.observation]
    for key in keys if keys is not None else present:
        if key not in present:
            hint = did_you_mean(key, present, label="The environment has")
            raise ConfigError(f"{place}.cameras", f"no camera named '{key}'", hint)
    # In the order of CAMERAS, whatever that of the configuration is.
    chosen = present if keys is None else [key for key in present if key in keys]
    if not chosen:
        found = f"expected images under one of {', '.join(CAMERAS)}, found {sorted(spec.observation)}"
        raise ConfigError(place, found, "Choose an environment with cameras, or a policy of states.")
    cameras = tuple(Camera(key, tuple(spec.observation[key].shape)) for key in chosen)
    for camera in cameras:
        if len(camera.shape) not in (3, 4) or camera.shape[-1] != 3 or spec.observation[camera.key].dtype != "uint8":
            found = f"found {camera.shape} {spec.observation[camera.key].dtype}"
            raise ConfigError(f"{place}.{camera.key}", f"expected [H, W, 3] or [V, H, W, 3] uint8, {found}")
    return cameras
