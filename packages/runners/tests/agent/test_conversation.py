"""What a model wrote stays as it was, token by token; what it reads is rendered once, and checked."""

from __future__ import annotations

import pytest
from agent_toy import DOUBLE, TagFormat, TagTokenizer, written

from rlinf.core.agents import Branch, Episode, ToolResult
from rlinf.core.language.problems import Problem
from rlinf.runners.conversations.conversation import RenderingError, TokenConversation, turn_ends
from rlinf.runners.conversations.rows import branch_row, episode_rows

TOKENIZER = TagTokenizer()


def conversation(prompt: object = "ab:", tokenizer: TagTokenizer = TOKENIZER) -> TokenConversation:
    text = prompt if isinstance(prompt, str) else tokenizer.apply_chat_template(prompt, tokenize=False, add_generation_prompt=True)
    problem = Problem(prompt=prompt, answer="", id=0)  # type: ignore[arg-type]
    return TokenConversation(problem, tokenizer.encode(text), tokenizer, TagFormat(), [DOUBLE])


def marked(branch: Branch) -> str:
    """The text of a row, with what is trained on in brackets."""
    row = branch_row(branch, 0.0)
    parts = [(TOKENIZER.decode([int(token)]), bool(own)) for token, own in zip(row.tokens, row.written, strict=True)]
    return "".join(f"({text})" if own else text for text, own in parts).replace(")(", "")


def test_two_turns_by_hand() -> None:
    chat = conversation()
    turn = chat.write(written("<t>c</t>"))
    assert [call.arguments for call in turn.calls] == [{"x": "c"}]
    chat.add([ToolResult(text="cc")])
    chat.write(written("cc<eos>"))
    assert marked(chat.closed()) == "ab:(<t>c</t>)[cc](cc<eos>)"
    assert TOKENIZER.decode(chat.tokens) == "ab:<t>c</t>[cc]cc<eos>"


def test_a_row_by_hand() -> None:
    """Tokens, masks, log-probabilities, versions and rewards of each column, as one would write them on paper."""
    chat = conversation("ab")
    chat.write(written("<t></t>", version=3))
    chat.reward(0.25)
    chat.add([ToolResult(text="")])
    chat.write(written("c<eos>", version=4))
    rows = episode_rows([Episode(branches=(chat.closed(),), finish="stop")], [1.0], group=7, pad_id=0)
    assert TOKENIZER.decode(rows.action[0, :, 0, 0].tolist()) == "b<t></t>[]c<eos>"
    assert TOKENIZER.decode(rows.context["input_ids"][0].tolist()) == "ab<t></t>[]c"  # type: ignore[index]
    assert rows.mask[0].tolist() == [False, True, True, False, False, True, True]
    assert rows.logprob[0].tolist() == [0, -1, -2, 0, 0, -1, -2]
    assert rows.version[0].tolist() == [0, 3, 3, 0, 0, 4, 4]
    assert rows.reward[0].tolist() == [0, 0, 0.25, 0, 0, 0, 1]
    assert rows.terminated[0].tolist() == [False] * 6 + [True]
    assert (rows.group.tolist(), rows.episode.tolist()) == ([7], [0])  # type: ignore[union-attr]


def test_what_the_model_wrote_is_never_tokenised_again() -> None:
    """`</t>` may be one token, or the characters that spell it: the same text, and other tokens."""
    chat = conversation()
    odd = written("c")
    chat.write(odd)
    chat.add([ToolResult(text="x")])
    assert chat.tokens[3] == odd.tokens[0]
    assert len(chat.tokens) == 3 + 1 + 3


def test_messages_grow_by_what_the_template_adds() -> None:
    chat = conversation(({"role": "user", "content": "go"},))
    chat.write(written("<t>c</t>"))
    chat.add([ToolResult(text="cc")])
    chat.write(written("ok<eos>"))
    chat.add([ToolResult(text="d")])
    chat.write(written("k<eos>"))
    assert marked(chat.closed()) == "u:go\na:(<t>c</t>)<eos>\nu:[cc]\na:(ok<eos>)\nu:[d]\na:(k<eos>)"


def test_a_template_that_changes_earlier_turns_is_refused() -> None:
    tokenizer = TagTokenizer()
    tokenizer.trims = True
    chat = conversation(({"role": "user", "content": "go"},), tokenizer)
    chat.write(written(" c<eos>"))
    with pytest.raises(RenderingError, match=r"writes 'c<eos>.*read and written ' c<eos>'"):
        chat.add([ToolResult(text="x")])


@pytest.mark.parametrize("prompt", ["ab:", ({"role": "user", "content": "go"},)])
def test_what_the_tokenizer_cannot_write_of_a_result_is_read_as_it_writes_it(prompt: object) -> None:
    """An error's text may have any character, and no tool ends a run by what it says."""
    chat = conversation(prompt)
    chat.write(written("<t>c</t>"))
    (turn,) = chat.turns
    chat.add([ToolResult(text="cü\N{SNOWMAN}d")])
    assert "[c__d]" in TOKENIZER.decode(chat.tokens[-len(chat.tokens) + len(turn.prompt) :])
    assert chat.turns[0].results == (ToolResult(text="cü\N{SNOWMAN}d"),), "what the tool said is kept"


@pytest.mark.parametrize("finish", ["length", "abort"])
def test_a_turn_that_was_cut_off_calls_nothing(finish: str) -> None:
    assert conversation().write(written("<t>c</t>d", finish)).calls == ()


def test_what_branches_share_is_trained_on_once() -> None:
    chat = conversation()
    chat.write(written("<t>c</t>"))
    chat.add([ToolResult(text="cc")])
    other = chat.branch("second")
    chat.write(written("d<eos>"))
    other.write(written("e<eos>"))
    assert marked(chat.closed()) == "ab:(<t>c</t>)[cc](d<eos>)"
    assert marked(other.closed()) == "ab:<t>c</t>[cc](e<eos>)"
    episode = Episode(branches=(chat.closed(), other.closed()), finish="stop")
    assert len(episode) == 3 + 2 + 2
    rows = episode_rows([episode], [0.5], group=0, pad_id=0)
    assert rows.reward.sum(1).tolist() == [0.5, 0.5]
    assert rows.episode.tolist() == [0, 0]  # type: ignore[union-attr]


def test_a_failed_episode_takes_part_in_nothing() -> None:
    chat = conversation()
    chat.write(written("c<eos>"))
    failed = Episode(branches=(chat.closed(),), finish="error", failure="x")
    empty = Episode(branches=(), finish="timeout", failure="x")
    good = Episode(branches=(chat.closed(),), finish="stop")
    rows = episode_rows([failed, good, empty], [0.0, 1.0, 0.0], group=0, pad_id=0)
    assert rows.mask.any(1).tolist() == [False, True, False]
    assert rows.episode.tolist() == [0, 1, 2]  # type: ignore[union-attr]


def test_a_turn_without_a_token_has_no_reward_to_come_with() -> None:
    chat = conversation()
    chat.write(written("", "length"))
    chat.reward(1.0)
    row = branch_row(chat.closed(), 2.0)
    assert (row.written.any(), row.reward.sum(), row.cut) == (False, 0.0, True)


def test_only_texts_of_one_token_end_a_turn() -> None:
    assert turn_ends(TOKENIZER, TagFormat(), [DOUBLE]) == (3,)

    class Longer(TagFormat):
        def stops(self, tools: object) -> tuple[str, ...]:
            return ("</t>", "abc")

    assert turn_ends(TOKENIZER, Longer(), [DOUBLE]) == (3,)
