"""The endpoint as the stock `openai` client sees it, and what is recorded: exact tokens, turns, branches, versions."""

from __future__ import annotations

import asyncio
import json
from types import SimpleNamespace

import numpy as np
import pytest
from endpoint_toy import USER, CharTokenizer, HermesLike, Scripted, Unhurried, ask, marked, only, talk, toy_generator, written
from generation_toy import ToyWriter

TOOL = {
    "type": "function",
    "function": {
        "name": "add",
        "description": "Adds.",
        "parameters": {"type": "object", "properties": {"x": {"type": "integer"}}, "required": ["x"]},
    },
}
CALL = '<call>{"name": "add", "arguments": {"x": 1}}</call>'


def test_an_answer_of_a_real_model_is_recorded_token_by_token():
    """The trainer's own forward pass says of every recorded token what the record says, and the client sees their text."""

    async def dialogue(client, endpoint):
        answer = await ask(client, [USER], max_tokens=9, seed=5, temperature=1.0, logprobs=True)
        again = await ask(client, [USER], max_tokens=9, seed=5, temperature=1.0)
        return answer, again, only(endpoint).branches()

    answer, again, branches = talk(toy_generator(), dialogue)
    turn = branches[0].turns[0]
    tokens = turn.completion.tokens
    assert CharTokenizer().decode(turn.prompt) == "u:go\na:"
    expected, _ = ToyWriter(vocab_size=len(CharTokenizer()), max_position_embeddings=512).score(turn.prompt, tokens.tolist())
    np.testing.assert_allclose(turn.completion.logprob, expected, atol=1e-4)
    choice = answer.choices[0]
    assert choice.message.content == CharTokenizer().decode(tokens.tolist(), skip_special_tokens=True)
    assert [entry.logprob for entry in choice.logprobs.content] == pytest.approx(turn.completion.logprob.tolist())
    assert (answer.usage.prompt_tokens, answer.usage.completion_tokens) == (len(turn.prompt), len(tokens))
    assert again.choices[0].message.content == choice.message.content
    assert len(branches) == 2, "equal requests are two answers"


def test_a_conversation_goes_on_from_the_tokens_that_were_written():
    """The model's odd spelling of a call is kept, though the client sends the call back as JSON of its own."""
    odd = 'so <call>{"arguments": {"x":1},   "name": "add"}</call><eos>'
    generator = Scripted([odd, "2<eos>"])

    async def dialogue(client, endpoint):
        first = await ask(client, [USER], tools=[TOOL])
        message = first.choices[0].message
        call = message.tool_calls[0]
        back = {"role": "tool", "tool_call_id": call.id, "content": "2"}
        second = await ask(client, [USER, message.model_dump(exclude_none=True), back], tools=[TOOL])
        return first, second, only(endpoint).branches()

    first, second, branches = talk(generator, dialogue)
    message = first.choices[0].message
    assert (first.choices[0].finish_reason, message.content) == ("tool_calls", "so")
    assert (message.tool_calls[0].function.name, json.loads(message.tool_calls[0].function.arguments)) == ("add", {"x": 1})
    assert (second.choices[0].message.content, second.choices[0].finish_reason) == ("2", "stop")
    (branch,) = branches
    assert marked(branch) == f"s:tools add\nu:go\na:({odd})\nu:[2]\na:(2<eos>)"
    assert [result.text for result in branch.turns[0].results] == ["2"]
    assert branch.turns[0].calls[0].arguments == {"x": 1}


