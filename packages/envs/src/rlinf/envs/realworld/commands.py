"""`rlinf robot`: serves a robot, shows it, stops it, and lets a person act."""

from __future__ import annotations

import argparse
import signal
import sys
from collections.abc import Sequence
from typing import Any

from rlinf.core.config import read
from rlinf.core.config.arguments import ArgumentParser, key_value
from rlinf.envs.realworld.client import ControllerClient, RobotState
from rlinf.envs.realworld.server import LOOPBACK, Serving


def robot(args: Sequence[str]) -> int:
    """Drives a robot, shows and stops it: `rlinf robot serve simulated_franka --port 7000`.

    And then `rlinf robot state|stop|recover|console 127.0.0.1:7000`.
    """
    parser = ArgumentParser(prog="rlinf robot", description="A robot's controller, and those who use it.")
    parts = parser.add_subparsers(dest="part", required=True)
    serve = parts.add_parser("serve", help="drive a robot, beside it, for whoever connects")
    serve.add_argument("robot", help="a registered robot, or module:attr of its configuration")
    serve.add_argument(
        "params",
        nargs="*",
        default=[],
        metavar="key=value",
        help="its fields; clock=…, controller.key=…, link.key=… are of its controller",
    )
    serve.add_argument("--host", default=LOOPBACK, help="where to listen; whoever reaches it can move the arm (%(default)s)")
    serve.add_argument("--port", type=int, default=7000, help="0 for a free one (%(default)s)")
    for name, about in (
        ("state", "what the arm is like now"),
        ("stop", "stop it, until it is told to recover"),
        ("recover", "let it move again after a stop"),
        ("console", "act by keyboard or SpaceMouse in place of the policy, say success, stop"),
    ):
        parts.add_parser(name, help=about).add_argument("address", help="host:port of its controller")
    # Options and fields may come in any order, which a subparser does not know.
    given, rest = parser.parse_known_args(list(args))
    if given.part == "serve":
        return _serve(given, [*given.params, *rest])
    if rest:
        parser.error(f"unrecognized arguments: {' '.join(rest)}")
    client = ControllerClient(given.address)
    try:
        if given.part == "console":
            from rlinf.envs.realworld.console import run_console

            return run_console(client)
        _tell({"state": client.state, "recover": client.recover}.get(given.part, lambda: client.stop("rlinf robot stop"))())
    finally:
        client.close()
    return 0


def _serve(given: argparse.Namespace, params: Sequence[str]) -> int:
    section: dict[str, Any] = {"robot": given.robot, "host": given.host, "port": given.port, "params": {}}
    for word in params:
        key, value = key_value(word, place="robot", example="controller.rate_hz=100")
        *path, name = key.split(".")
        inner = section if path[:1] in (["controller"], ["link"]) or name == "clock" else section["params"]
        for part in path:
            inner = inner.setdefault(part, {})
        inner[name] = value
    server = read(Serving, section, place="robot").built()
    sys.stdout.write(f"{given.robot} at {server.address}, {server.controller.config.rate_hz:g} Hz; Ctrl-C ends it\n")
    sys.stdout.flush()

    # However it is told to end, the arm brakes first: `close` waits for threads, which may wait for a lock that `serve` holds.
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        server.serve()
    except KeyboardInterrupt:
        server.close()
    return 0


def _tell(state: RobotState) -> None:
    x, y, z = state.position
    doing = f"stopped: {state.stopped}" if state.stopped else "holds" if state.holding else "moves"
    sys.stdout.write(f"{doing}; tool at {x:.3f} {y:.3f} {z:.3f} m\n")
    counted = ", ".join(f"{name} {count}" for name, count in state.counts.items())
    sys.stdout.write(f"limits met and stops so far: {counted}; it last stood still {state.stop_s * 1000:.0f} ms after a command\n")
