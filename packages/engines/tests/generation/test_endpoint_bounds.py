"""What an endpoint refuses, how it is bounded, whose session a request belongs to, and what comes over the wire."""

from __future__ import annotations

import asyncio

import openai
import pytest
import torch
from endpoint_toy import USER, CharTokenizer, Scripted, ask, marked, only, talk, toy_generator
from generation_toy import ToyWriter, noisy

from rlinf.core.agents import SessionConfig
from rlinf.core.errors import ConfigError, RLinfError
from rlinf.core.language.generation import SamplingConfig
from rlinf.engines.endpoint import OpenAIEndpointConfig, http_server
from rlinf.engines.endpoint.http_server import HTTPAnswer, HTTPServer

TOOL = {"type": "function", "function": {"name": "add", "description": "Adds.", "parameters": {"type": "object", "properties": {}}}}
CALLED = {"role": "assistant", "tool_calls": [{"id": "call_1", "type": "function", "function": {"name": "add", "arguments": "{}"}}]}

REFUSED = [
    ({"messages": []}, 400, "messages"),
    ({"messages": [{"role": "king", "content": "x"}]}, 400, "messages[0].role"),
    ({"messages": [USER, {"role": "assistant", "content": "x"}]}, 400, "messages"),
    ({"messages": [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "x"}}]}]}, 400, "messages[0].content"),
    ({"messages": [USER, {"role": "tool", "content": "5"}]}, 400, "messages[1].role"),
    ({"messages": [USER, CALLED, USER, {"role": "tool", "tool_call_id": "call_1", "content": "5"}]}, 400, "messages[3].role"),
    ({"messages": [USER, CALLED, {"role": "tool", "tool_call_id": "call_2", "content": "5"}]}, 400, "messages[2].tool_call_id"),
    ({"max_tokens": 0}, 400, "max_tokens"),
    ({"n": 0}, 400, "n"),
    ({"temperature": -1}, 400, "temperature"),
    ({"presence_penalty": 1}, 400, "presence_penalty"),
    ({"response_format": {"type": "json_object"}}, 400, "response_format"),
    ({"top_logprobs": 3}, 400, "top_logprobs"),
    ({"tools": [{"type": "function"}]}, 400, "tools"),
    ({"stop": [""]}, 400, "stop"),
    ({"messages": [{**CALLED, "tool_calls": 5}, USER]}, 400, "messages[0].tool_calls"),
    ({"messages": [{**CALLED, "tool_calls": [{**CALLED["tool_calls"][0], "id": []}]}, USER]}, 400, "messages[0].tool_calls"),
    ({"messages": [CALLED, {"role": "tool", "tool_call_id": {}, "content": "5"}]}, 400, "messages[1].tool_call_id"),
]


def test_what_can_not_be_answered_is_refused_by_name():
    async def dialogue(client, endpoint):
        found = []
        for body, status, param in REFUSED:
            with pytest.raises(openai.BadRequestError) as error:
                await ask(client, **{"messages": [USER], **body})
            found.append((error.value.status_code, error.value.param, status, param, error.value.type))
        return found, endpoint._sessions._other

    found, sessions = talk(Scripted([]), dialogue)
    for status, param, expected, named, kind in found:
        assert (status, param, kind) == (expected, named, "invalid_request_error")
    assert not sessions


def test_messages_that_are_too_long_are_refused_and_an_answer_ends_with_the_context():
    generator = Scripted(["x"], context_length=10)

    async def dialogue(client, endpoint):
        with pytest.raises(openai.BadRequestError, match="12 tokens, and the model reads and writes 10") as error:
            await ask(client, [{"role": "user", "content": "too long"[:7]}])
        await ask(client, [USER])
        return error.value.code

    assert talk(generator, dialogue) == "context_length_exceeded"
    assert [sampling.max_new_tokens for _, sampling, _ in generator.asked] == [3]


