"""NeMo RL's keys that are no option here: differences on purpose, no counterpart, and what nothing there reads."""

from __future__ import annotations

from dataclasses import replace

from lockstep.foreign import sentences as say
from lockstep.foreign.words import Key, Kind, differs, lose, none, under, unread

MEGATRON, DTENSOR = "policy.megatron_cfg", "policy.dtensor_cfg"
GENERATION = "policy.generation"
ADAM = "bf16 fp16 params_dtype sgd_momentum use_distributed_optimizer use_precision_aware_optimizer"
LAYOUT = "the critic and the teachers have the policy's layout, that of the learner"

_POLICY = (
    *unread("read by nothing in NeMo RL", "policy.activation_checkpointing_enabled", f"{MEGATRON}.converter_type",
            *under(f"{GENERATION}.mcore_generation_config", "buffer_guaranteed_fraction unified_memory_level")),
    *unread("declared, and read by nothing in NeMo RL", "policy.generation_batch_size"),
    *differs(say.PACKED, *under("policy", "train_micro_batch_size logprob_batch_size logprob_chunk_size"),
             *under("policy.dynamic_batching", "enabled logprob_mb_tokens sequence_length_round"),
             *under("policy.sequence_packing", "enabled logprob_mb_tokens sequence_length_round algorithm "
                 "microbatch_order fuse_loss")),
    *differs(say.NO_PADDING, "policy.make_sequence_length_divisible_by"),
    *differs(say.OFFLOAD, "policy.offload_optimizer_for_logprob"),
    *differs(say.SCORED_AS_SAMPLED, f"{GENERATION}.vllm_cfg.logprobs_mode"),
    *differs("a response stops at the model's own stop tokens", *under(GENERATION, "stop_token_ids")),
    lose(say.DROPOUT, f"{DTENSOR}.lora_cfg.dropout", 0, 0.0),
    *differs(say.DROPOUT, f"{DTENSOR}.lora_cfg.dropout_position"),
    lose("adapters are of the torch backend: learner.lora", f"{MEGATRON}.peft.enabled", False),
    lose("a model is used as its folder describes it", "policy.hf_config_overrides", {}),
    lose("a model is used as its folder describes it: write it into its config.json", "policy.hf_config_overrides.*"),
    *none("a model is as long as its folder's config.json says", "policy.hf_config_overrides.max_position_embeddings"),
    lose("a model is used as its folder describes it", f"{MEGATRON}.model_overrides", {}),
    lose("there is no loss of more tokens ahead", f"{MEGATRON}.mtp_loss_scaling_factor", 0, 0.0),
    *differs("a model with experts has no loss of their balance here, nor biases that follow their load",
             *under(MEGATRON, "moe_router_load_balancing_type moe_router_bias_update_rate moe_aux_loss_coeff "
                    "moe_router_enable_expert_bias"), "policy.hf_config_overrides.router_aux_loss_coef"),
    *differs("a router of experts is trained like every other weight", f"{MEGATRON}.freeze_moe_router"),
    *none(say.HARDWARE, f"{MEGATRON}.attention_backend", "policy.router_replay.enabled"),
    *none("the torch backend is the one without Megatron", f"{DTENSOR}.enabled", f"{DTENSOR}._v2"),
    *none("adapters are of linear maps of the layers, as torch makes them",
          *under(f"{DTENSOR}.lora_cfg", "exclude_modules lora_A_init match_all_linear use_triton"),
              f"{MEGATRON}.peft.*"),
    *none(say.HARDWARE, "policy.tokenizer.use_fastokens"),
    *none("the head is that of the algorithm", *under("policy.reward_model_cfg", "enabled reward_model_type")),
    *none(say.ADAMW, "policy.optimizer", *under("policy.optimizer.kwargs", "foreach fused"),
          *under(f"{MEGATRON}.optimizer", ADAM + " optimizer_cpu_offload optimizer_offload_fraction "
              "overlap_cpu_optimizer_d2h_h2d")),
    *none("lr_decay_style says it", f"{MEGATRON}.scheduler.lr_decay_iters", f"{MEGATRON}.optimizer.min_lr"),
    *differs("a warmup begins at the rate divided by its steps", f"{MEGATRON}.scheduler.lr_warmup_init"),
    *none("weight decay is constant", *under(f"{MEGATRON}.scheduler",
          "end_weight_decay start_weight_decay weight_decay_incr_style")),
    *none(say.ENGINE, *under(f"{GENERATION}.vllm_cfg", "async_engine distributed_executor_backend "
          "enable_vllm_metrics_logger http_refit_api_key_env_var http_refit_server_port kv_cache_dtype "
          "num_first_layers_in_bf16 num_last_layers_in_bf16 pipeline_parallel_size precision "
          "reset_encoder_cache_after_weight_update use_deep_gemm use_tqdm vllm_metrics_logger_interval "
          "zmq_refit_server_port load_format skip_tokenizer_init expose_http_server"),
          *under(GENERATION, "vllm_kwargs vllm_kwargs.* sglang_cfg.* trtllm_cfg.* trtllm_kwargs.* dynamo_cfg.* "
              "bad_words"),
          *under(f"{GENERATION}.vllm_cfg", "env_vars.* http_server_serving_chat_kwargs.* enable_prefix_caching")),
    *none(say.EXPERTS, f"{GENERATION}.vllm_cfg.expert_parallel_size", f"{DTENSOR}.expert_parallel_size",
          *under(MEGATRON, "expert_model_parallel_size expert_tensor_parallel_size moe_enable_deepep "
                 "moe_per_layer_logging moe_permute_fusion moe_router_dtype moe_shared_expert_overlap "
                 "moe_token_dispatcher_type")),
    *none("cluster.placement says it, and sampler.replicas how many engines",
          *under(f"{GENERATION}.colocated.resources", "gpus_per_node num_nodes")),
    *none("an option of Megatron as an engine", *under(f"{GENERATION}.mcore_generation_config",
          "block_size_tokens buffer_size_gb cuda_graph_impl enable_chunked_prefill enable_prefix_caching "
          "expose_http_server inference_cuda_graph_scope kv_cache_management_mode materialize_only_last_token_logits "
          "max_model_len max_tokens num_cuda_graphs num_speculative_tokens parsers refit_backend "
          "use_cuda_graphs_for_non_decode_steps"), f"{GENERATION}.mcore_generation_config.parsers.*"),
    *none(say.HARDWARE, *under(DTENSOR, "automodel_kwargs automodel_kwargs.* clear_cache_every_n_steps "
        "custom_parallel_plan "
          "env_vars env_vars.* sequence_parallel"),
          *under(MEGATRON, "apply_rope_fusion bias_activation_fusion checkpoint.async_save "
                 "checkpoint.ckpt_assume_constant_structure cuda_graph_impl cuda_graph_modules cuda_graph_warmup_steps "
                 "defer_fp32_logits empty_unused_memory_level env_vars env_vars.* fine_grained_activation_offloading "
                 "force_reconvert_from_hf fused_linear_logprobs_chunk_size gradient_accumulation_fusion "
                 "mtp_detach_heads mtp_num_layers mtp_use_repeated_layer "
                 "num_layers_in_first_pipeline_stage num_layers_in_last_pipeline_stage offload_modules pipeline_dtype "
                 "moe_grouped_gemm recompute_granularity recompute_modules sequence_parallel use_fused_linear_logprobs "
                 "use_fused_weighted_squared_relu use_gloo_process_groups"),
          *under(f"{MEGATRON}.distributed_data_parallel_config", "data_parallel_sharding_strategy grad_reduce_in_fp32 "
                 "overlap_grad_reduce overlap_param_gather use_custom_fsdp"),
          *under(GENERATION, "port_range_high port_range_low real_quant_export_cpu_offload refit_transport "
                 "refit_cfg.nixl.*")),
    *none("no model is trained in fp8", *under(f"{MEGATRON}.fp8_cfg", "enabled fp8 fp8_param fp8_recipe")),
    *none("there is no speculative decoding", *under("policy.draft", "aux_layer_indices enabled loss_weight "
        "model_name num_layers")),
)  # fmt: skip

