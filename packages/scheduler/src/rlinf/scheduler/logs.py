"""Each worker's own log file."""

from __future__ import annotations

import logging
from pathlib import Path


def write_log(logger_name: str, log_dir: str | None, group: str, rank: int) -> logging.Handler | None:
    """Sends a logger and those below it to `<log_dir>/workers/<group>_<rank>.log`; None without a folder."""
    if log_dir is None:
        return None
    folder = Path(log_dir) / "workers"
    folder.mkdir(parents=True, exist_ok=True)
    handler = logging.FileHandler(folder / f"{group}_{rank}.log")
    handler.setFormatter(logging.Formatter("%(asctime)s %(levelname)s %(name)s: %(message)s"))
    logger = logging.getLogger(logger_name)
    logger.addHandler(handler)
    if logger.getEffectiveLevel() > logging.INFO:
        logger.setLevel(logging.INFO)
    return handler
