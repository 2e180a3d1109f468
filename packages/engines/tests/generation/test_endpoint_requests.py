"""Which models and parameters a request may name, as the stock `openai` client sees it."""

from __future__ import annotations

import openai
import pytest
from endpoint_toy import USER, Scripted, ask, talk

WITHOUT_EFFECT = {
    "n": 1,
    "user": "ann",
    "metadata": {"run": "7"},
    "store": True,
    "service_tier": "auto",
    "safety_identifier": "a",
    "prompt_cache_key": "b",
    "presence_penalty": 0.0,
    "logit_bias": {},
    "parallel_tool_calls": True,
    "modalities": ["text"],
    "response_format": {"type": "text"},
    "extra_body": {"top_k": -1, "min_p": 0.0, "repetition_penalty": 1.0, "ignore_eos": False, "guided_json": None},
}


def refused(status, **asked):
    """What a request is answered that ends in this error."""

    async def dialogue(client, endpoint):
        with pytest.raises(openai.APIStatusError) as error:
            await ask(client, [USER], **asked)
        assert not endpoint._sessions._other, "a request that is refused begins no session"
        return error.value

    error = talk(Scripted([]), dialogue)
    assert error.status_code == status
    return error


def test_parameters_that_change_nothing_are_taken():
    async def dialogue(client, endpoint):
        return await ask(client, [USER], **WITHOUT_EFFECT)

    assert talk(Scripted(["one<eos>"]), dialogue).choices[0].message.content == "one"


@pytest.mark.parametrize(
    ("name", "value", "code"),
    [
        ("max_token", 5, "unknown_parameter"),
        ("guided_json", {}, "unknown_parameter"),
        ("top_k", 20, "unsupported_parameter"),
        ("parallel_tool_calls", False, "unsupported_parameter"),
        ("reasoning_effort", "high", "unsupported_parameter"),
        ("audio", {"voice": "x"}, "unknown_parameter"),
    ],
)
def test_parameters_that_nothing_is_done_with_are_named(name, value, code):
    error = refused(400, extra_body={name: value})
    assert (error.param, error.code, error.type) == (name, code, "invalid_request_error")
    assert f"'{name}' is not supported: leave it out" in error.message


def test_a_model_that_is_not_there():
    error = refused(404, model="gpt-4o")
    assert (error.param, error.code, error.type) == ("model", "model_not_found", "invalid_request_error")
    assert "the model 'gpt-4o' does not exist; here is 'policy'" in error.message
    assert refused(400, extra_body={"model": 5}).param == "model"


def test_a_model_may_have_several_names_and_a_request_none():
    async def dialogue(client, endpoint):
        listed = [model.id async for model in client.models.list()]
        assert [(await client.models.retrieve(name)).id for name in listed] == listed
        with pytest.raises(openai.NotFoundError, match=r"'policy' does not exist; here is 'mine', 'org/gpt 4'"):
            await client.models.retrieve("policy")
        said = [await ask(client, [USER], model=name) for name in listed]
        said.append(await ask(client, [USER], extra_body={"model": None}))
        return listed, endpoint.model, [each.choices[0].message.content for each in said]

    generator = Scripted(["a<eos>", "b<eos>", "c<eos>"])
    listed, own, said = talk(generator, dialogue, model="mine", aliases=("org/gpt 4",))
    assert (listed, own, said) == (["mine", "org/gpt 4"], "mine", ["a", "b", "c"])