_TOKENIZER = none("critics and teachers read the policy's tokens", *under("policy.tokenizer", "name chat_template"))
"""Keys that the policy has rows of its own for."""

_MIRRORED = tuple(
    replace(row, theirs=f"{owner}.{row.theirs.removeprefix('policy.')}")
    if row.kind is Kind.LOST
    else Key(f"{owner}.{row.theirs.removeprefix('policy.')}", differs=LAYOUT, kind=row.kind)
    for owner in ("value", "teacher")
    for row in (*_POLICY, *_TOKENIZER)
)
"""Keys of the policy that the critic and a teacher have as well."""

_MIRRORED_OPTIONS = differs(
    LAYOUT,
    *(
        key
        for owner in ("value", "teacher")
        for key in under(
            owner,
            "precision max_total_sequence_length optimizer.* "
            "dtensor_cfg.tensor_parallel_size dtensor_cfg.context_parallel_size dtensor_cfg.activation_checkpointing "
            "dtensor_cfg.cpu_offload dtensor_cfg.lora_cfg.enabled dtensor_cfg.lora_cfg.dim dtensor_cfg.lora_cfg.alpha "
            "dtensor_cfg.lora_cfg.target_modules dtensor_cfg.dp_replicate_size megatron_cfg.enabled "
            "megatron_cfg.activation_checkpointing megatron_cfg.tensor_model_parallel_size "
            "megatron_cfg.context_parallel_size megatron_cfg.pipeline_model_parallel_size megatron_cfg.optimizer.* "
            "megatron_cfg.scheduler.* dynamic_batching.train_mb_tokens sequence_packing.train_mb_tokens "
            "generation.backend generation.colocated.enabled generation.max_new_tokens generation.temperature "
            "generation.top_k generation.top_p generation.val_temperature generation.val_top_k generation.val_top_p "
            "generation.vllm_cfg.enforce_eager generation.vllm_cfg.gpu_memory_utilization "
            "generation.vllm_cfg.max_model_len generation.vllm_cfg.tensor_parallel_size",
        )
    ),
)

