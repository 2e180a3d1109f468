"""A server of OpenAI's completions on the loopback, around a tiny engine, with the extensions that the client needs."""

from __future__ import annotations

import asyncio
import json
import threading
from concurrent.futures import Future
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

from safetensors.torch import load_file

from rlinf.core import Weights
from rlinf.core.errors import ConfigError
from rlinf.core.language.generation import SamplingConfig
from rlinf.engines.generation import HFGeneratorConfig

KEY = "sk-loopback-secret"
PART = 3
"""Tokens in one part of the stream."""


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def log_message(self, *args):
        pass

    def answer(self, status, body):
        data = json.dumps(body).encode()
        self.send_response(status)
        self.send_header("content-type", "application/json")
        self.send_header("content-length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def do_POST(self):
        body = json.loads(self.rfile.read(int(self.headers["content-length"])))
        server = self.server.owner
        server.seen.append((self.path, body))
        if self.headers["authorization"] != f"Bearer {KEY}":
            self.answer(401, {"error": {"message": f"wrong key: {self.headers['authorization']}"}})
        elif server.faults:
            self.answer(server.faults.pop(0), {"error": {"message": "busy"}})
        elif self.path == "/update_weights_from_disk":
            server.run(server.update(Path(body["model_path"])))
            self.answer(200, {"success": True})
        else:
            self.complete(server, body)

    def complete(self, server, body):
        try:
            written = server.run(server.write(body, 1, None))
        except ConfigError as error:
            self.answer(400, {"error": {"message": str(error)}})
            return
        self.send_response(200)
        self.send_header("content-type", "text/event-stream")
        self.send_header("connection", "close")
        self.end_headers()
        self.close_connection = True
        sent = 0
        try:
            while True:
                self.part(written, sent, server)
                sent = len(written)
                if written.finish == "stop" or sent == body["max_tokens"]:
                    self.wfile.write(b"data: [DONE]\n\n")
                    return
                if server.cut and sent > server.cut[0]:
                    server.cut.clear()
                    return
                written = server.run(server.write(body, min(sent + PART, body["max_tokens"]), written))
        except (BrokenPipeError, ConnectionResetError):
            server.hung_up += 1

    def part(self, written, sent, server):
        choice = {"index": 0, "text": "", "finish_reason": None}
        choice["logprobs"] = {"token_logprobs": written.logprob[sent:].tolist()}
        if not server.plain:
            choice["token_ids"] = written.tokens[sent:].tolist()
        chunk = {"id": "x", "object": "text_completion", "created": 0, "model": "toy", "choices": [choice]}
        self.wfile.write(f"data: {json.dumps(chunk)}\n\n".encode())
        self.wfile.flush()


class HTTPServer(ThreadingHTTPServer):
    request_queue_size = 256
    daemon_threads = True


class LoopbackServer:
    """`with LoopbackServer(policy) as server: server.url`."""

    def __init__(self, policy):
        self.policy = policy
        self.engine = HFGeneratorConfig(max_model_len=128).build(policy)
        self.seen, self.faults, self.cut, self.plain, self.hung_up = [], [], [], False, 0

    def __enter__(self):
        self.loop = asyncio.new_event_loop()
        self.http = HTTPServer(("127.0.0.1", 0), Handler)
        self.http.owner = self
        self.threads = [threading.Thread(target=run, daemon=True) for run in (self.loop.run_forever, self.http.serve_forever)]
        for thread in self.threads:
            thread.start()
        self.url = f"http://127.0.0.1:{self.http.server_port}/v1"
        return self

    def __exit__(self, *error):
        self.http.shutdown()
        self.http.server_close()
        self.loop.call_soon_threadsafe(self.loop.stop)
        for thread in self.threads:
            thread.join(10)
        self.loop.close()

    def run(self, coroutine):
        future: Future = asyncio.run_coroutine_threadsafe(coroutine, self.loop)
        return future.result(60)

    async def write(self, body, new, partial):
        whole = SamplingConfig(max_new_tokens=body["max_tokens"])
        if partial is None:
            self.engine._limit >= len(body["prompt"]) + whole.max_new_tokens or self.refuse()
        sampling = SamplingConfig(
            max_new_tokens=new,
            temperature=body["temperature"],
            top_p=body["top_p"],
            top_k=body.get("top_k"),
            stop_token_ids=tuple(body["stop_token_ids"]),
        )
        return await self.engine.generate(body["prompt"], sampling, seed=body["seed"], partial=partial)

    def refuse(self):
        raise ConfigError("prompt", "too long")

    async def update(self, folder):
        tensors = {f"network.{name}": tensor for name, tensor in load_file(folder / "model.safetensors").items()}
        await self.engine.load(Weights(tensors=tensors, version=0))
