"""Which tokens of recorded conversations are learned, by hand; a letter is a token, and what ends a turn is one, too."""

from types import SimpleNamespace

import pytest

from rlinf.core.errors import ConfigError
from rlinf.core.language.problems import Problem
from rlinf.runners.sft.examples import laid_out, packed, read_examples

CHAT = ({"role": "user", "content": "q"}, {"role": "assistant", "content": "yes"}, {"role": "user", "content": "r"})


class Turns:
    """`Uq.A` asks and `yes.` answers; `.` ends turns and replies, `~` nothing that the tokenizer knows of."""

    pad_token_id, eos_token_id = 0, ord(".")

    def encode(self, text, *, add_special_tokens=True):
        return [ord(letter) for letter in text]

    def decode(self, token_ids, *, skip_special_tokens=False):
        return "".join(map(chr, token_ids))

    def written(self, message, last):
        return f"{message['content']}."

    def apply_chat_template(self, conversation, *, tokenize, add_generation_prompt):
        last = len(conversation) - 1
        turns = [each["role"][0].upper() + self.written(each, at == last) for at, each in enumerate(conversation)]
        return "\n".join([*turns, "A"])


class Spaced(Turns):
    """Puts white space around replies."""

    def written(self, message, last):
        return f" {message['content'].strip()} ." if message["role"] == "assistant" else f"{message['content']}."


class OtherEnd(Turns):
    def written(self, message, last):
        return f"{message['content']}~"


class Forgetting(Turns):
    """Leaves out what was thought in earlier turns."""

    def written(self, message, last):
        return f"{message['content'].split('>')[-1]}."


def read(problem, tokenizer=None, **options):
    task = SimpleNamespace(problems=lambda split: [problem])
    (found,) = read_examples(task, "train", tokenizer or Turns(), max_length=99, **options)
    return found


def recorded(messages=CHAT, **said):
    return Problem(prompt=messages, answer="", id=0, solution="no", worked_replies=True, **said)


def learned(rows):
    """The texts of rows, with what is not learned as `-`; a first token of a text is never learned, and has no column."""
    t = laid_out(rows, pad_id=0).trajectory
    letters, mask = t.action[..., 0, 0].tolist(), t.mask.tolist()
    return ["".join(chr(a) if m else "-" for a, m in zip(*row, strict=True)) for row in zip(letters, mask, strict=True)]


def test_every_reply_is_learned_with_its_end_and_nothing_else():
    example = read(recorded())
    assert "".join(map(chr, (*example.prompt, *example.response))) == "Uq.\nAyes.\nUr.\nAno."
    assert learned([[example]]) == ["----yes.------no."]


def test_packed_rows_learn_the_same():
    example, alone = read(recorded()), read(Problem(prompt="ab", answer="", id=1, solution="c"))
    (row,) = packed([alone, example], 99)
    assert learned([row]) == ["----yes.------no." + "-c."]
    assert learned([[alone], [example]]) == ["-c." + "-" * 14, "----yes.------no."]


@pytest.mark.parametrize(
    ("problem", "options"),
    [
        (recorded(), {"mask_history": True}),
        # Of prompt and completion, the messages of the prompt show how to answer.
        (Problem(prompt=CHAT, answer="", id=0, solution="no"), {}),
    ],
)
def test_the_last_reply_alone(problem, options):
    example = read(problem, **options)
    assert (*example.prompt, *example.response) == (*read(recorded()).prompt, *read(recorded()).response)
    assert learned([[example]]) == ["-" * 14 + "no."]


def test_white_space_that_a_template_puts_around_replies_is_as_it_writes_it():
    assert learned([[read(recorded(), Spaced())]]) == ["---- yes .------no."]


def test_a_reply_to_nothing_and_two_replies_in_a_row():
    greeting = {"role": "assistant", "content": "hi"}
    assert learned([[read(recorded((greeting, *CHAT)))]]) == ["-" * 9 + "yes.------no."]
    twice = (*CHAT[:2], greeting, CHAT[2])
    assert learned([[read(recorded(twice))]]) == ["----yes.--hi.------no."]


def test_the_same_words_in_what_others_said_are_not_the_reply():
    same = ({"role": "user", "content": "yes"}, *CHAT[1:])
    assert learned([[read(recorded(same))]]) == ["------yes.------no."]


def test_a_template_that_ends_replies_as_the_model_does_not():
    model = SimpleNamespace(end_tokens=lambda: (ord("!"),))
    message = (
        r"data\.mask_history: the chat template ends replies with '~.*', and the model ends them with '\.' or '!' \(here:7\)\. "
        r"Make that the tokenizer's eos_token, or set data\.mask_history: true to learn the last reply"
    )
    with pytest.raises(ConfigError, match=message):
        read(recorded(place="here:7"), OtherEnd(), model=model)
    knowing = SimpleNamespace(end_tokens=lambda: (ord("~"),))
    assert learned([[read(recorded(), OtherEnd(), model=knowing)]]) == ["----yes~------no."]


def test_a_template_that_changes_earlier_turns():
    thought = ({**CHAT[0]}, {"role": "assistant", "content": "hm>yes"}, CHAT[2])
    message = (
        r"changes turns once others follow: it writes 'yes\..*' where it asked for 'hm>yes'\. Use one that leaves earlier turns"
    )
    with pytest.raises(ConfigError, match=message):
        read(recorded(thought), Forgetting())
    assert learned([[read(recorded(thought), Forgetting(), mask_history=True)]]) == ["-" * 14 + "no."]


@pytest.mark.parametrize("place", ["here:7", ""])
def test_a_template_that_refuses_messages(place):
    class Strict(Turns):
        def apply_chat_template(self, conversation, *, tokenize, add_generation_prompt):
            raise RuntimeError("roles must alternate")

    message = r"the chat template can't write messages of user, assistant, user: roles must alternate\. Change the messages"
    with pytest.raises(ConfigError, match=f"^{place or 'data'}: {message}"):
        read(recorded(place=place), Strict())


def test_a_template_that_writes_the_last_question_in_another_way():
    class Marking(Turns):
        def written(self, message, last):
            return f"{'*' * last}{message['content']}."

    with pytest.raises(ConfigError, match=r"changes turns once others follow: it writes 'q\."):
        read(recorded(), Marking())
