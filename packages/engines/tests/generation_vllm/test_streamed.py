"""What the engines over vLLM and SGLang share, with an engine that counts: a token is the number of those before it."""

import asyncio
import sys
import threading
import time

import pytest
import torch

from rlinf.core import SamplingConfig, Weights
from rlinf.core.errors import ConfigError, DeadlineExceeded, MissingExtra, RLinfError, WeightSyncError
from rlinf.engines.generation import SGLangGeneratorConfig, VLLMGeneratorConfig
from rlinf.engines.generation._engine import Asked, Piece, RequestFailed
from rlinf.engines.generation._served import Server, command_line
from rlinf.engines.generation._sglang import SGLangEngine
from rlinf.engines.generation._streamed import StreamedGenerator
from rlinf.engines.generation._weight_folder import WeightFolder

MANY = SamplingConfig(max_new_tokens=60)


class Counter:
    limit, vocabulary = 100, 1000

    def __init__(self, stuck=False, fails_at=None, holds_at=None):
        self.added, self.open, self.running, self.stuck, self.fails_at = 0, 0, True, stuck, fails_at
        self.asked, self.at, self.holds_at = [], 0, holds_at  # before that token it waits for other weights

    async def stream(self, asked):
        self.open += 1
        self.asked.append(asked)
        try:
            for at in range(len(asked.tokens), self.limit):
                await asyncio.sleep(1000 if self.stuck else 0.002)
                while at == self.holds_at:
                    await asyncio.sleep(0.002)
                if at == self.fails_at:
                    raise ConnectionResetError("gone")
                self.at = at
                yield Piece(tokens=[at + self.added], logprobs=[-0.5])
        finally:
            self.open -= 1

    async def pause(self):
        self.running = False

    async def resume(self):
        self.running = True

    async def update(self, tensors):
        assert not self.running
        assert not self.open
        self.added, self.holds_at = int(tensors["added"]), None

    async def close(self):
        assert not self.open

    def log_tail(self):
        return "it said so"


class Policy:
    network, temperature, version = None, 1.0, 4

    def load(self, weights):
        self.version = weights.version

    def network_weights(self, weights):
        return weights.tensors

    def save_network(self, folder):
        (folder / "config.json").write_text("{}")


def made(engine, timeout_s=20.0):
    async def start():
        return engine

    return StreamedGenerator(start(), 4, lambda weights: weights.tensors, timeout_s=timeout_s, start_timeout_s=20.0)


async def until(condition):
    async with asyncio.timeout(60):
        while not condition():
            await asyncio.sleep(0.001)


def test_tokens_are_of_the_weights_that_their_version_names():
    engine = Counter(holds_at=20)

    async def run():
        generator = made(engine)
        task = asyncio.create_task(generator.generate([1, 2, 3], MANY, seed=9))
        await until(lambda: engine.at > 4)
        await generator.load(Weights(tensors={"added": torch.tensor(500)}, version=5))
        assert generator.version == 5
        found = await task
        await generator.close()
        return found

    found = asyncio.run(run())
    old = found.version.tolist().count(4)
    assert 0 < old < 60
    assert found.version.tolist() == [4] * old + [5] * (60 - old)
    assert found.tokens.tolist() == [*range(3, 3 + old), *range(503 + old, 563)]
    assert [asked.written for asked in engine.asked] == [0, old]
    assert engine.asked[1].tokens == [1, 2, 3, *range(3, 3 + old)]


def test_a_stop_token_ends_and_a_partial_goes_on():
    async def run():
        generator = made(Counter())
        found = await generator.generate([1, 2, 3], SamplingConfig(max_new_tokens=60, stop_token_ids=(7,)), seed=0)
        assert (found.tokens.tolist(), found.finish) == ([3, 4, 5, 6, 7], "stop")
        more = await generator.generate([1, 2, 3], SamplingConfig(max_new_tokens=7), seed=0, partial=found)
        assert (more.tokens.tolist(), more.finish) == ([*range(3, 10)], "length")
        await generator.close()

    asyncio.run(run())