def test_a_failing_engine_is_not_asked_again_and_nothing_is_recorded():
    generator = Scripted([RLinfError("generate", "out of memory"), "x"])

    async def dialogue(client, endpoint):
        with pytest.raises(openai.InternalServerError, match="out of memory"):
            await ask(client.with_options(max_retries=2), [USER])
        return only(endpoint)

    session = talk(generator, dialogue)
    assert (session.turns, len(generator.asked), str(session.failure)) == (0, 1, "generate: out of memory")


def test_the_failure_of_one_of_several_choices_is_the_cause():
    class OneFails(Scripted):
        async def generate(self, *args, seed, request_id):
            if request_id.endswith("/1"):
                raise RLinfError("generate", "out of memory")
            await asyncio.Event().wait()

    async def dialogue(client, endpoint):
        with pytest.raises(openai.InternalServerError, match="out of memory"):
            await ask(client, [USER], n=2)

    talk(OneFails([]), dialogue)


def test_a_request_has_a_deadline():
    generator = Scripted(["x"], delay_s=30)

    async def dialogue(client, endpoint):
        with pytest.raises(openai.APIStatusError, match=r"no answer within request_timeout_s = 0\.05 s") as error:
            await ask(client, [USER])
        return error.value.status_code, only(endpoint).turns

    assert talk(generator, dialogue, request_timeout_s=0.05) == (504, 0)
    assert generator.cancelled == 1


def test_requests_are_bounded():
    generator = Scripted(["x<eos>"] * 6, go_on=asyncio.Event())

    async def dialogue(client, endpoint):
        asked = [asyncio.create_task(ask(client, [USER])) for _ in range(6)]
        await asyncio.wait(asked, timeout=60, return_when=asyncio.FIRST_COMPLETED)  # the one that is refused
        generator.go_on.set()
        answers = await asyncio.gather(*asked, return_exceptions=True)
        return [type(answer) for answer in answers]

    kinds = talk(generator, dialogue, max_concurrent=2, max_waiting=3)
    assert generator.most == 2
    assert kinds.count(openai.RateLimitError) == 1


@pytest.mark.parametrize("stream", [False, True])
def test_a_client_that_leaves_ends_its_request(stream):
    generator = Scripted(["x"], delay_s=30)

    async def dialogue(client, endpoint):
        async def read():
            answer = await ask(client, [USER], stream=stream)
            async for _ in answer:
                pass

        task = asyncio.create_task(read())
        while not generator.under_way:
            await asyncio.sleep(0.01)
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        await client.close()
        async with asyncio.timeout(60):
            while not (generator.cancelled and endpoint._places._value == 4):
                await asyncio.sleep(0.01)

    talk(generator, dialogue, max_concurrent=4)


def test_sessions_are_told_apart():
    """By address, header, user and key, in this order; an address that nobody opened is refused."""
    generator = Scripted([f"{n}<eos>" for n in range(5)])
    fixed = SessionConfig(sampling=SamplingConfig(max_new_tokens=4, temperature=0.5), fixed=True, seed=9)

    async def dialogue(client, endpoint):
        session = endpoint.open("episode-1", fixed)
        own = client.with_options(base_url=session.base_url, api_key=session.api_key)
        await ask(own, [USER], temperature=1.7, max_tokens=2, seed=3, user="bob")
        await ask(client, [USER], extra_headers={"x-session-id": "alice"}, user="bob")
        await ask(client, [USER], user="bob")
        await ask(client, [USER])
        await ask(client.with_options(api_key="other"), [USER])
        session.close()
        with pytest.raises(openai.NotFoundError, match="no session 'episode-1'"):
            await ask(own, [USER])
        with pytest.raises(ConfigError, match="expected letters"):
            endpoint.open("a/b", fixed)
        texts = {name: marked(each.branches()[0]) for name, each in endpoint._sessions._other.items()}
        return marked(session.branches()[0]), texts

    own, others = talk(generator, dialogue)
    assert own.endswith("(0<eos>)")
    assert [text[-8:] for text in others.values()] == ["(1<eos>)", "(2<eos>)", "(3<eos>)", "(4<eos>)"]
    assert list(others)[:2] == ["alice", "bob"]
    _, sampling, _ = generator.asked[0]
    assert (sampling.temperature, sampling.max_new_tokens) == (0.5, 2), "a policy in training is drawn from at one temperature"


