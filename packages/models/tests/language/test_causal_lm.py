import math
from functools import cache

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from rlinf.core.capabilities import HasSFTLoss
from rlinf.core.data import Batch, Rescored, Trajectory
from rlinf.core.errors import ConfigError, ShapeError, UnknownName, WeightSyncError
from rlinf.core.registry import MODELS
from rlinf.models.language import CausalLMConfig, score_tokens, token_batch
from rlinf.models.lora import LoRAConfig, adapter_state, without_adapters

ARCHITECTURES = {
    "llama": {},
    "qwen2": {"tie_word_embeddings": True},
    "qwen3": {"tie_word_embeddings": False},
    "qwen3_moe": {},
    "gemma3_text": {"final_logit_softcapping": 3.0},
    "granite": {"logits_scaling": 2.0, "embedding_multiplier": 2.0},
    "cohere": {"logit_scale": 0.5},
    "gpt2": {},
}
PIECES = [([5, 6, 7], [8, 9]), ([10], [11, 12, 13, 14]), ([20, 21, 22, 23, 24], [25])]


def build(architecture="qwen3", seed=0, **settings):
    overrides = {**ARCHITECTURES.get(architecture, {}), **settings.pop("overrides", {})}
    return CausalLMConfig(preset="tiny", architecture=architecture, overrides=overrides, **settings).build(seed=seed)


@cache
def model(architecture="qwen3"):
    """Shared: tests must not change it."""
    return build(architecture, temperature=0.7, logit_chunk=4, add_value_head=True)


def batch_of(tokens, **leaves):
    logprob, context = torch.zeros(tokens.mask.shape), {**tokens.context, **leaves}
    return Batch.of(Trajectory.of(context=context, action=tokens.action, logprob=logprob, mask=tokens.mask))


def score(policy, rows, **layout) -> Rescored:
    return policy.default_forward(batch_of(token_batch(rows, **layout)))


def per_sequence(policy, rows, **layout):
    """Log-probabilities, entropies and values of the responses, as one tensor for each sequence."""
    tokens = token_batch(rows, **layout)
    found = policy.default_forward(batch_of(tokens))
    stacked = torch.stack([found.logprob, found.entropy, found.value])
    segments, order = tokens.context["segment_ids"], []
    for b, row in enumerate(rows):
        order += [stacked[:, b, tokens.mask[b] & (segments[b] == number + 1)] for number in range(len(row))]
    return order


@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_scores_are_those_of_transformers(architecture):
    policy = model(architecture)
    for (prompt, response), row in zip(PIECES, [[piece] for piece in PIECES], strict=True):
        ids = torch.tensor([[*prompt, *response]])
        logits = policy.network(input_ids=ids, use_cache=False).logits[0, len(prompt) - 1 : -1]
        expected = torch.distributions.Categorical(logits=logits / 0.7)
        found = score(policy, [row])
        torch.testing.assert_close(
            found.logprob[0, len(prompt) - 1 :], expected.log_prob(torch.tensor(response)), rtol=1e-5, atol=1e-5
        )
        torch.testing.assert_close(found.entropy[0, len(prompt) - 1 :], expected.entropy(), rtol=1e-5, atol=1e-5)
        with torch.no_grad():
            squares = score(policy, [row]).sum_pi_squared[0]
        torch.testing.assert_close(squares[len(prompt) - 1 :], expected.probs.square().sum(-1), rtol=1e-5, atol=1e-6)
        assert not squares[: len(prompt) - 1].any()
        assert not found.logprob[0, : len(prompt) - 1].any()


@pytest.mark.parametrize("architecture", ["llama", "qwen2", "qwen3_moe", "gemma3_text", "gpt2"])
def test_padding_and_packing_change_nothing(architecture):
    policy = model(architecture)
    alone = [per_sequence(policy, [[piece]])[0] for piece in PIECES]
    together = [[piece] for piece in PIECES]
    layouts = [
        per_sequence(policy, together),
        per_sequence(policy, together, pad_id=77),
        per_sequence(policy, together, side="left", pad_id=77),
        per_sequence(policy, [PIECES]),
        per_sequence(policy, [PIECES[:2], PIECES[2:]], side="left"),
    ]
    for found in layouts:
        for one, other in zip(alone, found, strict=True):
            torch.testing.assert_close(one, other, rtol=1e-5, atol=1e-5)


def test_rows_may_be_joined_for_kernels_of_packed_sequences():
    policy = build(add_value_head=True)
    rows = [PIECES[:2], PIECES[2:]]
    apart = per_sequence(policy, rows, side="left")
    policy.joined = True
    for one, other in zip(apart, per_sequence(policy, rows, side="left"), strict=True):
        torch.testing.assert_close(one, other, rtol=1e-5, atol=1e-5)


