"""The command line of conversions."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path
from tempfile import TemporaryFile

from rlinf.core.config.arguments import ArgumentParser, key_value
from rlinf.core.errors import CheckpointError, ConfigError, did_you_mean
from rlinf.models.conversion.public_names import formats


def convert(args: Sequence[str]) -> int:
    """Writes a checkpoint in another format: `rlinf convert <source> <target> --to FORMAT [--like FOLDER] [key=value …]`."""
    known = formats()
    parser = ArgumentParser(prog="rlinf convert", description="Writes a checkpoint in another format.")
    parser.add_argument("source", type=Path, help="a run, a global_step_N, a saved policy, weights, or another project's folder")
    parser.add_argument("target", type=Path, help="where; it is made")
    parser.add_argument("--to", required=True, metavar="FORMAT", help=", ".join(known))
    parser.add_argument("--like", type=Path, metavar="FOLDER", help="a folder of that format, for its other files, names and types")
    parser.add_argument("--overwrite", action="store_true", help="replace an older checkpoint")
    parser.add_argument(
        "params", nargs="*", default=[], metavar="key=value", help="of the format, such as tensor_model_parallel_size=2"
    )
    # `parse_args` refuses key=value behind an option.
    given = parser.parse_intermixed_args(list(args))
    if given.to not in known:
        raise ConfigError("--to", f"no format '{given.to}'", did_you_mean(given.to, known, label="Formats"))
    _refuse_paths(given.source.expanduser(), given.target.expanduser(), overwrite=given.overwrite)
    if given.like is not None and not given.like.expanduser().is_dir():
        raise ConfigError("--like", f"there is no folder '{given.like}'", "Name a folder of the format that is written.")
    # What reads and writes imports torch, for which help and a mistyped option need not wait.
    from safetensors import SafetensorError

    from rlinf.models.conversion.sources import find_source
    from rlinf.models.conversion.targets import Request, write_target

    source = find_source(given.source)
    params = dict(key_value(each, place="rlinf convert", example="hidden_sizes=[32,32]") for each in given.params)
    request = Request(
        source=source, target=given.target.expanduser(), to=given.to, like=given.like, params=params, overwrite=given.overwrite
    )
    try:
        written = write_target(request)
    except (OSError, SafetensorError) as error:
        # The file that it names is a temporary one.
        reason = error.strerror or error if isinstance(error, OSError) else error
        raise CheckpointError(str(request.target), f"can't be written ({reason})", "Make room, or name another place.") from error
    sys.stdout.write(f"{source.described} at {source.path}\n{given.target}: {written.tensors} tensors as {given.to}\n")
    if written.left_out:
        sys.stdout.write(f"left out, as the format has no place for them: {', '.join(written.left_out)}\n")
    return 0


def _refuse_paths(source: Path, target: Path, *, overwrite: bool) -> None:
    """Refuses what can be seen at once: no source, or a target that is there or can't be made."""
    if not source.exists():
        raise ConfigError("SOURCE", f"there is nothing at '{source}'", "Name a run, a checkpoint, weights, or a folder of them.")
    if target.exists() and not overwrite:
        raise ConfigError("TARGET", f"'{target}' is there already", "Name another place, or set --overwrite.")
    parent = next(each for each in target.absolute().parents if each.exists())
    try:
        # What a system says of rights is not all: nobody writes to /proc, and nothing below a file.
        with TemporaryFile(dir=parent):
            pass
    except OSError as error:
        problem = f"'{target}' can't be made, as '{parent}' is {'not writable' if parent.is_dir() else 'no folder'}"
        raise ConfigError("TARGET", problem, "Name another place.") from error