def test_what_diverges_is_a_branch_that_inherits():
    generator = Scripted(["one<eos>", "two<eos>", "three<eos>", "four<eos>"])

    async def dialogue(client, endpoint):
        await ask(client, [USER])
        said = [USER, {"role": "assistant", "content": " one "}]  # clients trim and pad
        await ask(client, [*said, {"role": "user", "content": "b"}])
        await ask(client, [*said, {"role": "user", "content": "c"}])
        await ask(client, [USER, {"role": "assistant", "content": "One"}, {"role": "user", "content": "d"}])
        return only(endpoint).branches()

    found = [marked(branch) for branch in talk(generator, dialogue)]
    assert found == [
        "u:go\na:(one<eos>)\nu:b\na:(two<eos>)",
        "u:go\na:{one<eos>}\nu:c\na:(three<eos>)",
        "u:go\na:One<eos>\nu:d\na:(four<eos>)",
    ], "the last one's client has rewritten what was said: it is read, not trained on"


def test_a_template_that_changes_what_was_said_begins_a_branch():
    tokenizer = CharTokenizer()
    tokenizer.trims = True

    async def dialogue(client, endpoint):
        first = await ask(client, [USER])
        await ask(client, [USER, {"role": "assistant", "content": first.choices[0].message.content}, USER])
        return only(endpoint).branches(), only(endpoint).rendered_anew

    branches, anew = talk(Scripted([" one<eos>", "two<eos>"]), dialogue, tokenizer=tokenizer)
    assert [marked(branch) for branch in branches] == ["u:go\na:( one<eos>)", "u:go\na:one<eos>\nu:go\na:(two<eos>)"]
    assert anew == 1


def test_several_choices_are_siblings():
    async def dialogue(client, endpoint):
        answer = await ask(client, [USER], n=2)
        await ask(client, [USER, {"role": "assistant", "content": "two"}, USER])
        return [choice.message.content for choice in answer.choices], only(endpoint).branches()

    texts, branches = talk(Scripted(["one<eos>", "two<eos>", "x<eos>"]), dialogue)
    assert texts == ["one", "two"]
    assert [marked(each) for each in branches] == ["u:go\na:(one<eos>)", "u:go\na:(two<eos>)\nu:go\na:(x<eos>)"]


def test_a_text_that_stops_cuts_tokens_and_is_not_shown():
    async def dialogue(client, endpoint):
        answer = await ask(client, [USER], stop=["END", "zz"])
        return answer.choices[0], only(endpoint).branches()[0].turns[0].completion

    choice, completion = talk(Scripted([written("abENDcd", "length")]), dialogue)
    assert (choice.message.content, choice.finish_reason) == ("ab", "stop")
    assert CharTokenizer().decode(completion.tokens.tolist()) == "abEND"
    assert completion.logprob.tolist() == [-1, -2, -3, -4, -5]


def test_the_end_of_a_call_that_is_many_tokens_ends_the_answer(monkeypatch):
    """As one of a single token does; the client sees the call, and nothing of what the model went on with."""
    monkeypatch.setattr(HermesLike, "stops", lambda self, tools: ("</call>",) if tools else ())
    call = '<call>{"name": "add", "arguments": {"x": 1}}</call>'

    async def dialogue(client, endpoint):
        with_tools = await ask(client, [USER], tools=[TOOL])
        without = await ask(client, [USER])
        return with_tools.choices[0], without.choices[0], only(endpoint).branches()[0].turns[0].completion

    first, second, completion = talk(Scripted([written(f"{call} and on", "length"), "a</call>b<eos>"]), dialogue)
    assert (first.finish_reason, len(first.message.tool_calls)) == ("tool_calls", 1)
    assert CharTokenizer().decode(completion.tokens.tolist()) == call
    assert completion.finish == "stop"
    assert second.message.content == "a</call>b", "without tools it is a text like any other"


def test_a_real_model_is_stopped_early(monkeypatch):
    """The text that stops is found while the model still writes; what it wrote until then is what it writes without a stop."""

    async def dialogue(client, endpoint):
        whole = (await ask(client, [USER], seed=1, max_tokens=400)).choices[0].message.content
        stop = whole[20:23]
        ended = []
        monkeypatch.setattr(generator, "abort", lambda names: (ended.extend(names), type(generator).abort(generator, names)))
        cut = await ask(client, [USER], seed=1, max_tokens=400, stop=[stop])
        assert ended == ["chatcmpl-00000002/0"]
        return whole, stop, cut

    generator = toy_generator()
    whole, stop, cut = talk(generator, dialogue)
    assert cut.choices[0].message.content == whole[: whole.index(stop)]
    assert cut.choices[0].finish_reason == "stop"


