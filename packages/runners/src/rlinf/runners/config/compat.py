"""Keys that users of other systems write, and what stands for them here: an unknown key of these is told with its remedy."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

_STATES = (
    "Leave it out: an evaluation plays each initial state of its protocol once; env.eval.initial_states, init_ids, tasks and seeds "
    "say which."
)
_BATCHING = (
    "Leave it out: each slot goes on as soon as it is answered. To decide in one pass for those that have asked meanwhile, set "
    "rollout.batching: waiting, with rollout.batch_wait_ms: 20."
)
_CLOSED = "Set env.offload: true, with which all environments are closed while nobody plays in them."
_SEED = "Set runner.seed, from which all randomness comes."
_NAMED = "Leave it out: each group of workers has the name of its component."
_CAPTION = "Leave it out: a film says the step, its reward, the return and the task."
_CHANNEL = "Leave it out: channels are made by the run."
_EMBODIED = "It is for language models; of robot policies some have actor.model.temperature, and env.eval.mode says who samples."
_CRITIC = "Leave it out: the critic is a head of the trained model (actor.model.add_value_head), and algorithm.loss_type uses it."
_LENGTHS = "Set rollout.sampling_params.max_new_tokens and data.max_prompt_length."
_EPISODES = "Leave it out: set env.eval.episodes, over as many environments as env.eval.total_num_envs says."
_TOKENS = "Set actor.max_tokens_per_mbs of a reasoning run."
_ENGINE = "Set it in rollout.server_args (SGLang) or rollout.engine_args (vLLM), by the name that the engine has for it."
_COMPILED = "Leave it out: of embodied runs; engines of text compile by themselves, as rollout.server_args and engine_args say."
_MODEL_FOLDER = "Leave it out: the folder at actor.model.model_path says it."
_OFFLOAD = "Set actor.offload: weights, gradients and optimizer state go together."
_SCHEDULE = "Set actor.optim: {lr, lr_scheduler, lr_warmup_steps, min_lr_factor, total_training_steps}."
_LABELS = "Give apps/embodied/label_advantages.py --advantage-lookahead-step and --positive-quantile; nothing is discounted."
_PACED = "Set rollout.max_lag: environments play at most so many weight updates ahead, and nothing that was played is thrown away."


def _below(section: str, remedies: Mapping[str, str]) -> dict[str, str]:
    return {f"{section}.{name}": remedy for name, remedy in remedies.items()}


_SECTIONS: Final[Mapping[str, str]] = {
    "critic": _CRITIC,
    "inference": "Place the component: cluster.component_placement.inference. It scores with what actor says.",
    "profiler": "Set cluster.tracer: {enabled: true}, and read it with `rlinf trace summary RUN`.",
    "weight_syncer": "Set actor.weight_syncer.",
    "tokenizer": "Leave it out: the tokenizer is that of actor.model.",
    "actor_rollout_ref": "Its parts are the sections actor (with actor.model), rollout and reference.",
    "trainer": "Set runner, and cluster for nodes and devices.",
}
_RUNNER: Final[Mapping[str, str]] = {
    "max_epochs": (
        "Runs are counted in iterations: set runner.max_steps. An epoch is one iteration of an embodied run; of a reasoning run it "
        "is as many as there are training problems, divided by data.rollout_batch_size."
    ),
    "seq_length": _LENGTHS,
    "max_prompt_length": "Set data.max_prompt_length, or actor.model.max_prompt_length of a robot policy.",
    "logger.experiment_name": "Set runner.experiment_name.",
    "logger.wandb_proxy": "Leave it out, and set the environment variable HTTPS_PROXY, to which wandb keeps.",
    "output_dir": "Set runner.logger.log_path; the run's folder there is runner.experiment_name.",
    "enable_decoupled_mode": _BATCHING,
    "rollout_queue_size": "Set rollout.batching: waiting, with rollout.max_batched_requests.",
    "only_eval": "Leave it out: evaluate with eval.py of the app, or `rlinf eval`.",
    "eval_policy_path": "Set runner.ckpt_path, or name the run: `rlinf eval RUN`.",
    "weight_sync_interval": "Leave it out: the rollout gets new weights after each iteration; rollout.max_lag lets it run ahead.",
    "per_worker_log": "Leave it out: each worker's log is in `worker_logs` of the run's folder.",
    "overlap_env_bootstrap": "Leave it out: while the actor trains, environments are always reset for the next iteration.",
    **dict.fromkeys(("enable_dynamic_batch_size", "max_tokens_per_mbs"), _TOKENS),
}
_ENV: Final[Mapping[str, str]] = {
    **{
        name: f"Set env.train.wrappers: [{{type: shaped_reward, {name}: …}}]; an evaluation reports the task's own rewards."
        for name in ("reward_coef", "use_rel_reward", "use_step_penalty")
    },
    "action_format": "Set env.train.wrappers: [{type: action_format, format: …}], which evaluations take over.",
    "policy_setup": "Set env.train.wrappers: [{type: action_format, format: …}], which evaluations take over.",
    "seed": _SEED,
    "delay_sampler": "Set env.train.wrappers: [{type: latency, steps: [least, most]}].",
    **dict.fromkeys(("is_eval", "only_eval"), "Leave it out: env.eval is what evaluations use."),
    "enable_offload": _CLOSED,
    "enable_init_offload": _CLOSED,
    "simulator_type": "Set env_type, with the environment's own parameters in init_params.",
    "num_envs": "Set total_num_envs: all env workers together.",
    "num_group": "Set total_num_envs, of which group_size make a group.",
    "task_suite_name": "Set init_params: {suite: …} of env_type: libero.",
    "obs_mode": "Set it in init_params.",
    "wrap_obs_mode": "Set obs_mode in init_params: rgb for policies that see, state for others.",
    **dict.fromkeys(("override_cfg", "override_cfgs"), "Set what is different in init_params; it is the same for all env workers."),
    "init_params.id": "Set task_id (maniskill, metaworld) or env_id (gymnasium).",
    "init_params.num_envs": "Set total_num_envs beside init_params.",
    "init_params.max_episode_steps": "Set max_episode_steps beside init_params.",
}
_TRAIN: Final[Mapping[str, str]] = {
    "n_chunk_steps": "Set env.train.max_steps_per_rollout_epoch, in decisions, each of which is a chunk of actions.",
    "video_cfg": "Set env.eval.video_cfg: evaluations are filmed, and env.train.data_collection records training.",
    "specific_reset_id": "Leave it out for training; an evaluation has env.eval.init_ids.",
}
_EVAL: Final[Mapping[str, str]] = {
    "use_fixed_reset_state_ids": _STATES,
    "use_ordered_reset_state_ids": _STATES,
    "specific_reset_id": "Set env.eval.init_ids, with env.eval.initial_states: id.",
    "rollout_epoch": _EPISODES,
    "group_size": _EPISODES,
    "auto_reset": _EPISODES,
    "max_steps_per_rollout_epoch": "Leave it out: every episode is played to its end; env.eval.max_episode_steps cuts it.",
    "video_cfg.video_base_dir": "Leave it out: films go to `video` in the run's folder.",
    **dict.fromkeys(("video_cfg.info_on_video", "video_cfg.extra_info_on_video"), _CAPTION),
    "video_cfg.fps": "Leave it out: a film has 20 frames a second, one for each control step.",
}
_ROLLOUT: Final[Mapping[str, str]] = {
    "group_name": _NAMED,
    "channel": _CHANNEL,
    "enable_decoupled_mode": _BATCHING,
    "rollout_queue_size": "Set rollout.batching: waiting, with rollout.max_batched_requests.",
    "enable_offload": "Set rollout.offload; a reasoning run has actor.offload alone.",
    "backend": "Leave it out, or set rollout.rollout_backend of a reasoning run: hf, vllm, sglang or openai.",
    "generation_backend": "Leave it out, or set rollout.rollout_backend of a reasoning run: hf, vllm, sglang or openai.",
    "model_dir": "Set actor.model.model_path: the rollout builds the model that is trained.",
    "model_arch": "Set actor.model.model_path: the folder says the architecture.",
    "recompute_logprobs": "Set algorithm.recompute_logprobs.",
    "return_logprobs": "Leave it out: the log-probability of each decision is always kept.",
    "collect_transitions": "Leave it out: off-policy runs keep transitions in algorithm.replay_buffer.",
    "collect_prev_infos": "Leave it out: what training needs of a decision is always kept.",
    "expert_model": "Set the section dagger of a fine-tuning (apps/embodied/sft.py), whose expert is the environment's own.",
    "sglang": "Set rollout.server_args: {attention_backend: …}.",
    "vllm": "Set rollout.engine_args: {enable_prefix_caching: …}.",
    "pipeline_parallel_size": "Leave it out: an engine is parted by rollout.tensor_parallel_size, and copied by its placement.",
    "eos": "Set rollout.sampling_params.stop_token_ids; without it the tokenizer's end counts.",
    "padding": "Leave it out: nothing is padded before it is trained on.",
    "detokenize": "Leave it out: text is made of tokens where a reward reads it.",
    "print_outputs": "Leave it out: `transcripts.jsonl` of the run has runner.transcripts problems of each iteration.",
    **dict.fromkeys(("validate_weight", "validate_save_dir"), "Leave it out, or set actor.weight_syncer.verify."),
    "sync_precision": "Set rollout.precision of a reasoning run, to which weights are cast before they are sent.",
    **dict.fromkeys(
        (
            "attention_backend",
            "cuda_graph_max_bs",
            "disable_log_stats",
            "distributed_executor_backend",
            "enable_chunked_prefill",
            "enable_flash_infer_sampling",
            "enable_prefix_caching",
            "sglang_decode_log_interval",
            "use_torch_compile",
        ),
        _ENGINE,
    ),
}
_ACTOR: Final[Mapping[str, str]] = {
    "group_name": _NAMED,
    "channel": _CHANNEL,
    "seed": _SEED,
    "enable_offload": "Set actor.offload.",
    **dict.fromkeys(("offload_optimizer", "offload_weight", "offload_grad"), _OFFLOAD),
    "enable_sft_co_train": "Set algorithm.co_training: {path: …}, the demonstrations of which each update learns, too.",
    "sft_loss_weight": "Set algorithm.co_training: {path: …, weight: 0.1}.",
    "checkpoint_load_path": "Set runner.ckpt_path for weights, or runner.resume_dir for a run that goes on.",
    "checkpoint_save_path": "Leave it out: checkpoints are in the run's folder, below runner.logger.log_path.",
    "tokenizer": "Leave it out: the tokenizer is that of actor.model.",
    "lr_sched": _SCHEDULE,
    "critic_optim": "Set actor.optim.value_lr: the critic's learning rate; all else is as in actor.optim.",
    "sync_weight_no_wait": _PACED,
    "sync_precision": "Set rollout.precision, to which weights are cast before they are sent.",
    "megatron": "Its keys stand in actor itself: actor.tensor_model_parallel_size, actor.recompute, …",
    "mcore_gpt": "Leave it out: training_backend: megatron has one implementation.",
    "spec_name": "Leave it out: training_backend: megatron has one implementation.",
    "enable_dp_load_balance": "Leave it out: groups are always dealt to ranks by their tokens.",
    "calculate_flops": "Leave it out: `time/tokens_per_s` is the speed that is measured.",
}
_MODEL: Final[Mapping[str, str]] = {
    "is_lora": "Set actor.model.lora: {rank: 32}, or leave it out to train without adapters.",
    "lora_rank": "Set actor.model.lora: {rank: …}.",
    "lora_alpha": "Set actor.model.lora: {alpha: …}.",
    "lora_path": "Set actor.model.lora, and runner.ckpt_path to what an earlier run saved.",
    "ckpt_path": "Set runner.ckpt_path.",
    "model_name": "Set actor.model.model_type; the folder at actor.model.model_path says the rest.",
    "model_arch": "Set actor.model.model_type: causal_lm, or vlm for pictures; the folder at actor.model.model_path says the rest.",
    **dict.fromkeys(("action_dim", "state_dim", "obs_dim", "proprio_dim"), "Leave it out: the environment says it."),
    **dict.fromkeys(("hidden_size", "add_bias_linear", "make_vocab_size_divisible_by", "low_cpu_mem_usage"), _MODEL_FOLDER),
    "trust_remote_code": "Leave it out: nothing in a checkpoint can run code.",
    "attn_implementation": "Set actor.model.attention of a language model; other policies have one kernel.",
    "load_to_device": "Leave it out: a worker's placement says where its model is; actor.offload and rollout.offload make room.",
    **dict.fromkeys(("implementation", "implementation_version"), "Leave it out: there is one implementation of each model."),
    "use_wrist_image": "Set actor.model.num_images_in_input (openvla_oft); others take the cameras that the environment has.",
    "unconditional_prob": "Set actor.model.condition: {unconditional_prob: 0.1} of flow_policy, pi0 or pi05, with data.labels.",
    "value_type": "Leave it out: a chunk of actions is one decision, with one value.",
    "vh_mode": "Leave it out: actor.model.add_value_head adds the critic that the model has.",
    "policy_setup": "Set env.train.wrappers: [{type: action_format, format: …}], which evaluations take over.",
    "do_sample": "Leave it out: rollouts sample, and evaluations take the most likely action unless env.eval.mode is train.",
    "add_q_head": "Set actor.model.num_q_heads.",
    "q_head_type": "Set actor.model.q_head: multi or crossq.",
    "openpi": (
        "Its keys stand in actor.model itself (num_action_chunks, train_expert_only, value_after_vlm, …); those of denoising "
        "stand in actor.model.sampling."
    ),
    "action_chunk": "Set actor.model.num_action_chunks.",
    "noise_params": "Set actor.model.sampling.noise_anneal: [start, end, iterations].",
    **{
        name: f"Set actor.model.sampling.{name}."
        for name in (
            "num_steps",
            "noise_method",
            "noise_level",
            "noise_anneal",
            "noise_logvar_range",
            "joint_logprob",
            "ignore_last",
        )
    },
    **{
        name: f"Set actor.{name} of training_backend: megatron."
        for name in (
            "tensor_model_parallel_size",
            "pipeline_model_parallel_size",
            "context_parallel_size",
            "expert_model_parallel_size",
            "sequence_parallel",
        )
    },
    **dict.fromkeys(
        ("recompute_granularity", "recompute_method", "recompute_num_layers"), "Set actor.recompute of training_backend: megatron."
    ),
    **dict.fromkeys(("seq_length", "encoder_seq_length", "variable_seq_lengths"), _LENGTHS),
}
_OPTIM: Final[Mapping[str, str]] = {
    "optimizer": "Leave it out: it is AdamW, or Adam with actor.optim.weight_decay: 0.",
    "critic_lr": "Set actor.optim.value_lr.",
    "min_lr": "Set actor.optim.min_lr_factor, a share of actor.optim.lr.",
    "min_lr_rate": "Set actor.optim.min_lr_factor.",
    "lr_warmup_steps_ratio": "Set actor.optim.lr_warmup_steps, in optimizer steps.",
    "num_cycles": "Leave it out: lr_scheduler: cosine is half a wave.",
    "use_distributed_optimizer": "Set actor.use_distributed_optimizer of training_backend: megatron.",
    **dict.fromkeys(
        ("bf16", "fp16"), "Set actor.precision (megatron), or actor.fsdp_config.mixed_precision and amp_autocast (fsdp)."
    ),
    "loss_scale": "Leave it out: with actor.fsdp_config.amp_autocast: {precision: fp16} the loss is scaled.",
}
_FSDP: Final[Mapping[str, str]] = {
    "reshard_after_forward": "Set actor.fsdp_config.sharding_strategy: full_shard for true, shard_grad_op for false.",
    **dict.fromkeys(
        ("forward_prefetch", "backward_prefetch", "limit_all_gathers", "use_orig_params"),
        "Leave it out: it is a switch of FSDP1; shards are FSDP2's, which needs none.",
    ),
    "use_liger_kernel": "Leave it out: no kernels are replaced.",
    "fsdp_size": "Set actor.fsdp_config.shard_group_size, with sharding_strategy: hybrid_shard.",
    "mixed_precision.buffer_dtype": "Leave it out: weights and gradients have types of their own, buffers keep theirs.",
    "amp": "Set actor.fsdp_config.amp_autocast.",
    "grad_scaler": "Leave it out: with actor.fsdp_config.amp_autocast: {precision: fp16} the loss is scaled.",
    **dict.fromkeys(
        ("wrap_policy.module_classes_to_wrap", "wrap_policy.no_split_names"),
        "Set actor.fsdp_config.wrap_policy.transformer_layer_cls_to_wrap, or leave it out: models declare their blocks.",
    ),
}
_ALGORITHM: Final[Mapping[str, str]] = {
    "group_size": "Set env.train.group_size, or rollout.group_size of a reasoning run.",
    "reward_type": (
        "Leave it out: a chunk of actions is one decision, with one reward (the sum over the steps that were executed), one value "
        "and one share of credit, as chunk_level elsewhere."
    ),
    **{
        name: f"Set env.train.{name}."
        for name in ("rollout_epoch", "auto_reset", "ignore_terminations", "use_fixed_reset_state_ids", "max_episode_steps")
    },
    "n_chunk_steps": "Set env.train.max_steps_per_rollout_epoch, in decisions, each of which is a chunk of actions.",
    "num_group_envs": "Set env.train.total_num_envs, of which env.train.group_size make a group.",
    "eval_rollout_epoch": _EPISODES,
    "require_values": _CRITIC,
    "adv_estimator": "Set algorithm.adv_type.",
    "normalize_returns": "Leave it out: the critic learns value targets as they are.",
    **dict.fromkeys(("kl_penalty", "kl_penalty_type"), "Set algorithm.kl_type, with algorithm.kl_beta and reference.source."),
    "ratio_clip_eps": "Set algorithm.clip_ratio_low and algorithm.clip_ratio_high.",
    "sampling_params": (
        "Set rollout.sampling_params of a reasoning run, and eval.temperature; that of an embodied one is actor.model's, "
        "and env.eval.mode says whether evaluations sample."
    ),
    "length_params": "Set rollout.sampling_params.max_new_tokens.",
    "critic_warmup_steps": "Set actor.optim.critic_warmup_steps.",
    "n_minibatches": "Set actor.global_batch_size: an iteration has as many optimizer steps as batches of that size.",
    "training_batch_size_per_gpu": "Set actor.micro_batch_size, or actor.max_tokens_per_mbs of a reasoning run.",
    "logprob_forward_micro_batch_size": "Set actor.micro_batch_size, or actor.max_tokens_per_mbs of a reasoning run.",
    "rollout_batch_size_per_gpu": "Set rollout.max_running_requests.",
    "shuffle_rollout": "Leave it out: each update epoch has an order of its own.",
    "calculate_entropy": "Leave it out: algorithm.entropy_bonus above 0 needs it, and then it is computed.",
    "importance_sampling_fix": "Set algorithm.correction: {mode: truncate}, with algorithm.recompute_logprobs: true.",
    "importance_sampling_clip": "Set algorithm.correction: {mode: truncate, high: …}, with algorithm.recompute_logprobs: true.",
    "early_stop_imp_ratio": "No update is stopped: set algorithm.correction: {mode: mask}, which leaves out large ratios.",
    "use_valid_token_scale": "Set algorithm.loss_agg_func.",
    "fast_path_zero_loss_mask": "Leave it out: what is masked counts nothing.",
    "loss_scales": "Set algorithm.loss_scale: group, episode, agent or none.",
    "max_num_gen_batches": "Set algorithm.dynamic_sampling.max_waves.",
    "staleness_threshold": _PACED,
    "on_policy_min_ratio": _PACED,
    "rollout_store_size_per_rank": _PACED,
    "target_update_type": "Leave it out: the targets are those of the critics.",
    "entropy_tuning": "Its keys stand in algorithm itself: algorithm.auto_entropy_tuning, alpha_type, initial_alpha, …",
    "alpha_lr": "Leave it out: the temperature learns at actor.optim.lr.",
    "train_actor_steps": "Set algorithm.critic_actor_ratio: updates of the critics for one of the actor.",
    "min_buffer_size": "Set algorithm.replay_buffer.min_buffer_size.",
    "replay_buffer_capacity": "Set algorithm.replay_buffer.capacity.",
    "replay_buffer.load_path": "Set algorithm.demo_buffer: {type: replay, path: …}.",
    **dict.fromkeys(
        ("replay_buffer.enable_cache", "replay_buffer.cache_size", "replay_buffer.trajectory_format", "replay_buffer.auto_save"),
        "Set algorithm.replay_buffer.storage: memory or disk; each checkpoint has the buffer.",
    ),
    "replay_buffer.sample_window_size": "Set algorithm.replay_buffer.capacity: all that is kept is drawn from.",
    "demo_buffer.load_path": "Set algorithm.demo_buffer.path.",
    "demo_data_path": "Set algorithm.demo_buffer: {type: lerobot, path: …}.",
    "enable_sft_co_train": "Set algorithm.co_training: {path: …}, the demonstrations of which each update learns, too.",
    "sft_loss_weight": "Set algorithm.co_training: {path: …, weight: 0.1}.",
    "enable_drq": "Set env.train.wrappers: [{type: augment_images, shift: 4}], which moves what is played.",
    "actor_weight_schedule": "Set bc_weight, final_bc_weight and bc_weight_updates, which loss_type: rlt_td3 has.",
    "init_beta": "Set the section dagger of a fine-tuning (apps/embodied/sft.py).",
}
_DATA: Final[Mapping[str, str]] = {
    **dict.fromkeys(("advantage_lookahead_step", "positive_quantile", "discount_next_value"), _LABELS),
    **dict.fromkeys(("train_data_paths", "train_files"), "Set data.path of data.type: dataset, one file."),
    **dict.fromkeys(("val_data_paths", "val_files"), "Set data.validation_path of data.type: dataset, one file."),
    "dataset_name": "Set data.type, and data.path of data.type: dataset.",
    "filter_prompt_by_length": "Set data.filter_overlong_prompts.",
    "train_batch_size": "Set data.rollout_batch_size, in problems; actor.global_batch_size counts responses.",
    "max_response_length": "Set rollout.sampling_params.max_new_tokens.",
    "val_rollout_batch_size": "Set data.val_problems: how many problems an evaluation has.",
    "validation_shuffle": "Leave it out: evaluations always have the same problems.",
    "num_workers": "Leave it out: problems are read into memory.",
    **dict.fromkeys(("apply_chat_template", "use_chat_template"), "Set data.chat."),
    "system_prompt": "Set data.system.",
    "prompt_template": "Set data.system and data.chat.",
    "image_keys": "No file of pictures is read: register a task of your own, whose problems have them.",
}
_REWARD: Final[Mapping[str, str]] = {
    "reward_mode": "Leave it out: a response is judged once, when it is whole, by what reward.reward_type says.",
    "use_reward_model": "Leave it out: reward.reward_type says what judges, by name or as `module:attr`.",
    "group_name": _NAMED,
    "tokenizer": "Leave it out: the tokenizer is that of actor.model.",
    "reward_weights": "Set the parts by name: reward.qa_accuracy, think_format, answer_format (vqa), or reward.parts (composite).",
}
OTHERWISE: Final[Mapping[str, str]] = {
    "reward": (
        "Leave it out: an embodied run learns from the environment's rewards, which env.train.wrappers: [{type: shaped_reward, …}] "
        "changes."
    ),
    "rollout.rollout_backend": "Leave it out: actor.model decides by itself; generators are for language models.",
    "rollout.sampling_params": _EMBODIED,
    "rollout.model": "Leave it out: the rollout builds what actor.model says; rollout.precision of a reasoning run is its type.",
    "rollout.mode": "Leave it out: cluster.component_placement says who shares devices.",
    "rollout.gpu_memory_utilization": "It is vLLM's: SGLang has rollout.mem_fraction_static, and others take what they need.",
    "rollout.enforce_eager": "It is vLLM's: SGLang has rollout.server_args: {disable_cuda_graph: true}.",
    "rollout.offload": "Set actor.offload, with which actors and rollout workers take turns on their devices.",
    **dict.fromkeys(("rollout.enable_torch_compile", "rollout.enable_cuda_graph"), _COMPILED),
    "rollout.group_size": "Set env.train.group_size.",
    "actor.fsdp_config": "It belongs to training_backend: fsdp; Megatron's keys are actor.tensor_model_parallel_size, …",
    "actor.model.gradient_checkpointing": "Set actor.fsdp_config.gradient_checkpointing, or actor.recompute (megatron).",
    "actor.model.image_size": "Leave it out: images are resized to what the model sees.",
    "algorithm.update_epoch": "Set algorithm.utd: updates for each decision that is collected.",
    "algorithm.filter_rewards": "It is for embodied runs; in a reasoning run algorithm.dynamic_sampling replaces such groups.",
    "algorithm.dynamic_sampling": "It is for reasoning runs; algorithm.filter_rewards leaves groups out that agree.",
    "algorithm.behave_weight_threshold": "It belongs to algorithm.loss_type: decoupled_ppo, or decoupled_actor_critic.",
    "algorithm.advantage_mode": "It belongs to algorithm.adv_type: grpo_dynamic, or grpo_video.",
    "algorithm.use_reinpp_baseline": "It belongs to algorithm.adv_type: reinforce_plus_plus.",
    "algorithm.reinpp_kl_beta": "It belongs to algorithm.adv_type: reinforce_plus_plus; algorithm.kl_beta is that of losses.",
    "algorithm.bootstrap_type": "It is for off-policy runs; here env.train.bootstrap_truncated says what follows a cut episode.",
}
"""Keys that another kind of run, or another choice, does have."""

ELSEWHERE: Final[Mapping[str, str]] = {
    **_SECTIONS,
    **_below("runner", _RUNNER),
    **_below("env", {"group_name": _NAMED, "channel": _CHANNEL, "enable_offload": _CLOSED}),
    **_below("env.train", {**_ENV, **_TRAIN}),
    **_below("env.eval", {**_ENV, **_EVAL}),
    **_below("rollout", _ROLLOUT),
    **_below("actor", _ACTOR),
    **_below("actor.model", _MODEL),
    **_below("actor.optim", _OPTIM),
    **_below("actor.fsdp_config", _FSDP),
    **_below("algorithm", _ALGORITHM),
    **_below("data", _DATA),
    **_below("reward", _REWARD),
}
"""By dotted path; none of them is a key here."""

COMPONENTS: Final[Mapping[str, str]] = {"critic": _CRITIC}
"""What to say of a component that no run has."""

_EVALUATES: Final = "Name no other task type to evaluate: eval.py of the app, or `rlinf eval`, does."
TASK_TYPES: Final[Mapping[str, str]] = {
    "embodied_eval": _EVALUATES,
    "reasoning_eval": _EVALUATES,
    "math": "It is 'reasoning'.",
    "offline": "It is 'embodied_off_policy', with algorithm.offline_steps.",
    "coding_online_rl": "It is 'agent', with the workflow 'online'.",
}
"""What to say of a word that is no task type."""

VARIABLES: Final[Mapping[str, str]] = {
    "RLINF_TIMEOUT": "set cluster.timeout_s (of every wait), runner.timeout_s and the timeout_s of the trainer, in seconds",
    "RLINF_CATCH_FAILURE": "leave it out: the end of a process is always noticed; env.max_restarts and rollout.max_restarts count",
    "RLINF_CODE_WORKING_DIR": "leave it out: workers import from the folder in which the run was started, and from PYTHONPATH",
}
"""Environment variables that nobody reads here, and what stands for them."""