def test_no_two_answers_are_drawn_from_the_same_numbers():
    generator = Scripted(["x"] * 5)

    async def dialogue(client, endpoint):
        for name in ("a", "a", "b"):
            await ask(client, [USER], user=name)
        await ask(client, [USER], user="c", n=2)

    talk(generator, dialogue)
    assert len({seed for _, _, seed in generator.asked}) == 5


def test_silent_sessions_are_forgotten():
    async def dialogue(client, endpoint):
        for name in "abc":
            await ask(client, [USER], user=name)
        return list(endpoint._sessions._other)

    assert talk(Scripted(["x"] * 3), dialogue, max_sessions=2) == ["b", "c"]


def test_plain_texts_follow_each_other():
    plain = SessionConfig(sampling=SamplingConfig(max_new_tokens=8), plain=True)

    async def dialogue(client, endpoint):
        (session,) = endpoint._sessions._opened.values()
        await ask(client, [{"role": "user", "content": "1+1="}], tools=[TOOL])
        said = [{"role": "user", "content": "1+1="}, {"role": "assistant", "content": "2"}, {"role": "user", "content": "3="}]
        await ask(client, said, tools=[TOOL])
        return session.branches()

    (branch,) = talk(Scripted(["2<eos>", "3<eos>"]), dialogue, session=("s", plain))
    assert marked(branch) == "1+1=(2<eos>)3=(3<eos>)"


def test_feedback_rewards_a_turn():
    async def dialogue(client, endpoint):
        first = await ask(client, [USER])
        await ask(client, [USER, {"role": "assistant", "content": "one"}, USER])
        given = await client.post("/feedback", cast_to=object, body={"id": first.id, "accepted": True})
        await client.post("/feedback", cast_to=object, body={"reward": -0.5})
        with pytest.raises(openai.NotFoundError, match="no answer 'chatcmpl-9'"):
            await client.post("/feedback", cast_to=object, body={"id": "chatcmpl-9", "reward": 1})
        with pytest.raises(openai.BadRequestError, match="finite"):
            await client.post("/feedback", cast_to=object, body={"id": first.id, "reward": "good"})
        return given, only(endpoint)

    given, session = talk(Scripted(["one<eos>", "two<eos>"]), dialogue)
    (branch,) = session.branches()
    assert [turn.reward for turn in branch.turns] == [1.0, -0.5]
    assert (given["reward"], session.rewards) == (1.0, 2)


def test_new_weights_arrive_while_a_request_is_under_way():
    """It is answered, and its tokens say which weights wrote them."""
    generator = toy_generator()
    weights = ToyWriter(vocab_size=len(CharTokenizer()), max_position_embeddings=512).weights()

    async def dialogue(client, endpoint):
        task = asyncio.create_task(ask(client, [USER], max_tokens=300, seed=4))
        while len(generator.progress("chatcmpl-00000001/0")) < 5:
            await asyncio.sleep(0)
        await generator.load(noisy(weights, 1))
        await task
        models = await client.models.list()
        return only(endpoint).branches()[0].turns[0].completion, models.data[0]

    torch.manual_seed(0)
    completion, model = talk(generator, dialogue)
    versions = completion.version.tolist()
    assert set(versions) == {0, 1}
    assert versions == sorted(versions)
    assert (model.id, model.version) == ("policy", 1)