@pytest.mark.parametrize("tools", [{}, {"tools": [TOOL]}])
def test_a_stream_says_what_the_whole_says(tools):
    async def dialogue(client, endpoint):
        more = {"seed": 3, "max_tokens": 60, **tools}
        whole = await ask(client, [USER], **more)
        pieces = [piece async for piece in await ask(client, [USER], stream=True, stream_options={"include_usage": True}, **more)]
        return whole, pieces, only(endpoint).branches()

    whole, pieces, branches = talk(toy_generator(), dialogue)
    text = "".join(piece.choices[0].delta.content or "" for piece in pieces if piece.choices)
    assert text == (whole.choices[0].message.content or "")
    assert pieces[-2].choices[0].finish_reason == whole.choices[0].finish_reason
    assert pieces[-1].usage == whole.usage
    assert branches[0].turns[0].completion.tokens.tolist() == branches[1].turns[0].completion.tokens.tolist()


def test_text_comes_while_it_is_written():
    generator = Unhurried(["hello<eos>"])

    async def dialogue(client, endpoint):
        seen = ""
        async with asyncio.timeout(30):
            async for piece in await ask(client, [USER], stream=True):
                seen += piece.choices[0].delta.content or ""
                if seen == "hel":
                    generator.go_on.set()  # without this first part it would wait for ever
        return seen

    assert talk(generator, dialogue) == "hello"


def test_calls_are_streamed():
    async def dialogue(client, endpoint):
        return [piece.choices[0] async for piece in await ask(client, [USER], stream=True, tools=[TOOL])]

    choices = talk(Scripted([f"hm {CALL}<eos>"]), dialogue)
    (calls,) = [choice.delta.tool_calls for choice in choices if choice.delta.tool_calls]
    assert (calls[0].index, calls[0].function.name, calls[0].function.arguments) == (0, "add", '{"x": 1}')
    assert "".join(choice.delta.content or "" for choice in choices) == "hm"
    assert choices[-1].finish_reason == "tool_calls"


@pytest.mark.parametrize("says", [f"{CALL}<eos>", '<call>{"name</call><eos>'])
def test_what_is_not_to_be_called_or_can_not_be_read_is_text(says):
    async def dialogue(client, endpoint):
        choice = "none" if says.startswith(CALL) else "auto"
        return (await ask(client, [USER], tools=[TOOL], tool_choice=choice)).choices[0]

    choice = talk(Scripted([says]), dialogue)
    assert (choice.message.content, choice.message.tool_calls) == (says.removesuffix("<eos>"), None)


def test_a_stream_does_not_look_again_at_once_when_one_choice_has_ended(monkeypatch):
    """A wait that has an ended task among its own returns at once: it would take a whole core."""
    wait, spun = asyncio.wait, []

    def watched(tasks, **how):
        tasks = list(tasks)
        spun.append("return_when" in how and any(task.done() for task in tasks))
        return wait(tasks, **how)

    class Uneven(Scripted):
        looks = 0

        async def generate(self, *args, seed, request_id):
            while request_id.endswith("/1") and self.looks < 5:
                await asyncio.sleep(0)
            return written("ab<eos>")

        def progress(self, request_id):
            self.looks += 1
            return ()

    async def dialogue(client, endpoint):
        own = SimpleNamespace(**{**vars(asyncio), "wait": watched})
        monkeypatch.setattr("rlinf.engines.endpoint.answering.asyncio", own)
        stream = await ask(client, [USER], n=2, stream=True)
        return [part async for part in stream]

    assert talk(Uneven([]), dialogue)
    assert spun
    assert not any(spun)
