"""A toy language model that attends within its sequences only, rows of text, and losses of tokens and of sequences."""

from __future__ import annotations

import torch

from rlinf.core import Batch, LossOutput, Metric, Rescored, Trajectory

VOCABULARY = 11
ROWS = ((3, 4), (1, 9), (5, 1), (2, 2), (1, 3), (6, 5), (1, 1))
"""Tokens of prompts and of responses."""


class Block(torch.nn.Module):
    """Causal attention within a sequence, with positions that begin anew in each."""

    def __init__(self, width: int, forks: bool = False) -> None:
        super().__init__()
        self.mix = torch.nn.Linear(width, 2 * width)
        self.out = torch.nn.Linear(width, width)
        self.own = torch.nn.Linear(width, width) if forks else None

    def forward(self, x, allowed, first):
        key, value = self.mix(torch.tanh(x)).chunk(2, -1)
        score = (x @ key.transpose(1, 2)).masked_fill(~allowed, float("-inf"))
        return forked(x + torch.tanh(self.out(score.softmax(-1) @ value)), self.own, first)


def forked(x, layer, first):
    """A layer that some rows alone pass through; where there are none, nobody asks it."""
    return x if layer is None or not first.any() else x + first[:, None, None] * layer(x)


class ToyWriter(torch.nn.Module):
    """Two blocks, a tied head and a critic; sees positions, so that a wrong segment shows."""

    version = 0
    sees_trees = True

    def __init__(self, seed: int = 0, width: int = 6, frozen: bool = False, forks: bool = False) -> None:
        super().__init__()
        generator = torch.Generator().manual_seed(seed)
        self.embedding = torch.nn.Embedding(VOCABULARY, width)
        self.blocks = torch.nn.ModuleList(Block(width, forks) for _ in range(2))
        self.adapter = torch.nn.Linear(width, width, bias=False)
        self.value_head = torch.nn.Linear(width, 1)
        self.own = torch.nn.Linear(width, width) if forks else None
        self.adapting = True
        with torch.no_grad():
            for parameter in self.parameters():
                parameter.copy_(0.4 * torch.randn(parameter.shape, generator=generator))
        if frozen:
            self.requires_grad_(False)
            self.adapter.requires_grad_(True)
            self.value_head.requires_grad_(True)

    def default_forward(self, batch):
        t = batch.trajectory
        segments = t.context["segment_ids"]
        same = (segments[:, :, None] == segments[:, None, :]) & (segments[:, :, None] > 0)
        columns = torch.arange(segments.shape[1], device=segments.device)
        causal = columns[:, None] >= columns
        if "seen_until" in t.context:
            until = t.context["seen_until"]
            same = (segments[:, :, None] > 0) & (columns[:, None] < until[:, None, :])
        place = (same & causal).sum(-1, keepdim=True)
        allowed = (same & causal) | torch.eye(len(columns), dtype=torch.bool, device=segments.device)
        x = self.embedding(t.context["input_ids"])
        x = x + torch.sin(place.to(x.dtype))
        first = t.group == 0
        for block in self.blocks:
            x = block(x, allowed, first)
        x = forked(x, self.own, first)
        if self.adapting:
            x = x + self.adapter(x)
        logits = (x @ self.embedding.weight.T).float()
        logprob = logits.log_softmax(-1)
        entropy = -(logprob.exp() * logprob).sum(-1)
        chosen = logprob.gather(-1, t.action.flatten(2)).squeeze(-1)
        value = self.value_head(x).squeeze(-1)
        squares = None if torch.is_grad_enabled() else torch.where(t.mask, logprob.exp().square().sum(-1), 0.0)
        logprob, entropy = torch.where(t.mask, chosen, 0.0), torch.where(t.mask, entropy, 0.0)
        return Rescored(logprob=logprob, entropy=entropy, value=value, sum_pi_squared=squares)


class AdaptedWriter(ToyWriter):
    """One that can do without its adapter."""

    def without_adapters(self):
        from contextlib import contextmanager

        @contextmanager
        def off():
            self.adapting = False
            try:
                yield
            finally:
                self.adapting = True

        return off()


def text_batch(rows=ROWS, seed: int = 3, left: bool = False) -> Batch:
    """Padded rows of text, prompts and responses of the given lengths, with every field that a loss may read."""
    g = torch.Generator().manual_seed(seed)
    size, horizon = len(rows), max(p + r for p, r in rows)
    segments, mask = torch.zeros(size, horizon, dtype=torch.long), torch.zeros(size, horizon, dtype=torch.bool)
    for row, (prompt, response) in enumerate(rows):
        start = horizon - prompt - response if left else 0
        segments[row, start : start + prompt + response] = 1
        mask[row, start + prompt : start + prompt + response] = True
    ids = torch.randint(VOCABULARY, (size, horizon), generator=g)

    def noise(*shape):
        return torch.randn(*shape, generator=g)

    trajectory = Trajectory.of(
        context={"input_ids": ids * segments, "segment_ids": segments},
        action=torch.randint(VOCABULARY, (size, horizon, 1, 1), generator=g),
        logprob=-2.4 + 0.1 * noise(size, horizon),
        reward=noise(size, horizon),
        terminated=mask,
        truncated=~mask,
        mask=mask,
        group=torch.arange(size) // 2,
        value=noise(size, horizon + 1),
        reference=-2.4 + 0.1 * noise(size, horizon),
        proximal=-2.4 + 0.1 * noise(size, horizon),
        episode=torch.arange(size),
    )
    return Batch.of(trajectory, noise(size, horizon), noise(size, horizon))


def token_loss(batch, evaluation):
    """PPO's clipped surrogate with its critic, KL and entropy; the mean over tokens."""
    t, mask = batch.trajectory, batch.trajectory.mask
    ratio = torch.where(mask, evaluation.logprob - t.proximal, 0.0).exp()
    gain = batch.credit.advantage
    loss = -torch.min(ratio * gain, ratio.clamp(0.8, 1.2) * gain) - 0.01 * evaluation.entropy
    moved = t.value[:, :-1] + (evaluation.value - t.value[:, :-1]).clamp(-0.5, 0.5)
    loss = loss + 0.5 * (moved - batch.credit.target).square() + 0.1 * (evaluation.logprob - t.reference).square()
    total, weight = torch.where(mask, loss, 0.0).sum(), mask.sum().float()
    return LossOutput(total=total, weight=weight, metrics={"ratio": Metric(float((ratio.detach() * mask).sum()), float(weight))})


def sequence_loss(batch, evaluation):
    """GSPO: one ratio for a row, the mean over rows; it also reads what follows the last token."""
    t, mask = batch.trajectory, batch.trajectory.mask
    count = mask.sum(1).clamp(min=1)
    log = torch.where(mask, evaluation.logprob - t.logprob, 0.0).sum(1) / count
    gain = torch.where(mask, batch.credit.advantage, 0.0).sum(1) / count
    last = mask.long().cumsum(1).argmax(1)
    after = t.value[torch.arange(len(mask)), last + 1]
    loss = -log.exp() * (gain + after) * (1.0 + t.group)
    return LossOutput(total=loss.sum(), weight=torch.tensor(float(len(mask))))


class OwnLoss:
    """`token_loss`, asked of the policy itself."""

    def of_policy(self, policy, batch):
        return token_loss(batch, policy.default_forward(batch))