def test_while_paused_nothing_is_written_and_weights_can_be_loaded():
    engine = Counter(holds_at=20)

    async def run():
        generator = made(engine)
        task = asyncio.create_task(generator.generate([1], MANY, seed=0))
        await until(lambda: engine.open)
        await generator.pause()
        late = asyncio.create_task(generator.generate([1], SamplingConfig(max_new_tokens=1), seed=0))
        await generator.load(Weights(tensors={"added": torch.tensor(100)}, version=6))
        await asyncio.sleep(0.05)
        assert engine.open == 0
        assert not task.done()
        assert not late.done()
        assert generator.cached_tokens == 0
        await generator.resume()
        assert (await late).tokens.tolist() == [101]
        assert (await task).newest == 6
        assert generator.in_flight == 0
        await generator.close()

    asyncio.run(run())


def test_a_fault_reaches_all_who_wait_with_the_log():
    async def run():
        generator = made(Counter(fails_at=30))
        asked = [generator.generate([1] * length, MANY, seed=0) for length in (5, 9)]
        found = await asyncio.gather(*asked, return_exceptions=True)
        assert all(isinstance(error, RLinfError) and "it said so" in str(error) for error in found)
        with pytest.raises(RLinfError, match="gone"):
            await generator.load(Weights(tensors={}, version=5))
        await generator.close()

    asyncio.run(run())


def test_a_request_may_fail_alone():
    engine = Counter()
    stream = engine.stream

    async def one_fails(asked):
        if asked.seed == 7:
            raise RequestFailed(ConfigError("generate", "not that one"))
        async for piece in stream(asked):
            yield piece

    engine.stream = one_fails

    async def run():
        generator = made(engine)
        found = await asyncio.gather(*(generator.generate([1], MANY, seed=n) for n in (6, 7, 8)), return_exceptions=True)
        assert [type(one).__name__ for one in found] == ["Completion", "ConfigError", "Completion"]
        await generator.close()

    asyncio.run(run())


def test_weights_that_are_refused_leave_the_old_ones_at_work():
    async def refuse(tensors):
        raise WeightSyncError("load", "not those")

    async def run():
        engine = Counter()
        engine.update = refuse
        generator = made(engine)
        task = asyncio.create_task(generator.generate([1, 2, 3], MANY, seed=0))
        await asyncio.sleep(0.02)
        with pytest.raises(WeightSyncError, match="not those"):
            await generator.load(Weights(tensors={}, version=5))
        found = await task
        assert generator.version == 4
        assert found.tokens.tolist() == [*range(3, 63)]
        await generator.close()

    asyncio.run(run())


def test_after_an_update_that_nobody_waited_for_the_weights_are_unknown():
    async def run():
        engine = Counter()
        begun = []

        async def endless(tensors):
            begun.append(tensors)
            await asyncio.sleep(1000)

        engine.update = endless
        generator = made(engine)
        task = asyncio.create_task(generator.load(Weights(tensors={}, version=5)))
        await until(lambda: begun)
        task.cancel()
        await asyncio.wait([task])
        with pytest.raises(RLinfError, match="CancelledError"):
            await generator.generate([1], MANY, seed=0)
        await generator.close()

    asyncio.run(run())


def test_a_token_that_does_not_come_is_an_error_in_time():
    async def run():
        generator = made(Counter(stuck=True), timeout_s=0.2)
        with pytest.raises(DeadlineExceeded, match=r"did not come back with a token within 0\.2 s"):
            await generator.generate([1], MANY, seed=0)
        await generator.close()

    asyncio.run(run())


def test_an_abort_ends_what_was_asked_for_before_however_busy_the_loop_is():
    async def run():
        generator = made(Counter(holds_at=20))
        generator._loop.call_soon_threadsafe(time.sleep, 0.3)
        tasks = [asyncio.create_task(generator.generate([1], MANY, seed=0)) for _ in range(20)]
        await asyncio.sleep(0.05)
        generator.abort()
        assert {completion.finish for completion in await asyncio.gather(*tasks)} == {"abort"}
        await generator.close()

    asyncio.run(run())