_TEACHER = (
    *differs(
        "a teacher is not trained", "teacher.scheduler", "teacher.max_grad_norm", "teacher.train_global_batch_size"
    ),
    *differs(
        "teachers and the critic read the tokens of the policy",
        *(
            f"{owner}.{key}"
            for owner in ("value", "teacher")
            for key in ("tokenizer.chat_template_kwargs", "tokenizer.chat_template_kwargs.*", "generation.stop_strings")
        ),
    ),
)

TOKENIZERS = "their distillation across tokenizers, of rows; `distill` has one tokenizer, and the loss of kl_type"

_TRAINERS = ("ppo", "grpo", "dpo", "sft", "rm", "distillation")

OTHERS = (
    *_POLICY,
    *_MIRRORED,
    *_MIRRORED_OPTIONS,
    *_TEACHER,
    *differs(say.STEP_ZERO, *(f"{name}.{key}" for name in _TRAINERS for key in ("val_at_start", "val_at_end",
        "val_start_at"))),
    *differs(say.PACKED, *(f"{name}.{key}" for name in _TRAINERS
             for key in ("val_batch_size", "val_global_batch_size", "val_micro_batch_size"))),
    *differs(say.ESTIMATOR, *under("loss_fn", "reference_policy_kl_type kl_input_clamp_value kl_output_clamp_value "
             "use_on_policy_kl_approximation")),
    *differs("the reference is loaded where its coefficient is not 0",
        *under("ppo", "skip_reference_policy_logprobs_calculation"),
        *under("grpo", "skip_reference_policy_logprobs_calculation")),
    *differs(say.WHOLE_STATE, *under("checkpointing", "enabled model_save_format save_consolidated save_optimizer")),
    *none("part of ppo.reward_scaling", *(f"{name}.reward_scaling.{key}" for name in ("ppo", "grpo")
          for key in ("source_min", "source_max", "target_min", "target_max"))),
    *none("the keys of the section say it", *(f"{name}.reward_shaping.{key}" for name in ("ppo", "grpo")
          for key in ("enabled", "max_response_length"))),
    *none("rollouts are one step ahead or none", *(f"{name}.{key}" for name in ("ppo.async_ppo", "grpo.async_grpo")
          for key in ("in_flight_weight_updates", "max_trajectory_age_steps", "recompute_kv_cache_after_weight_updates",
                      "max_generation_failures", "warmup_generation_lead_steps",
                      "drop_incomplete_targets_on_restore"))),
    *none("a step samples as many prompts as it learns from", "ppo.batch_multiplier", "grpo.batch_multiplier"),
    *none("a run ends after its steps; `lockstep check` compares its metrics with bounds",
          *under("grpo", "stop_at_validation_metric stop_at_validation_threshold")),
    *(lose("advantages have no bounds", f"grpo.advantage_clip_{end}") for end in ("low", "high")),
    *(lose("an advantage is that of the reward alone", f"grpo.{name}_advantage")
      for name in ("invalid_tool_call", "malformed_thinking")),
    lose("rewards have no penalties for forms but those of the reward itself", "reward_penalties.*", False),
    *none("gdpo alone reads it", "grpo.adv_estimator.reward_weights"),
    *none("part of reward_penalties", "reward_penalties.token_ids", "reward_penalties.token_ids.*"),
    lose("right answers are not learned besides, as in SFT", "loss_fn.positive_example_nll_weight", 0, 0.0),
    lose("a distillation has one turn", "distillation.max_rollout_turns", 1),
    lose("there is no distillation beside rewards", "on_policy_distillation", {}),
    lose("there is no distillation beside rewards", "on_policy_distillation.*", False),
    lose(TOKENIZERS, "teachers", []),
    lose(TOKENIZERS, "loss_fn.gold_loss", False),
    lose(TOKENIZERS, "loss_fn.xtoken_loss", False),
    lose(TOKENIZERS, "loss_fn.ce_loss_scale", 0, 0.0),
    lose(TOKENIZERS, "loss_fn.kl_loss_weight", 0, 0.0),
    *none("part of the loss across tokenizers", *under("loss_fn", "temperature vocab_topk uncommon_topk reverse_kl "
          "exact_token_match_only dynamic_loss_scaling kd_loss_mode sum_weights_metric alpha "
          "normalize_teacher_by_vocab")),
    *none("logs are in the run's folder", "logger.monitor_gpus", *under("logger.gpu_monitoring", "collection_interval "
          "flush_interval"), "logger.mlflow.tracking_uri", "logger.tensorboard", "logger.tensorboard.log_dir",
          "logger.wandb.log_nemo_gym_full_result_tables", *under("logger", "swanlab_enabled swanlab.name "
          "swanlab.project")),
    *none("names the file of their other options", "defaults"),
    *none(say.HARDWARE, *under("cluster", "master_port_range_high master_port_range_low segment_size"), "data_plane.*",
        "async_rl.*", *under("grpo", "calculate_advantages_on_gpu deduplicate_multimodal_data debug_payload_metrics"),
          "env.math.num_workers"),
    *none("an environment of theirs", "env.*"),
)  # fmt: skip
