"""The client against a server on the loopback: the contract, faults, and what may not leak."""

import asyncio
import time

import numpy as np
import pytest
from generation_toy import ToyWriter, noisy
from openai_server import KEY, LoopbackServer

from rlinf.core.errors import ConfigError, DeadlineExceeded, RLinfError
from rlinf.core.language.generation import SamplingConfig
from rlinf.core.testing import GeneratorContract
from rlinf.engines.generation import OpenAIGeneratorConfig

PROMPT = [5, 6, 7]


@pytest.fixture
def server(monkeypatch):
    monkeypatch.setenv("TOY_KEY", KEY)
    with LoopbackServer(ToyWriter()) as running:
        yield running


def client(server, policy=None, **changed):
    return OpenAIGeneratorConfig(base_url=server.url, model="toy", api_key_env="TOY_KEY", **changed).build(policy)


def write(generator, *, new=12, seed=3, **sampling):
    async def go():
        try:
            return await generator.generate(PROMPT, SamplingConfig(max_new_tokens=new, **sampling), seed=seed)
        finally:
            await generator.close()

    return asyncio.run(go())


def test_the_client_keeps_the_contract_with_a_server_that_takes_weights(server, tmp_path):
    policy = ToyWriter()

    async def go():
        config = {"update_path": "/update_weights_from_disk", "update_folder": str(tmp_path), "max_retries": 0}
        generator = client(server, policy, **config)
        fields = {"score": ToyWriter().score, "vocabulary": 64, "max_model_len": 128, "draws": 128}
        # At half the temperature the server would report what it had before: the client refuses it.
        findings = await GeneratorContract(generator=generator, update=policy.updated, **fields).examine()
        return {finding.sentence: finding.error for finding in findings if finding.error is not None}

    failed = asyncio.run(go())
    assert list(failed) == ["temperature divides the logits"], failed
    assert isinstance(failed["temperature divides the logits"], ConfigError)
    until = time.monotonic() + 60
    while not server.hung_up and time.monotonic() < until:  # its threads notice when they write the next part
        time.sleep(0.01)
    assert server.hung_up > 0


def test_a_lost_connection_goes_on_from_what_was_written(server):
    whole = write(client(server))
    server.cut = [5]
    found = write(client(server), temperature=0.0)
    assert len(found) == len(whole) == 12
    asked = [body for _, body in server.seen[1:]]
    assert [len(body["prompt"]) + body["max_tokens"] for body in asked] == [15, 15]
    assert asked[1]["prompt"] == [*PROMPT, *found.tokens[:7].tolist()]
    np.testing.assert_array_equal(found.tokens, ToyWriter().score(PROMPT, found.tokens.tolist())[1])


@pytest.mark.parametrize("status", [429, 503])
def test_a_busy_server_is_asked_again_so_often_and_no_more(server, status):
    server.faults = [status]
    assert len(write(client(server, max_retries=1))) == 12
    server.faults = [status] * 9
    with pytest.raises(RLinfError, match="busy"):
        write(client(server, max_retries=1))
    assert len(server.faults) == 7


def test_a_wrong_key_is_refused_and_never_shown(server, monkeypatch, caplog):
    monkeypatch.setenv("TOY_KEY", "sk-wrong-but-secret")
    generator = client(server)
    with caplog.at_level("DEBUG"), pytest.raises(ConfigError, match=r"refuses: AuthenticationError.*\*\*\*") as raised:
        write(generator)
    shown = f"{raised.value!r} {raised.value.__cause__} {raised.value.__context__ if not raised.value.__suppress_context__ else ''}"
    assert "sk-wrong" not in shown + caplog.text + repr(generator)


def test_without_a_key_nothing_is_hidden(server):
    generator = OpenAIGeneratorConfig(base_url=server.url, model="toy").build(None)
    with pytest.raises(ConfigError, match=r"wrong key: Bearer none"):
        write(generator)


def test_a_missing_key_is_refused_early():
    config = OpenAIGeneratorConfig(base_url="http://127.0.0.1:1/v1", model="toy", api_key_env="NO_SUCH_KEY")
    with pytest.raises(ConfigError, match=r"rollout\.api_key_env: the environment has no NO_SUCH_KEY"):
        config.check("rollout")


def test_a_server_without_token_ids_is_refused(server):
    server.plain = True
    with pytest.raises(RLinfError, match="return_token_ids"):
        write(client(server))


def test_a_server_that_does_not_answer_fails_in_time(server):
    async def silence(*_):
        await asyncio.sleep(3)

    server.write = silence
    with pytest.raises(DeadlineExceeded, match=r"did not come back with a token within 0\.3 s"):
        write(client(server, timeout_s=0.3, max_retries=0))


def test_weights_are_refused_without_an_update_endpoint(server):
    policy = ToyWriter()
    with pytest.raises(ConfigError, match="update endpoint is not configured"):
        asyncio.run(client(server, policy).load(noisy(policy.weights(), 1)))


def test_processed_logprobs_are_used_at_any_temperature_but_not_with_cuts(server):
    assert len(write(client(server, tempered_logprobs=True), temperature=0.5)) == 12
    with pytest.raises(ConfigError, match="renormalise"):
        write(client(server, tempered_logprobs=True), top_p=0.5)


@pytest.mark.parametrize(
    ("changed", "match"),
    [
        ({"base_url": "ftp://x"}, "base_url"),
        ({"timeout_s": 0.0}, "timeout_s"),
        ({"max_retries": -1}, "max_retries"),
        ({"update_path": "/x"}, "update_path"),
    ],
)
def test_values_that_make_no_sense_are_refused(changed, match):
    with pytest.raises(ConfigError, match=match):
        OpenAIGeneratorConfig(**{"base_url": "http://x", "model": "toy", **changed})