def test_greedy_text_is_the_most_likely_under_teacher_forcing():
    policy = model("qwen3_moe")
    prompt, written = [5, 6, 7], []
    generated = policy.network.generate(
        torch.tensor([prompt]), max_new_tokens=6, do_sample=False, eos_token_id=None, pad_token_id=0
    )
    for _ in range(6):
        hidden = policy.hidden_states({"input_ids": torch.tensor([prompt + written])})
        written.append(int(policy.logits(hidden[0, -1]).argmax()))
    assert generated[0].tolist() == prompt + written
    scores = policy.logits(policy.hidden_states({"input_ids": torch.tensor([prompt + written[:-1]])}))
    assert scores[0, 2:].argmax(-1).tolist() == written


def plain(hidden, tokens, head, temperature):
    logprobs = torch.log_softmax(head(hidden) / temperature, -1)
    return logprobs.gather(-1, tokens[:, None])[:, 0], -(logprobs.exp() * logprobs).sum(-1)


@pytest.mark.parametrize("chunk", [1, 3, 7, 100])
def test_chunks_change_neither_value_nor_gradient(chunk):
    generator = torch.Generator().manual_seed(0)
    hidden = torch.randn(7, 5, dtype=torch.float64, generator=generator)
    head = torch.nn.Linear(5, 11, dtype=torch.float64)
    tokens = torch.randint(0, 11, (7,), generator=generator)
    grads = []
    for scored in (
        lambda x: score_tokens(x, tokens, head, temperature=0.7, chunk=chunk),
        lambda x: plain(x, tokens, head, 0.7),
    ):
        x = hidden.clone().requires_grad_()
        logprob, entropy = scored(x)[:2]
        loss = (logprob * torch.arange(7)).sum() + entropy.square().sum()
        grads.append([loss, *torch.autograd.grad(loss, [x, head.weight, head.bias])])
    for one, other in zip(*grads, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-12, atol=1e-12)


@torch.no_grad()
def test_squared_probabilities_are_summed_in_float32_and_only_without_a_graph():
    """0.5² + 0.25² + 2 · 0.125² = 0.34375, of logits that bfloat16 has; chunks change nothing, and what is given stays as it is."""
    head = torch.tensor([[0.5, 0.25, 0.125, 0.125], [0.25, 0.25, 0.25, 0.25]]).log2().bfloat16()
    rows, tokens = torch.tensor([[1.0, 0.0], [0.0, 1.0], [1.0, 0.0]]).bfloat16(), torch.tensor([0, 1, 2])

    def logits(hidden):
        return hidden @ head

    for chunk in (1, 2, 9):
        _, _, squares = score_tokens(rows, tokens, logits, temperature=1 / math.log(2), chunk=chunk)
        torch.testing.assert_close(squares, torch.tensor([0.34375, 0.25, 0.34375]), rtol=1e-6, atol=0)
    with torch.enable_grad():
        assert score_tokens(rows, tokens, logits, temperature=1.0, chunk=2)[2] is None


WIDTH = 64


class Largest(TorchDispatchMode):
    """The most rows of the vocabulary that any operation made."""

    def __init__(self, vocabulary):
        super().__init__()
        self.vocabulary, self.rows = vocabulary, 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        out = func(*args, **(kwargs or {}))
        for tensor in out if isinstance(out, (tuple, list)) else [out]:
            if isinstance(tensor, torch.Tensor) and tensor.dim() and tensor.shape[-1] == self.vocabulary:
                rows = tensor.numel() // self.vocabulary
                self.rows = max(self.rows, 0 if rows == WIDTH else rows)  # the transposed weights of the head are no logits
        return out


def test_never_more_logits_than_a_chunk():
    policy = build(logit_chunk=5, overrides={"vocab_size": 391})
    batch = batch_of(token_batch([[([5], list(range(6, 46)))]]))
    with Largest(391) as largest:
        found = policy.default_forward(batch)
        (found.logprob + found.entropy).sum().backward()
    assert largest.rows == 5


def test_one_pass_for_everything_and_garbage_where_the_mask_is_off():
    policy, calls = build(add_value_head=True), []
    handle = policy.network.base_model.register_forward_hook(lambda *_: calls.append(1))
    tokens = token_batch([[piece] for piece in PIECES])
    clean = policy.default_forward(batch_of(tokens))
    assert len(calls) == 1
    handle.remove()
    tokens.action[~tokens.mask] = -100
    found = policy.default_forward(batch_of(tokens))
    assert torch.equal(found.logprob, clean.logprob)
    assert found.value.shape == found.entropy.shape == (3, 5)
    tokens.mask[:] = False
    policy.default_forward(batch_of(tokens)).logprob.sum().backward()