def test_keys_and_addresses(monkeypatch):
    monkeypatch.setenv("ENDPOINT_KEY", "secret")

    async def dialogue(client, endpoint):
        with pytest.raises(openai.AuthenticationError):
            await ask(client, [USER])
        return (await ask(client.with_options(api_key="secret"), [USER])).choices[0].message.content

    assert talk(Scripted(["x<eos>"]), dialogue, api_key_env="ENDPOINT_KEY") == "x"
    with pytest.raises(ConfigError, match=r"expected an address of this machine alone, found '0\.0\.0\.0'"):
        OpenAIEndpointConfig(host="0.0.0.0")
    with pytest.raises(ConfigError, match="expected a key where other machines"):
        OpenAIEndpointConfig(host="0.0.0.0", allow_remote=True)
    monkeypatch.delenv("ENDPOINT_KEY")
    with pytest.raises(ConfigError, match="the environment has no ENDPOINT_KEY"):
        OpenAIEndpointConfig(api_key_env="ENDPOINT_KEY").check("agent.endpoint")


RAW = [
    (b"GET /v1/models HTTP/1.1\r\n\r\n", b"200 OK"),
    (b"GET /health HTTP/1.1\r\n\r\n", b"200 OK"),
    (b"nonsense\r\n\r\n", b"400 Bad Request"),
    (b"GET /elsewhere HTTP/1.1\r\n\r\n", b"404 Not Found"),
    (b"GET /v1/chat/completions HTTP/1.1\r\n\r\n", b"405 Method"),
    (b"POST /v1/chat/completions HTTP/1.1\r\ncontent-length: 2\r\n\r\n{}", b"415 Unsupported"),
    (b"POST /v1/chat/completions HTTP/1.1\r\ntransfer-encoding: chunked\r\n\r\n", b"411 Length"),
    (b"POST /v1/chat/completions HTTP/1.1\r\ncontent-length: 99999999\r\n\r\n", b"413 "),
    (b"POST /v1/chat/completions HTTP/1.1\r\ncontent-length: 2\r\ncontent-length: 3\r\n\r\n{}", b"400 Bad"),
    (b"GET / HTTP/1.1\r\nx: " + b"y" * 70000 + b"\r\n\r\n", b"431 "),
    (b"POST /v1/chat/completions HTTP/1.1\r\ncontent-type: application/json\r\ncontent-length: 2\r\n\r\n[]", b"400 Bad"),
    (b"POST /v1/chat/completions HTTP/1.1\r\ncontent-type: application/json\r\ncontent-length: 1\r\n\r\n{", b"400 Bad"),
]


def test_what_is_no_request_is_refused_and_the_next_connection_is_served():
    async def dialogue(client, endpoint):
        found = []
        host, port = endpoint.base_url.removeprefix("http://").removesuffix("/v1").split(":")
        for request, _ in RAW:
            reader, writer = await asyncio.open_connection(host, int(port))
            writer.write(request)
            found.append(await reader.readline())
            writer.close()
        return found

    for line, (request, expected) in zip(talk(Scripted([]), dialogue, max_request_bytes=1000), RAW, strict=True):
        assert expected in line, (request[:60], line)


@pytest.mark.parametrize("stream", [False, True])
def test_a_client_that_reads_nothing_of_its_answer_is_left(monkeypatch, stream):
    monkeypatch.setattr(http_server, "IDLE_S", 0.1)
    closed = asyncio.Event()

    async def events():
        try:
            while True:
                yield "x" * (1 << 20)
        finally:
            closed.set()

    async def handler(request):
        return HTTPAnswer(events=events()) if stream else HTTPAnswer(content="x" * (32 << 20))

    async def write_on(writer):
        while True:
            writer.write(b"x")
            await writer.drain()
            await asyncio.sleep(0.01)

    async def run():
        server = HTTPServer(handler, lambda status, problem: problem, max_bytes=1000, max_connections=1)
        _, writer = await asyncio.open_connection("127.0.0.1", await server.start("127.0.0.1", 0))
        writer.write(b"GET / HTTP/1.1\r\n\r\n")
        async with asyncio.timeout(60):
            while not server._connections:
                await asyncio.sleep(0.01)
            while server._connections:
                await asyncio.sleep(0.01)
            assert closed.is_set() == stream
            # Nothing is kept for it either.
            with pytest.raises(ConnectionResetError):
                await write_on(writer)
        await server.close()

    asyncio.run(run())
