"""The reasoning app from end to end on real parts, in one process: what it writes, and that it goes on where it stopped."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from reasoning_app import EXPERIMENT, TOY, ReasoningApp
from transformers import AutoModelForCausalLM, AutoTokenizer

from rlinf.core.errors import ConfigError, RLinfError
from rlinf.core.evaluation import EvalReport
from rlinf.scheduler.planner import observe


@pytest.fixture
def app(tmp_path: Path) -> ReasoningApp:
    return ReasoningApp(tmp_path)


COMPARED = (
    "train/loss",
    "train/grad_norm",
    "rollout/rewards",
    "rollout/tokens",
    "rollout/response_length",
    "rollout/resumed_tokens",
)


def test_two_iterations_and_two_more_are_four_to_the_bit(app: ReasoningApp) -> None:
    """With what had been written of aborted groups."""
    reward = "reward={overlong: {max_length: 6, cache: 5, weight: 2}}"
    short = ("runner.val_check_interval=0", "data.val_problems=4", "rollout={oversample: 1.5, partial_lag: 1}", reward)
    app.train("runner.max_steps=4", *short)
    whole, weights = app.rows(), app.weights(4)
    app.train("runner.max_steps=2", *short)
    state = json.loads((app.folder / "checkpoints/global_step_2/state.json").read_text())
    assert any(part["tokens"] for order in state["data"]["returned"] for part in order["partial"])
    resume = f"runner.resume_dir={app.folder / 'checkpoints/global_step_2'}"
    app.train("runner.max_steps=4", resume, *short)
    resumed = {step: row for step, row in app.rows().items() if step > 2}
    assert sorted(resumed) == [3, 4]
    for step, row in resumed.items():
        assert {name: row[name] for name in COMPARED} == {name: whole[step][name] for name in COMPARED}
    again = app.weights(4)
    assert all(torch.equal(again[name], tensor) for name, tensor in weights.items())
    assert all(row["train/grad_norm"] > 1e-3 for row in whole.values()), "there is something to learn"
    assert min(whole[step]["rollout/resumed_tokens"] for step in (2, 3, 4)) > 0


def test_a_run_says_what_it_achieved_and_shows_what_was_written(app: ReasoningApp) -> None:
    said = app.train("eval={samples: 4, temperature: 1.0, pass_k: [1, 2, 4]}")
    summary = app.summary()
    assert summary["eval/problems"] == 8
    assert summary["eval/accuracy"] == pytest.approx(summary["eval/pass@1"])
    assert summary["eval/pass@1"] <= summary["eval/pass@2"] <= summary["eval/pass@4"]
    low, high = summary["eval/accuracy_ci95"]
    assert low <= summary["eval/accuracy"] <= high
    assert summary["protocol"]["hash"] in said
    lines = app.transcripts()
    training = [line for line in lines if line["kind"] == "train"]
    last = [line for line in lines if line["kind"] == "eval" and line["step"] == 2]
    assert [len(training), len(last)] == [2 * 2, 8]
    assert all(len(line["responses"]) == 4 for line in lines)
    assert last[0]["prompt"] == "0+0="
    assert "0+0= →" in said
    for line in last:
        for response in line["responses"]:
            assert response["right"] == (response["text"].strip() == line["answer"])
    assert next(app.folder.glob("tensorboard/events*"))


def test_a_checkpoint_evaluates_by_itself(app: ReasoningApp) -> None:
    """Other programs read its folder `actor/huggingface`."""
    model = "actor.model={model_type: causal_lm, preset: tiny, tokens: {kind: characters, alphabet: '0123456789+='}}"
    app.train("runner.max_steps=1", "runner.val_check_interval=0", "runner.export=true", model)
    folder = app.folder / "checkpoints/global_step_1/actor/huggingface"
    exported = AutoModelForCausalLM.from_pretrained(folder, local_files_only=True).state_dict()
    tokenizer = AutoTokenizer.from_pretrained(folder, local_files_only=True)
    assert tokenizer.decode(tokenizer.encode("1+2=3")) == "1+2=3"
    saved = app.weights(1)
    assert all(torch.equal(tensor, saved[f"network.{name}"]) for name, tensor in exported.items())
    trained = app.summary()
    said = app.evaluate(str(app.folder))
    beside = app.folder / "checkpoints/global_step_1_eval" / trained["protocol"]["hash"]
    evaluated = json.loads((beside / "summary.json").read_text())
    for name in ("eval/accuracy", "eval/response_length", "eval/problems"):
        assert evaluated[name] == trained[name]
    assert evaluated["protocol"]["hash"] == trained["protocol"]["hash"]
    assert "eval/accuracy" in said
    assert f"evaluation: {trained['eval/problems']} problems (protocol {trained['protocol']['hash']})\n" in said
    for weights in ((), (f"runner.ckpt_path={folder}",)):
        said = app.evaluate(*TOY, *app.log_path, model, *weights)
        path = Path(said.split()[-1])
        assert EvalReport.load(path).protocol.hash == trained["protocol"]["hash"]
        assert path.is_relative_to(app.logs / f"{EXPERIMENT}_eval")
    assert EvalReport.load(path) == EvalReport.load(beside / "summary.json"), "the weights are those of the checkpoint"


def test_a_damaged_checkpoint_is_refused(app: ReasoningApp) -> None:
    app.train("runner.max_steps=1", "runner.val_check_interval=0")
    model = app.folder / "checkpoints/global_step_1/actor/model.safetensors"
    content = bytearray(model.read_bytes())
    content[-1] ^= 1
    model.write_bytes(content)
    with pytest.raises(ConfigError, match=r"CHECKPOINT: .*model\.safetensors': differs from the manifest"):
        app.evaluate(str(app.folder))


def test_a_critic_learns_beside_the_policy(app: ReasoningApp) -> None:
    app.train(
        "actor.model.add_value_head=true",
        "algorithm={adv_type: gae, gamma: 1.0, gae_lambda: 1.0, loss_type: actor_critic, update_epoch: 2}",
        "actor.optim={lr: 0.001, value_lr: 0.01}",
    )
    rows = app.rows()
    assert rows[2]["train/value_loss"] != rows[1]["train/value_loss"]
    assert all(row["rollout/returns_mean"] == pytest.approx(row["rollout/rewards"], abs=0.3) for row in rows.values())


def test_responses_that_the_limit_cut_off_can_be_kept_out_of_the_loss(app: ReasoningApp) -> None:
    """With room for one token nearly all of them are cut off."""
    short = ("runner.max_steps=1", "runner.val_check_interval=0", "data.val_problems=4", "rollout.sampling_params.max_new_tokens=1")
    app.train(*short, "algorithm.overlong_filtering=true")
    row = app.rows()[1]
    assert row["rollout/overlong_filtered"] == pytest.approx(row["rollout/truncated"])
    assert row["rollout/truncated"] > 0.5
    assert row["train/loss"] == row["train/loss"], "a number"


def test_a_reference_starts_at_no_distance_and_is_left_behind(app: ReasoningApp) -> None:
    reward = "reward={reward_type: exact_match, extraction: number}"
    app.train("reference.source=initial", "algorithm.kl_beta=0.01", "actor.optim.lr=0.01", reward, "data.rollout_batch_size=12")
    rows = app.rows()
    assert rows[1]["train/kl_ref"] < rows[2]["train/kl_ref"]


def test_faults_are_reported_together_before_anything_starts(app: ReasoningApp) -> None:
    with pytest.raises(ConfigError) as caught:
        app.train("rollout.group_sise=4", "reward.reward_type=exact_mach", "data.type=null", "actor.global_batch_size=12000")
    for words in (
        "rollout.group_sise: unknown key. Did you mean 'group_size'?",
        "data.type: missing. Installed: ",
        "reward.reward_type: no reward named 'exact_mach'. Did you mean 'exact_match'?",
    ):
        assert words in str(caught.value)
    assert not app.folder.exists()


def test_a_baseline_of_each_token_asks_for_scores_of_the_trainer_and_gets_them(app: ReasoningApp) -> None:
    otb = "algorithm={adv_type: optimal_token_baseline, recompute_logprobs: %s}"
    with pytest.raises(ConfigError, match=r"algorithm\.adv_type: .*squared probabilities.*Set algorithm\.recompute_logprobs: true"):
        app.train(otb % "false")
    assert not app.folder.exists()
    reward = "reward={overlong: {max_length: 6, cache: 5, weight: 2}}"
    app.train(otb % "true", "runner.max_steps=1", "runner.val_check_interval=0", "data.val_problems=4", reward)
    assert app.rows()[1]["rollout/advantages_abs"] > 0


def test_weights_that_do_not_arrive_are_noticed_before_the_first_update(app: ReasoningApp, monkeypatch: pytest.MonkeyPatch) -> None:
    from rlinf.engines.generation.hf._generator import HFGenerator

    async def loses(self: HFGenerator, weights: object) -> None: ...

    monkeypatch.setattr(HFGenerator, "load", loses)
    monkeypatch.setattr("rlinf.runners.reasoning.generation.rollout.build_policy", other_weights)
    with pytest.raises(RLinfError, match=r"actor\[0\].*expected ratios of 1 ± 0.001 before any update, found"):
        app.train("runner.val_check_interval=0")


def test_the_cause_is_named_where_both_disagree(app: ReasoningApp, monkeypatch: pytest.MonkeyPatch) -> None:
    for worker in ("actor_worker", "generation.rollout"):
        monkeypatch.setattr(f"rlinf.runners.reasoning.{worker}.check_temperature", lambda policy, sampling: None)
    with pytest.raises(RLinfError, match=r"1\. temperature: at 0\.5 times the trainer's temperature (99|100)% of the gap is gone"):
        app.train("runner.val_check_interval=0", "rollout.sampling_params.temperature=0.5")


def other_weights(cfg: object, *, starting_weights: bool, rollout: bool = False) -> object:
    from toy_reasoning import TinyLM

    return TinyLM().build(seed=12345)


def test_the_rollout_runs_ahead_by_so_many_updates_and_no_more(app: ReasoningApp) -> None:
    app.train("rollout.max_lag=2", "runner.max_steps=5", "runner.val_check_interval=0", "algorithm.recompute_logprobs=true")
    lags = [row["rollout/lag_max"] for row in app.rows().values()]
    assert max(lags) <= 2
    assert lags[0] == 0
    assert lags[-1] > 0, "nothing was written ahead"
    assert {row["rollout/groups_trained"] for row in app.rows().values()} == {6.0}


PARTS = ("rollout.oversample=1.5", "runner.val_check_interval=0", "data.val_problems=4", "runner.transcripts=100")


def test_a_group_that_was_aborted_goes_on_as_if_it_had_not_been(app: ReasoningApp) -> None:
    """With such a learning rate versions count up and weights stay, so that both runs must write the same."""
    told: list[list[str]] = []
    rows: list[dict[int, dict[str, float]]] = []
    for lag in (0, 1):
        (app.folder / "transcripts.jsonl").unlink(missing_ok=True)
        app.train(f"rollout.partial_lag={lag}", "actor.optim.lr=1e-30", "runner.max_steps=3", *PARTS)
        told.append([line for line in (app.folder / "transcripts.jsonl").read_text().splitlines() if '"train"' in line])
        rows.append(app.rows())
    assert sorted(told[0]) == sorted(told[1])
    anew, gone_on = rows
    assert [row["rollout/resumed_tokens"] for row in anew.values()] == [0, 0, 0]
    discarded = [row["rollout/discarded_tokens"] for row in anew.values()]
    assert discarded[0] == 0
    assert discarded[1:] == [row["rollout/resumed_tokens"] for row in gone_on.values()][1:]
    assert min(discarded[1:]) > 0
    assert [row["rollout/lag_max"] for row in gone_on.values()] == [0, 1, 1]
    assert all(row["rollout/groups_stale"] == row["rollout/discarded_tokens"] == 0 for row in gone_on.values())


def test_who_runs_ahead_gives_way_where_devices_are_shared(app: ReasoningApp) -> None:
    short = ("rollout.max_lag=1", "runner.max_steps=3", "runner.val_check_interval=0", "data.val_problems=4")
    app.train(*short)
    plain = app.rows()
    trace = app.folder / "offload.json"
    app.train(*short, "actor.offload=true", "cluster.tracer.enabled=true", f"cluster.tracer.path={trace}")
    assert {step: row["train/loss"] for step, row in app.rows().items()} == {s: row["train/loss"] for s, row in plain.items()}
    # The planner reads from the trace what the trainer takes, and that it comes and leaves: Adam has two moments for each weight.
    components = observe(trace).workload.components
    actor, rollout = components["actor"], components["rollout"]
    size = sum(tensor.numel() * tensor.element_size() for tensor in app.weights(3).values())
    assert size <= actor.memory.weights < 1.1 * size
    assert actor.memory.optimizer == pytest.approx(2 * actor.memory.weights, rel=0.1)
    # Gradients live within a step only, each as large as its weight; those that nothing depends on have none.
    assert 0.5 * size < actor.memory.gradients <= 1.1 * size
    assert size <= rollout.memory.weights < 1.1 * size
    assert rollout.memory.cache > 0
    assert actor.leaves
    assert min(actor.load_s, actor.offload_s) > 0


def test_the_tail_is_aborted_and_comes_back(app: ReasoningApp) -> None:
    app.train("rollout.oversample=1.5", "runner.max_steps=3", "runner.val_check_interval=0", "runner.transcripts=100")
    rows = app.rows()
    assert [row["rollout/groups_trained"] for row in rows.values()] == [6.0] * 3
    assert all(row["rollout/groups_aborted"] == 3 for row in rows.values())
    lines = app.transcripts()
    trained = [line["problem"] for line in lines if line["kind"] == "train"]
    assert len(set(trained)) == len(trained) == 18, "a problem was trained on twice in one pass"
    state = json.loads((app.folder / "checkpoints/global_step_3/state.json").read_text())
    assert state["data"]["position"] == 18 + 3
    assert len(state["data"]["returned"]) == 3


def test_groups_that_agree_are_replaced(app: ReasoningApp) -> None:
    recipe = (
        "algorithm={dynamic_sampling: {max_waves: 3}}",
        "reward={reward_type: overlong, max_length: 6, cache: 6, unit: characters}",
    )
    app.train("runner.val_check_interval=0", "rollout.group_size=2", *recipe)
    rows = app.rows().values()
    assert any(row["rollout/groups_alike"] > 0 for row in rows)
    for row in rows:
        assert row["rollout/groups_drawn"] > row["rollout/groups_trained"] or row["rollout/groups_alike"] == 0
        assert row["rollout/advantages_abs"] > 0


def test_a_penalty_of_length_changes_rewards_and_not_what_is_right(app: ReasoningApp) -> None:
    app.train("reward={overlong: {max_length: 6, cache: 5, weight: 2}}", "runner.max_steps=1", "runner.val_check_interval=0")
    (row,) = app.rows().values()
    lines = app.transcripts()
    responses = [r for line in lines if line["kind"] == "train" for r in line["responses"]]
    assert responses
    for r in responses:
        assert r["reward"] == pytest.approx(float(r["right"]) + 2 * min(0, -(r["tokens"] - 1) / 5))
    assert row["rollout/rewards"] < row["rollout/accuracy"]


def test_how_the_actor_works_changes_no_number(app: ReasoningApp, monkeypatch: pytest.MonkeyPatch) -> None:
    """Packed, and away from its devices between phases; two ranks that share a model, with a frozen copy as reference."""
    reward = "reward={overlong: {max_length: 6, cache: 5, weight: 2}}"
    reference = ("reference.source=initial", "algorithm.kl_beta=0.1", "actor.optim={lr: 1.0e-3, lr_scheduler: linear}")
    short = ("runner.val_check_interval=0", "data.val_problems=4", reward, *reference)
    on_two = "cluster.component_placement={actor: 0-1, rollout: 0-1, reward: '0'}"
    app.train(*short)
    plain, weights = app.rows(), app.weights(2)
    variants = {
        "packed": ("actor.micro_batch_size=null", "actor.max_tokens_per_mbs=24", "actor.offload=true"),
        "shared": ("actor.training_backend=toy_reasoning:Doubled", on_two),
    }
    for name, changes in variants.items():
        app.train(*short, *changes)
        for step, row in app.rows().items():
            for metric in (*COMPARED, "train/kl_ref"):
                assert row[metric] == pytest.approx(plain[step][metric], rel=1e-4, abs=1e-6), f"{name}, step {step}: {metric}"
        if name == "shared":
            assert all(torch.equal(app.weights(2)[key], tensor) for key, tensor in weights.items())
    assert plain[2]["train/kl_ref"] > 0
    rates = [row["train/lr"] for row in plain.values()]
    assert rates == pytest.approx([0.875e-3, 0.375e-3]), "two of four steps each, on a line to 0"


def test_two_actor_ranks_of_one_process_learn_as_one(app: ReasoningApp) -> None:
    reward = "reward={overlong: {max_length: 6, cache: 5, weight: 2}}"
    short = ("runner.val_check_interval=0", "data.val_problems=4", "actor.global_batch_size=24", reward)
    app.train(*short)
    one, weights = app.rows(), app.weights(2)
    app.train(*short, "cluster.component_placement={actor: 0-1, rollout: 0-1, reward: '0'}")
    for step, row in app.rows().items():
        for metric in COMPARED:
            assert row[metric] == pytest.approx(one[step][metric], rel=1e-4, abs=1e-6), f"step {step}: {metric}"
    for name, tensor in app.weights(2).items():
        torch.testing.assert_close(tensor, weights[name], atol=1e-5, rtol=0, msg=name)
