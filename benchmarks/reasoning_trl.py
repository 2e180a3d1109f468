"""TRL's side of `benchmarks/reasoning_vs_trl.py`, which starts it; needs `benchmarks/reasoning_trl.txt`, not rlinf."""

from __future__ import annotations

import argparse
import json
import os
import time
from importlib import import_module
from pathlib import Path
from typing import Any

import torch

_hf: Any = import_module("transformers")
_trl: Any = import_module("trl")
_datasets: Any = import_module("datasets")


class Marks(_hf.TrainerCallback):
    """Looks at the clock when an iteration begins, and at the end of the last one."""

    def __init__(self) -> None:
        self.marks: list[tuple[float, float]] = []

    def on_step_begin(self, *args: Any, **kwargs: Any) -> None:
        """The first micro-batch of an iteration is at hand: what comes next counts."""
        if not self.marks:
            self._mark()

    def on_step_end(self, *args: Any, **kwargs: Any) -> None:
        """An optimizer step is done."""
        self._mark()

    def _mark(self) -> None:
        self.marks.append((time.perf_counter(), time.process_time()))


def main() -> None:
    """Trains, and writes `result.json`."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--continuous", action="store_true", help="continuous batching of transformers in place of generate")
    given = parser.parse_args()
    torch.set_num_threads(int(os.environ["OMP_NUM_THREADS"]))
    work = json.loads((given.folder / "work.json").read_text())
    marks, tokens = Marks(), [0]

    def reward(completions: list[str], answer: list[str], completion_ids: list[list[int]], **_: Any) -> list[float]:
        tokens[0] += sum(map(len, completion_ids))
        return [float(right in text) for text, right in zip(completions, answer, strict=True)]

    trainer = _trl.GRPOTrainer(
        model=_hf.AutoModelForCausalLM.from_pretrained(given.folder / "model", dtype=torch.float32),
        processing_class=_hf.AutoTokenizer.from_pretrained(given.folder / "model", padding_side="left"),
        reward_funcs=reward,
        args=arguments(work, given.folder, given.continuous),
        train_dataset=_datasets.Dataset.from_list(work["rows"]),
        callbacks=[marks],
    )
    trainer.train()
    if trainer.accelerator.is_main_process:
        ranks = trainer.accelerator.num_processes
        (given.folder / "result.json").write_text(json.dumps({"marks": marks.marks, "tokens": tokens[0] * ranks}))


def arguments(work: dict[str, Any], folder: Path, continuous: bool) -> Any:
    """One iteration is one optimizer step; nothing is saved or reported."""
    responses = work["problems"] * work["group_size"]
    ranks = int(os.environ.get("WORLD_SIZE", "1"))
    micro = min(work["trl_micro_batch"], responses // ranks)
    columns = work["limit"] + 32
    batching = {"num_blocks": responses * columns // 32, "block_size": 32, "max_batch_tokens": 2048}
    return _trl.GRPOConfig(
        output_dir=str(folder / "trl"),
        max_steps=work["iterations"],
        per_device_train_batch_size=micro,
        gradient_accumulation_steps=responses // ranks // micro,
        num_generations=work["group_size"],
        max_completion_length=work["limit"],
        temperature=1.0,
        top_k=0,
        beta=0.0,
        loss_type="dapo",
        learning_rate=1e-6,
        lr_scheduler_type="constant",
        max_grad_norm=1.0,
        bf16=False,
        gradient_checkpointing=False,
        use_cpu=True,
        use_transformers_continuous_batching=continuous,
        transformers_continuous_batching_config=batching if continuous else None,
        logging_steps=1,
        report_to="none",
        save_strategy="no",
        disable_tqdm=True,
        shuffle_dataset=False,
    )


if __name__ == "__main__":
    main()