def test_dropout_and_jitter_are_off_and_checkpointing_changes_nothing():
    loud = {"attention_dropout": 0.5, "router_jitter_noise": 0.5, "output_router_logits": True}
    policy = build("mixtral", overrides=loud, gradient_checkpointing=True)
    quiet = build("mixtral")
    assert not policy.network.config.output_router_logits
    grads = []
    for mode, tested in ((True, policy), (False, policy), (True, quiet)):
        tested.train(mode).zero_grad()
        found = score(tested, [PIECES])
        found.logprob.sum().backward()
        grads.append([found.logprob, *(p.grad for p in tested.parameters())])
    for other in grads[1:]:
        for one, two in zip(grads[0], other, strict=True):
            torch.testing.assert_close(one, two, rtol=1e-5, atol=1e-5)
    noisy = build("gpt2", overrides={"resid_pdrop": 0.5, "embd_pdrop": 0.5}).train()
    assert torch.equal(score(noisy, [PIECES]).logprob, score(noisy.eval(), [PIECES]).logprob)


def test_sft_loss_is_a_masked_sum_of_cross_entropies():
    policy = model()
    assert isinstance(policy, HasSFTLoss)
    tokens = token_batch([[piece] for piece in PIECES])
    action, mask = tokens.action[..., 0], tokens.mask
    whole = policy.sft_loss(tokens.context, action, mask=mask)
    logits = policy.logits(policy.hidden_states(tokens.context))
    expected = torch.nn.functional.cross_entropy(logits[mask], action[..., 0][mask], reduction="sum")
    torch.testing.assert_close(whole.total, expected)
    assert whole.weight == 7
    assert whole.metrics["sft_loss"].mean == pytest.approx(float(expected.detach()) / 7)
    rows = [{name: leaf[b : b + 1] for name, leaf in tokens.context.items()} for b in range(3)]
    parts = [policy.sft_loss(rows[b], action[b : b + 1], mask=mask[b : b + 1]) for b in range(3)]
    torch.testing.assert_close(sum(part.total for part in parts), whole.total)
    assert policy.sft_loss(tokens.context, action).weight == mask.numel()


def test_imitation_learns_a_phrase():
    policy = build(lora=LoRAConfig(rank=8), add_value_head=True)
    tokens = token_batch([[piece] for piece in PIECES])
    trained = [p for p in policy.parameters() if p.requires_grad]
    before = float(score(policy, [PIECES]).logprob.detach().sum())
    optimizer = torch.optim.Adam(trained, lr=3e-2)
    for _ in range(25):
        optimizer.zero_grad()
        policy.sft_loss(tokens.context, tokens.action[..., 0], mask=tokens.mask).total.backward()
        optimizer.step()
    assert float(score(policy, [PIECES]).logprob.detach().sum()) > before / 4
    with torch.no_grad(), without_adapters(policy.network):
        reference = score(policy, [[piece] for piece in PIECES]).logprob
    torch.testing.assert_close(reference, score(build(seed=0), [[piece] for piece in PIECES]).logprob, rtol=0, atol=0)


def test_reinforce_learns_to_write_even_tokens():
    policy = build(temperature=0.9)
    optimizer = torch.optim.Adam(policy.parameters(), lr=3e-3)
    generator = torch.Generator().manual_seed(0)
    prompt = torch.full((128, 1), 5)
    share = []
    for _ in range(20):
        with torch.no_grad():
            logits = policy.logits(policy.hidden_states({"input_ids": prompt}))[:, 0]
            token = torch.multinomial((logits / 0.9).softmax(-1), 1, generator=generator)
        reward = (token[:, 0] % 2 == 0).float()
        share.append(float(reward.mean()))
        found = score(policy, [[([5], [int(t)])] for t in token])
        optimizer.zero_grad()
        (-(reward - reward.mean())[:, None] * found.logprob).mean().backward()
        optimizer.step()
    assert share[0] < 0.65
    assert share[-1] > 0.95


def test_adapters_and_value_head_are_what_is_trained():
    policy = build(lora=LoRAConfig(rank=2, target_modules=("q_proj", "v_proj")), add_value_head=True, precision="bf16")
    found = score(policy, [PIECES])
    assert (found.logprob.dtype, found.value.dtype) == (torch.float32, torch.float32)
    (found.logprob.sum() + found.value.sum()).backward()
    graded = {name for name, p in policy.named_parameters() if p.grad is not None}
    assert graded == {name for name, p in policy.named_parameters() if p.requires_grad}
    assert graded == {name for name, _ in policy.named_parameters() if ".lora_" in name or name.startswith("value_head.")}
    assert len(adapter_state(policy.network)) == 8


