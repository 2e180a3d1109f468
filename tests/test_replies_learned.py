"""Recorded conversations with real tokenizers and the chat templates that models come with: which text is learned."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from rlinf.core.commands import main
from rlinf.core.errors import ConfigError
from rlinf.envs.tasks import Dataset
from rlinf.models.language import CausalLMConfig
from rlinf.runners.sft.examples import laid_out, read_examples

ROOT = Path(__file__).parents[1]
CHATML = (
    "{% for m in messages %}{{ '<|im_start|>' + m['role'] + '\n' + m['content'] + '<|im_end|>' + '\n' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)
QWEN3 = (
    "{% for m in messages %}{% set content = m['content'] %}"
    "{% if m['role'] == 'assistant' and not loop.last %}{% set content = content.split('</think>')[-1].lstrip('\n') %}{% endif %}"
    "{{ '<|im_start|>' + m['role'] + '\n' + content + '<|im_end|>' + '\n' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)
LLAMA2 = (
    "{% for m in messages %}{% if m['role'] == 'user' %}{{ '[INST] ' + m['content'] + ' [/INST]' }}"
    "{% else %}{{ ' ' + m['content'] | trim + ' ' + eos_token }}{% endif %}{% endfor %}"
)


def turns(number: int, *replies: str) -> dict[str, Any]:
    said = [{"role": role, "content": text} for reply in replies for role, text in (("user", f"{number}?"), ("assistant", reply))]
    return {"messages": said}


def learned(path: Path, template: str | None, *replies: str) -> list[str]:
    """The stretches that are learned of conversations with these replies."""
    path.write_text("".join(json.dumps(turns(n, *replies)) + "\n" for n in range(9)))
    tokenizer: Any = CausalLMConfig(preset="tiny").tokenizer(["1 2 3"])
    if template is not None:
        # As a base model that is fine-tuned for chats has it.
        tokenizer.add_special_tokens({"additional_special_tokens": ["<|im_start|>", "<|im_end|>"]})
        tokenizer.chat_template = template
        tokenizer.eos_token = "<|im_end|>" if "im_end" in template else tokenizer.eos_token
    task = Dataset(path=str(path), prompt_key="messages", validation_share=0.4)
    examples = read_examples(task, "train", tokenizer, max_length=512)
    t: Any = laid_out([examples[:1]], pad_id=0).trajectory
    found: list[str] = []
    before = False
    for token, mask in zip(t.action.flatten().tolist(), t.mask.flatten().tolist(), strict=True):
        if mask:
            found = [*found[:-1], found[-1] + tokenizer.decode([token])] if before else [*found, tokenizer.decode([token])]
        before = mask
    return found


@pytest.mark.parametrize(
    ("template", "ends"),
    [(None, ["one<eos>", "two<eos>", "one<eos>"]), (CHATML, ["one<|im_end|>", "two<|im_end|>", "one<|im_end|>"])],
)
def test_all_replies_each_with_its_end(tmp_path: Path, template: str | None, ends: list[str]) -> None:
    assert learned(tmp_path / "rows.jsonl", template, "one", "two", "one") == ends


def test_templates_with_white_space_around_replies_and_no_mark_before_them(tmp_path: Path) -> None:
    assert learned(tmp_path / "rows.jsonl", LLAMA2, "one", "two") == [" one <eos>", "two<eos>"]


def test_a_template_that_drops_what_was_thought_earlier(tmp_path: Path) -> None:
    rows = tmp_path / "rows.jsonl"
    thought = "<think>\nHm.\n</think>\n\ntwo"
    assert learned(rows, QWEN3, "one", thought) == ["one<|im_end|>", f"{thought}<|im_end|>"]
    with pytest.raises(ConfigError, match=r"changes turns once others follow: it writes 'two<\|im_end.*asked for '<think>"):
        learned(rows, QWEN3, thought, "one")


def test_a_template_that_ends_replies_in_another_way_is_refused_before_a_worker_starts(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    rows, logs = tmp_path / "rows.jsonl", tmp_path / "logs"
    rows.write_text("".join(json.dumps(turns(n, "one", "two")) + "\n" for n in range(20)))
    model: Any = CausalLMConfig(preset="tiny")
    tokenizer: Any = model.tokenizer(["1 2 3"])
    tokenizer.chat_template = CHATML
    model.build(seed=1).network.save_pretrained(tmp_path / "base")
    tokenizer.save_pretrained(str(tmp_path / "base"))
    recipe = str(ROOT / "apps/reasoning/config_sft/sft_arithmetic.yaml")
    chosen = [f"actor.model={{model_type: causal_lm, model_path: '{tmp_path / 'base'}'}}", f"runner.logger.log_path={logs}"]
    data = f"data={{type: dataset, path: '{rows}', prompt_key: messages, validation_share: 0.4}}"
    with pytest.raises(SystemExit, match="2"):
        main(["train", recipe, "~actor.model", *chosen, data])
    said = capsys.readouterr().err
    assert "data.mask_history: the chat template ends replies with '<|im_end|>', and the model ends them with '<eos>'" in said
    assert not logs.exists()
