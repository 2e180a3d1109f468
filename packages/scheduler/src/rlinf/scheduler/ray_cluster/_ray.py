"""Ray itself: its settings, which it reads when it is imported, and its start."""

from __future__ import annotations

import logging
import os
from typing import Any

from rlinf.core.errors import ConfigError

# Ray's hook for `uv run` would pack the working directory and build an environment for each worker; ours run in the driver's own.
os.environ.setdefault("RAY_ENABLE_UV_RUN_RUNTIME_ENV", "0")
os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")

import ray as _ray

ray: Any = _ray
"""Untyped, as most of Ray is."""

OBJECT_STORE_BYTES = 256 << 20


def start_or_join(address: str | None, namespace: str) -> None:
    """Joins the Ray at `address` or `RAY_ADDRESS`; without either, starts one on the loopback interface.

    Raises:
        ConfigError: there is no Ray at the address.
    """
    at = address or os.environ.get("RAY_ADDRESS")
    options: dict[str, Any] = {"namespace": namespace, "log_to_driver": False, "logging_level": logging.ERROR}
    logger = logging.getLogger("ray")
    level = logger.level
    logger.setLevel(logging.ERROR)
    try:
        if at is None or at == "local":
            ray.init(
                address="local",
                include_dashboard=False,
                num_gpus=0,
                object_store_memory=OBJECT_STORE_BYTES,
                _node_ip_address="127.0.0.1",
                **options,
            )
        else:
            ray.init(address=at, **options)
    except ConnectionError as error:
        remedy = "Start one with `ray start --head`, or leave the address out."
        raise ConfigError("cluster.address", f"no Ray answers at '{at}'", remedy) from error
    finally:
        logger.setLevel(level)
