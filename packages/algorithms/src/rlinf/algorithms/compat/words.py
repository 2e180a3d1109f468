"""Words of other systems and of papers, and what they are called here."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

ALIASES: Final[Mapping[str, str]] = {
    "rewards": "reward",
    "token_level_rewards": "reward",
    "values": "value",
    "loss_mask": "mask",
    "response_mask": "mask",
    "completion_mask": "mask",
    "logprobs": "logprob",
    "log_prob": "logprob",
    "old_logprobs": "logprob_old",
    "old_log_prob": "logprob_old",
    "proximal_logprobs": "logprob_proximal",
    "ref_logprobs": "logprob_ref",
    "ref_log_prob": "logprob_ref",
    "teacher_logprobs": "logprob_ref",
    "advantages": "advantage",
    "returns": "target",
    "prev_values": "value_old",
    "versions": "version",
    "current_version": "version_now",
    "scores": "score",
    "idx_to_traj": "episode",
}
"""Arguments, by the names that users of RLinf, verl and TRL know."""

AGGREGATIONS: Final[Mapping[str, str]] = {"seq-mean-token-sum-norm": "constant-length"}
"""Aggregations by verl's names. verl divides by the width of the batch if no constant is given; here one is needed."""

CORRECTIONS: Final[Mapping[str, str]] = {"tis": "truncate", "mis": "mask", "icepop": "mask"}
"""Modes of a correction, by the names of their papers."""

KL_TYPES: Final[Mapping[str, str]] = {"kl": "k1", "mse": "k2"}
"""Estimates of a divergence, by the names that verl and RLinf have for them."""

_GRPO: Final = "{} names an advantage: set adv_type to '{}' and loss_type to 'ppo_clip' (or another loss)."

_OFF_POLICY: Final = "'{}' learns from a replay buffer: set runner.task_type to 'embodied_off_policy'."
_ON_POLICY: Final = "'{}' learns from what the same weights decided, of which a buffer has little: leave runner.task_type out."

_DAGGER: Final = "DAgger is no loss: set the section dagger of a run with runner.task_type: embodied_sft."

OBJECTIVES: Final[Mapping[str, str]] = {
    **{name: _ON_POLICY.format(name) for name in ("ppo", "ppo_clip", "actor", "actor_critic", "reinforce", "grpo", "gae", "gspo")},
    "embodied_sac": "Soft actor-critic is 'sac'.",
    "rlt_ac": "Of RLT there is 'rlt_td3', with actor.model.model_type: rlt.",
    "dsrl": "DSRL is 'sac' with actor.model.model_type: dsrl.",
    "offline_iql": "IQL is 'iql'.",
    "embodied_dagger": _DAGGER,
    "redq": "REDQ is 'sac' with actor.model.num_q_heads: 10, critic_subsample_size: 2, actor_agg_q: mean and utd: 20.",
    "droq": "DroQ is 'sac' with actor.model.q_layer_norm: true, actor.model.q_dropout: 0.01 and utd: 20.",
    "ddpg": "DDPG is 'td3' with actor.model.num_q_heads: 1, target_noise: 0 and critic_actor_ratio: 1.",
    "double_dqn": "Double Q-learning is 'dqn' with double_q: true, the default.",
}
"""What to say of a word that is no off-policy objective."""