def test_bfloat16_is_near_and_itself_whatever_the_chunk():
    fine, coarse = build("llama"), build("llama", precision="bf16")
    coarse.load_state_dict(fine.state_dict())
    one, other = (score(policy, [[piece] for piece in PIECES]).logprob for policy in (fine, coarse))
    torch.testing.assert_close(one, other, rtol=0, atol=0.1)
    coarse.chunk = 2
    torch.testing.assert_close(other, score(coarse, [[piece] for piece in PIECES]).logprob, rtol=0, atol=1e-2)


def test_weights_travel_and_seeds_decide():
    before = torch.random.get_rng_state()
    one, again, other = build(seed=3, add_value_head=True), build(seed=3, add_value_head=True), build(seed=4, add_value_head=True)
    assert torch.equal(torch.random.get_rng_state(), before)
    assert all(torch.equal(a, b) for a, b in zip(one.state_dict().values(), again.state_dict().values(), strict=True))
    one.version = 7
    other.load(one.weights())
    assert other.version == 7
    assert list(one.weights().tensors) == sorted(one.state_dict())
    torch.testing.assert_close(score(one, [PIECES]).logprob, score(other, [PIECES]).logprob, rtol=0, atol=0)
    with pytest.raises(WeightSyncError):
        other.load(build(overrides={"hidden_size": 32}).weights())


def test_layout_of_tokens():
    tokens = token_batch([[([5, 6], [7, 8]), ([9], [10])], [([11, 12], [13])]], side="left", pad_id=99)
    assert tokens.context["input_ids"].tolist() == [[5, 6, 7, 9], [99, 99, 11, 12]]
    assert tokens.context["segment_ids"].tolist() == [[1, 1, 1, 2], [0, 0, 1, 1]]
    assert tokens.action[..., 0, 0].tolist() == [[6, 7, 8, 10], [99, 99, 12, 13]]
    assert tokens.mask.tolist() == [[False, True, True, True], [False, False, False, True]]
    with pytest.raises(ShapeError, match="prompts of at least one token"):
        token_batch([[([], [1])]])
    with pytest.raises(ShapeError, match="something to predict"):
        token_batch([[([1], [])]])


def test_configurations_are_checked():
    settings = {"preset": "tiny", "architecture": "llama", "overrides": {"hidden_size": 32}, "lora": {"rank": 2}}
    config = MODELS.build("causal_lm", settings, place="model")
    assert config.build(seed=0).network.config.hidden_size == 32
    for wrong, error, text in (
        ({}, ConfigError, "exactly one of model_path and preset, found neither"),
        ({"preset": "tiny", "model_path": "x"}, ConfigError, "found both"),
        ({"preset": "tiny", "temperature": 0.0}, ConfigError, "temperature"),
        ({"preset": "tiny", "logit_chunk": 0}, ConfigError, "logit_chunk"),
        ({"preset": "tiny", "architecture": "qwenn3"}, UnknownName, "Did you mean 'qwen3'"),
        ({"preset": "tiny", "overrides": {"rms_norm_eps": "x"}}, ConfigError, r"overrides: 'qwen3' can't have these values .*norm"),
        ({"preset": "tiny", "overrides": {"hidden_size": -4}}, ConfigError, r"overrides: 'qwen3' can't be built .*negative dim"),
        ({"preset": "tiny", "overrides": {"num_attention_heads": 0}}, ConfigError, r"overrides: 'qwen3' can't be built with these"),
        ({"preset": "tiny", "overrides": {"hiden_size": 3}}, UnknownName, "Did you mean 'hidden_size'"),
        ({"preset": "tiny", "attention": "flash_attention_2"}, ConfigError, "can't use flash_attention_2 here. Try eager"),
    ):
        with pytest.raises(error, match=text):
            CausalLMConfig(**wrong).build(seed=0)
    with pytest.raises(ShapeError, match="expected the key 'input_ids'"):
        model().hidden_states({"ids": torch.zeros(1, 1)})
    tokens = token_batch([PIECES])
    with pytest.raises(ShapeError, match="expected one token"):
        model().sft_loss(tokens.context, tokens.action[..., 0].expand(-1, -1, 2))


@pytest.mark.parametrize(("architecture", "overrides"), [("hyperclovax", {"logits_scaling": 3.0}), ("opt", {})])
def test_an_architecture_that_would_be_scored_wrong_is_refused(architecture, overrides):
    with pytest.raises(ConfigError, match=f"'{architecture}'.*in an unknown way"):
        build(architecture, overrides=overrides)
