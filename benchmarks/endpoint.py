"""What the endpoint costs: one request through the stock client beside the same request to the generator itself.

uv run benchmarks/endpoint.py [--requests 200] [--repeats 3]

The generator answers at once, so that nothing is measured but the way there and back: rendering, HTTP, parsing, recording. The
stock client and the endpoint share one process and one event loop; `raw` sends the same bytes over a bare connection, which shows
what is the client's own.
"""

from __future__ import annotations

import argparse
import asyncio
import importlib
import json
import statistics
import sys
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import openai

from rlinf.core import SamplingConfig

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "packages/engines/tests/generation"))
toy: Any = importlib.import_module("endpoint_toy")

MESSAGES = [{"role": "user", "content": "say something " * 8}]
ANSWER = toy.written("an answer of some forty letters, more or less<eos>")


class AtOnce:
    """A generator that takes no time."""

    version = 0

    async def generate(self, prompt: Any, sampling: Any, **more: Any) -> Any:
        await asyncio.sleep(0)
        return ANSWER

    def abort(self, request_ids: Any = None) -> None: ...


async def timed(call: Callable[[int], Awaitable[Any]], requests: int, at_a_time: int) -> float:
    """Milliseconds of a request."""
    places = asyncio.Semaphore(at_a_time)

    async def one(number: int) -> None:
        async with places:
            await call(number)

    begin = time.perf_counter()
    await asyncio.gather(*(one(number) for number in range(requests)))
    return (time.perf_counter() - begin) * 1000 / requests


async def raw_client(base_url: str) -> Callable[[int], Awaitable[Any]]:
    """Requests over one bare connection."""
    host, port = base_url.removeprefix("http://").removesuffix("/v1").split(":")
    reader, writer = await asyncio.open_connection(host, int(port))
    lock = asyncio.Lock()

    async def ask(number: int) -> Any:
        body = json.dumps({"model": "policy", "messages": MESSAGES, "user": f"raw{number}"}).encode()
        async with lock:
            writer.write(b"POST /v1/chat/completions HTTP/1.1\r\ncontent-type: application/json\r\n")
            writer.write(b"content-length: " + str(len(body)).encode() + b"\r\n\r\n" + body)
            head = await reader.readuntil(b"\r\n\r\n")
            length = int(head.lower().split(b"content-length: ")[1].split(b"\r\n")[0])
            return json.loads(await reader.readexactly(length))

    return ask


async def measure(requests: int) -> dict[str, float]:
    """Milliseconds of a request, by way."""
    generator, sampling, tokenizer = AtOnce(), SamplingConfig(max_new_tokens=64), toy.CharTokenizer()

    async def directly(number: int) -> Any:
        text = tokenizer.apply_chat_template(MESSAGES, tokenize=False, add_generation_prompt=True)
        found = await generator.generate(tokenizer.encode(text), sampling, seed=number)
        return tokenizer.decode([int(token) for token in found.tokens])

    async with toy.serving(generator) as endpoint, openai.AsyncOpenAI(base_url=endpoint.base_url, api_key="none") as client:

        async def through(number: int) -> Any:
            return await client.chat.completions.create(model="policy", messages=MESSAGES, user=f"u{number}")  # type: ignore[arg-type]

        raw = await raw_client(endpoint.base_url)
        await timed(through, 20, 4)
        return {
            "generator": await timed(directly, requests, 1),
            "raw, one at a time": await timed(raw, requests, 1),
            "client, one at a time": await timed(through, requests, 1),
            "client, 32 at a time": await timed(through, requests, 32),
        }


def main() -> None:
    """Prints the median of each way over the repeats."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--requests", type=int, default=200)
    parser.add_argument("--repeats", type=int, default=3)
    args = parser.parse_args()
    found = [asyncio.run(measure(args.requests)) for _ in range(args.repeats)]
    for way in found[0]:
        values = [each[way] for each in found]
        print(f"{way:24} {statistics.median(values):8.3f} ms   ({min(values):.3f} to {max(values):.3f})")


if __name__ == "__main__":
    main()