def test_closing_hands_back_what_is_there_and_nobody_waits():
    async def run():
        generator = made(Counter(holds_at=20))
        tasks = [asyncio.create_task(generator.generate([1], MANY, seed=0)) for _ in range(20)]
        await asyncio.sleep(0.05)
        await generator.close()
        found = await asyncio.wait_for(asyncio.gather(*tasks), 60.0)
        assert {completion.finish for completion in found} == {"abort"}
        with pytest.raises(ConfigError, match="closed"):
            await generator.generate([1], MANY, seed=0)

    asyncio.run(run())


def test_a_server_that_dies_says_why(tmp_path):
    pytest.importorskip("aiohttp")

    async def run():
        program = "import sys; sys.exit('no memory left')"
        server = await Server.start([sys.executable, "-c", program], port=1, env={}, log=tmp_path / "log")
        with pytest.raises(RLinfError, match=r"its process exited with status 1(?s:.*)no memory left"):
            await asyncio.wait_for(server.up("/health"), 20.0)
        await server.close()

    asyncio.run(run())


def test_the_folder_holds_tied_weights_under_both_names(tmp_path):
    policy = Policy()
    policy.network = torch.nn.Linear(2, 2)
    folder = WeightFolder(policy, str(tmp_path))
    shared = torch.arange(4.0)
    folder.write({"head": shared, "embedding": shared, "turned": torch.arange(6.0).view(2, 3).T})
    import safetensors.torch

    found = safetensors.torch.load_file(folder.path / "model.safetensors")
    assert found["head"].tolist() == found["embedding"].tolist() == [0, 1, 2, 3]
    assert found["turned"].tolist() == [[0, 3], [1, 4], [2, 5]]
    folder.empty()
    assert [file.name for file in folder.path.iterdir()] == ["config.json"]
    folder.remove()
    assert not folder.path.exists()


def test_arguments_become_flags():
    found = command_line({"tp_size": 2, "eager": True, "prefix": False, "names": ["a", "b"]})
    assert found == ["--tp-size", "2", "--eager", "--no-prefix", "--names", "a", "b"]


@pytest.mark.parametrize("config", [VLLMGeneratorConfig, SGLangGeneratorConfig])
def test_what_can_not_be_is_refused_early(config, monkeypatch):
    for changed in ({"timeout_s": 0.0}, {"tensor_parallel_size": 0}, {"max_model_len": 1}):
        with pytest.raises(ConfigError, match=next(iter(changed))):
            config(**changed)
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(MissingExtra, match=r"rollout: .*For a GPU.*For a CPU"):
        config().check("rollout")


def test_a_start_that_takes_too_long_is_ended():
    begun, ended = threading.Event(), threading.Event()

    async def start():
        begun.set()
        try:
            await asyncio.sleep(1000)
        finally:
            await asyncio.sleep(0)  # as a process is waited for
            ended.set()

    with pytest.raises(DeadlineExceeded, match=r"did not start within 0\.5 s"):
        StreamedGenerator(start(), 4, lambda weights: weights.tensors, timeout_s=20.0, start_timeout_s=0.5)
    assert ended.is_set() or not begun.is_set()


def test_a_server_that_is_gone_is_the_cause_and_not_that_it_could_not_be_told():
    class Gone:
        closed = False

        async def events(self, path, body):
            try:
                yield {"meta_info": {"output_token_logprobs": [(-0.5, 3, None)]}}
                raise RLinfError(f"POST {path}", "the server is gone")
            finally:
                self.closed = True

        async def post(self, path, body):
            raise RLinfError(f"POST {path}", "there is nobody")

    async def run(server):
        engine = object.__new__(SGLangEngine)
        engine._server, engine._ids = server, iter(range(9))
        asked = Asked(tokens=[1], written=0, sampling=MANY, seed=0)
        with pytest.raises(RLinfError, match="POST /generate: the server is gone"):
            [piece async for piece in engine.stream(asked)]
        stream = engine.stream(asked)
        await anext(stream)
        server.closed = False
        await stream.aclose()
        return server.closed

    assert asyncio.run(run(Gone()))