LOSSES: Final[Mapping[str, str]] = {
    **{name: _OFF_POLICY.format(name) for name in ("sac", "td3", "rlt_td3", "dqn", "iql", "cql", "awac", "crossq")},
    "embodied_nft": "NFT is 'nft'.",
    "embodied_dagger": _DAGGER,
    "embodied_sac": _OFF_POLICY.format("sac"),
    "rlt_ac": f"Of RLT there is 'rlt_td3'. {_OFF_POLICY.format('rlt_td3')}",
    "grpo": _GRPO.format("GRPO", "grpo"),
    "dr_grpo": "Dr. GRPO is adv_type 'grpo' with scale 'none', loss_type 'ppo_clip' and loss_agg_func 'constant-length'.",
    "rloo": _GRPO.format("RLOO", "rloo"),
    "opo": _GRPO.format("OPO", "opo"),
    "remax": _GRPO.format("ReMax", "remax"),
    "gae": _GRPO.format("GAE", "gae"),
    "reinforce++": _GRPO.format("REINFORCE++", "reinforce_plus_plus"),
    "reinforce_plus_plus": _GRPO.format("REINFORCE++", "reinforce_plus_plus"),
    "ppo": "PPO's clipped loss is 'ppo_clip', and 'actor_critic' with a critic's loss added.",
    "vanilla": "verl's 'vanilla' is 'ppo_clip'.",
    "gpg": "verl's 'gpg' is 'reinforce'.",
    "clip_cov": "Clip-Cov depends on the whole batch, so it is a function, rlinf.algorithms.clip_cov, and no loss by name.",
    "kl_cov": "KL-Cov depends on the whole batch, so it is a function, rlinf.algorithms.kl_cov, and no loss by name.",
}
"""What to say of a word that is no policy loss."""

ADVANTAGES: Final[Mapping[str, str]] = {
    "ppo": "PPO's advantage is 'gae', with a critic.",
    "dapo": "DAPO's advantage is 'grpo'; 'dapo' is a loss_type.",
    "gspo": "GSPO's advantage is 'grpo'; 'gspo' is a loss_type.",
    "gmpo": "GMPO's advantage is 'grpo'; 'gmpo' is a loss_type.",
    "dr_grpo": "Dr. GRPO's advantage is 'grpo' with scale 'none'.",
    "reinforce": "REINFORCE's advantage is 'discounted_returns'; 'reinforce' is a loss_type.",
    "returns": "Returns as advantages are 'discounted_returns'.",
    "reinforce++": "REINFORCE++ is 'reinforce_plus_plus'.",
    "v-trace": "V-trace is 'vtrace'.",
    "pass_at_k": "GRPO for pass@k is 'grpo_passk'.",
    "retrace": "Retrace gives targets for a critic of actions: rlinf.algorithms.retrace, a function and no advantage by name.",
    "otb": "The optimal token baseline is 'optimal_token_baseline'.",
}
"""What to say of a word that is no advantage."""

_CASES: Final = "Stored test cases, on standard input or as assertions, are the reward 'code', which runs them in your sandbox."

REWARDS: Final[Mapping[str, str]] = {
    "code_offline": f"{_CASES} Nothing here asks a language model for its judgement.",
    "code_tests": _CASES,
    "prime_code": _CASES,
    "livecodebench": _CASES,
    "gsm8k": "GSM8K is 'exact_match' with extraction 'hashes', or 'math'.",
}
"""What to say of a word that is no reward."""

ARGUMENTS: Final[Mapping[str, str]] = {
    **dict.fromkeys(("epsilon", "clip_ratio", "clip_eps", "cliprange"), "Pass clip_ratio_low and clip_ratio_high."),
    "epsilon_low": "Pass clip_ratio_low.",
    "epsilon_high": "Pass clip_ratio_high.",
    **dict.fromkeys(("beta", "kl_coef", "kl_loss_coef"), "The weight of the divergence from the reference is kl_beta."),
    **dict.fromkeys(("entropy_coeff", "entropy_coef"), "The weight of the entropy is entropy_bonus."),
    "loss_agg_mode": "The aggregation is loss_agg_func.",
    "loss_scale_factor": "The constant of 'constant-length' is loss_agg_length.",
    "scale_rewards": "TRL's scale_rewards is scale (of 'grpo'): group, batch or none.",
    "norm_adv_by_std_in_grpo": "verl's norm_adv_by_std_in_grpo is scale (of 'grpo' and 'grpo_passk'): group, or none for false.",
    "adv_norm": "AReaL's adv_norm is normalize_advantages: batch, group or none.",
    "whiten_advantages": "Advantages are whitened by normalize_advantages: batch, group or none.",
    "lambda": "λ is gae_lambda (of 'gae') or lam.",
}
"""What to say of an argument that nothing takes by that name."""
