"""verl's keys that are no option here: differences on purpose, no counterpart, and what nothing there reads."""

from __future__ import annotations

from lockstep.foreign import sentences as say
from lockstep.foreign.verl_values import ACTOR, MODEL, OLD_REWARD, REF, REWARD, ROLLOUT
from lockstep.foreign.words import differs, lose, none, under, unread

LAYOUT = "policy, critic, reference and reward model have one layout, that of the learner"
FSDP = (
    "entropy_checkpointing entropy_from_logits_with_chunking forward_only forward_prefetch full_determinism "
    "model_dtype "
    "reshard_after_forward seed strategy ulysses_sequence_parallel_size use_orig_params use_torch_compile "
    "wrap_policy.min_num_params wrap_policy.transformer_layer_cls_to_wrap"
)
MEGATRON = (
    "dist_checkpointing_path dist_checkpointing_prefix dtype forward_only override_ddp_config override_ddp_config.* "
    "override_mcore_model_config override_mcore_model_config.* override_transformer_config "
    "override_transformer_config.* "
    "seed sequence_parallel use_dist_checkpointing use_distributed_optimizer use_mbridge vanilla_mbridge "
    "virtual_pipeline_model_parallel_size"
)
AXES = "tensor_model_parallel_size pipeline_model_parallel_size context_parallel_size"
SCHEDULE = (
    "lr_decay_steps lr_decay_style lr_warmup_init lr_wsd_decay_steps lr_wsd_decay_style min_lr num_cycles "
    "total_training_steps use_checkpoint_opt_param_scheduler weight_decay_incr_style"
)
ENGINE = (
    "cudagraph_capture_sizes disable_log_stats enable_chunked_prefill enable_prefix_caching engine_kwargs "
    "engine_kwargs.* load_format scheduling_policy skip_tokenizer_init limit_images data_parallel_size "
    "pipeline_model_parallel_size dtype"
)
MICRO = "ppo_micro_batch_size ppo_micro_batch_size_per_gpu use_dynamic_bsz"
LOGPROBS = (
    "log_prob_micro_batch_size log_prob_micro_batch_size_per_gpu log_prob_use_dynamic_bsz "
    "log_prob_max_token_len_per_gpu"
)
FORWARD = "forward_max_token_len_per_gpu forward_micro_batch_size forward_micro_batch_size_per_gpu"
STATE = "save_contents load_contents async_save"
PEFT = (
    "a2a_experimental adapter_path alpha dropout dropout_position dtype exclude_modules freeze_language_model "
    "freeze_vision_model freeze_vision_projection lora_A_init_method lora_B_init_method merge rank target_modules type"
)

OTHERS = (
    *unread("declared, and read by nothing in verl", "data.return_raw_input_ids",
            *under(ROLLOUT, "ignore_eos over_sample_rate multi_turn.num_repeat_rollouts multi_stage_wake_up")),
    *differs(say.PACKED, *under(ACTOR, MICRO), *under(ROLLOUT, LOGPROBS), *under(REF, LOGPROBS),
             *under("critic", MICRO + " loss_agg_mode ppo_max_token_len_per_gpu " + FORWARD), "trainer.balance_batch",
             *under("data", "micro_batch_size micro_batch_size_per_gpu balance_dp_token use_dynamic_bsz "
                    "max_token_len_per_gpu val_batch_size"),
             *under("reward_model", "micro_batch_size micro_batch_size_per_gpu use_dynamic_bsz "
                    "forward_max_token_len_per_gpu")),
    *differs(say.NO_PADDING, *under(ACTOR, "use_remove_padding megatron.use_remove_padding"),
        f"{MODEL}.use_remove_padding",
             f"{REF}.megatron.use_remove_padding", "critic.megatron.use_remove_padding",
             "critic.model.use_remove_padding",
             "reward_model.model.use_remove_padding", "reward_model.megatron.use_remove_padding", "use_remove_padding",
             "data.pad_mode"),
    *differs(say.RESUME, *under("trainer", "resume_mode resume_from_path del_local_ckpt_after_load")),
    *differs(say.STEP_ZERO, "trainer.val_before_train"),
    *differs(say.SHUFFLED, *under(ACTOR, "data_loader_seed shuffle"), *under("critic", "data_loader_seed shuffle"),
             "data.validation_shuffle"),
    *differs(say.WHOLE_STATE, *under(f"{ACTOR}.checkpoint", STATE), *under("critic.checkpoint", STATE),
             *under("trainer.checkpoint", STATE), *under("checkpoint", STATE), "trainer.max_critic_ckpt_to_keep"),
    *differs(say.SCORED_AS_SAMPLED, *under(ROLLOUT, "logprobs_mode calculate_log_probs")),
    *differs(say.OFFLOAD, *(f"{owner}.{key}" for owner in (ACTOR, REF, "critic.model", "critic", "reward_model.model",
        "reward_model")
             for key in ("fsdp_config.param_offload", "fsdp_config.optimizer_offload", "megatron.param_offload",
                         "megatron.optimizer_offload", "megatron.grad_offload")),
             "model.fsdp_config.cpu_offload", "model.fsdp_config.offload_params"),
    *differs(LAYOUT, *under(f"{REF}.fsdp_config", FSDP + " dtype fsdp_size offload_policy"),
             *under(f"{REF}.megatron", MEGATRON + " " + AXES + " expert_model_parallel_size "
                 "expert_tensor_parallel_size"),
             *under(REF, "entropy_checkpointing entropy_from_logits_with_chunking load_weight rollout_n strategy "
                    "ulysses_sequence_parallel_size use_torch_compile router_replay.*"),
             *under("critic.model.fsdp_config", FSDP + " dtype fsdp_size offload_policy"),
             *under("critic.megatron", MEGATRON + " " + AXES + " expert_model_parallel_size "
                 "expert_tensor_parallel_size"),
             *under("critic", "strategy ulysses_sequence_parallel_size load_weight nccl_timeout rollout_n enable"),
             *under("critic.model", "enable_activation_offload enable_gradient_checkpointing external_lib "
                 "override_config "
                    "override_config.* tiled_mlp.enabled tiled_mlp.num_shards tokenizer_path trust_remote_code use_shm "
                    "lora_alpha lora_rank target_modules"),
             *under("critic.model.lora", PEFT),
             *under("reward_model", "n_gpus_per_node nnodes nccl_timeout strategy ulysses_sequence_parallel_size "
                    "enable_resource_pool load_weight max_length"),
             *under("reward_model.megatron", MEGATRON + " " + AXES + " expert_model_parallel_size "
                 "expert_tensor_parallel_size"),
             *under("reward_model.model.fsdp_config", FSDP + " fsdp_size"),
             *under("reward_model.model", "external_lib input_tokenizer override_config override_config.* "
                    "trust_remote_code use_fused_kernels use_shm"),
             *under("reward_model.rollout", ENGINE + " enforce_eager expert_parallel_size free_cache_engine "
                    "gpu_memory_utilization max_model_len max_num_batched_tokens max_num_seqs name prompt_length "
                    "response_length tensor_model_parallel_size")),
    *none("the lengths are data.max_prompt_tokens and sampling.max_tokens", *under(ROLLOUT,
        "prompt_length response_length")),
    *none("the temperature decides; theirs too, where vLLM or SGLang generates", *under(ROLLOUT,
        "do_sample val_kwargs.do_sample")),
    *none("say reward, or a verifier per row (reward.type=by_row)", "data.reward_fn_key",
          *under("reward_manager", "source name module.path module.name"),
          *under("reward_model", "enable reward_manager launch_reward_fn_async use_reward_loop num_workers "
                 "reward_loop_source reward_loop_module_path reward_loop_class_name sandbox_fusion.* "
                 "reward_kwargs.overlong_buffer_cfg.log reward_kwargs.max_resp_len"),
          "reward_model.reward_kwargs.*"),
    *none(say.ENGINE, *under(ROLLOUT, ENGINE)),
    *none("episodes are an environment's matter", *under(f"{ROLLOUT}.multi_turn", "enable format max_parallel_calls "
          "max_tool_response_length max_user_turns tokenization_sanity_check_mode tool_response_truncate_side "
          "use_inference_chat_template completion_callback"), *under(f"{ROLLOUT}.agent",
          "num_workers default_agent_loop "
          "agent_loop_config_path custom_async_server.path custom_async_server.name"), "data.tool_config_path"),
    *none("an option of their rollouts", *under(ROLLOUT, "mode layered_summon skip_dump_dir skip_rollout trace.* "
        "prometheus.* "
          "profiler.* quantization_config_file checkpoint_engine.update_weights_bucket_megabytes "
          "checkpoint_engine.engine_kwargs "
          "checkpoint_engine.engine_kwargs.* layer_name_map.* mtp use_fire_sampling")),
    *none(say.EXPERTS, *under(f"{ACTOR}.megatron", "expert_model_parallel_size expert_tensor_parallel_size"),
          *under(ROLLOUT, "expert_parallel_size enable_rollout_routing_replay"), f"{ACTOR}.router_replay.*"),
    *none(say.ADAMW, *(f"{owner}optim.{key}" for owner in (f"{ACTOR}.", "critic.", "") for key in
          ("optimizer", "optimizer_impl", "override_optimizer_config", "override_optimizer_config.*"))),
    *none("the schedules are constant, linear and cosine", *under(f"{ACTOR}.optim", SCHEDULE),
          *under("critic.optim", SCHEDULE + " clip_grad"), *under("optim",
              SCHEDULE)),
    *none("read by a loss or an estimator of theirs that is not here", *under(f"{ACTOR}.policy_loss",
          "clip_cov_lb clip_cov_ratio clip_cov_ub kl_cov_ratio ppo_kl_coef"), *under(ACTOR, "tau_neg tau_pos "
          "calculate_sum_pi_squared sum_pi_squared_checkpointing")),
    *none("read by use_pf_ppo alone", *under("algorithm.pf_ppo", "reweight_method weight_pow")),
    *none("read by bypass_mode alone", "algorithm.rollout_correction.loss_type"),
    *none("read by rollout_rs alone", "algorithm.rollout_correction.rollout_rs_threshold"),
    *(lose("the function is called without them", f"{owner}.reward_kwargs{end}", {}) for owner in (REWARD, OLD_REWARD)
      for end in ("", ".*")),
    lose("responses are used as they are sampled", "algorithm.use_pf_ppo", False),
    lose("groups are left out where their rewards are alike", "algorithm.filter_groups.metric", "seq_reward",
         "seq_final_reward", "score"),
    lose("the learner's own log-probabilities are the old ones", "algorithm.rollout_correction.bypass_mode", False),
    lose("weights are used as they are", "algorithm.rollout_correction.rollout_is_batch_normalize", False),
    lose("no response is left out for its ratio", "algorithm.rollout_correction.rollout_rs"),
    *none(say.IMAGES, *under("data", "image_key image_patch_size video_key return_multi_modal_inputs"),
          f"{ACTOR}.freeze_vision_tower", f"{MODEL}.freeze_vision_tower"),
    *none("the tokenizer is the model's own, with its chat template", *under(MODEL,
        "tokenizer_path custom_chat_template"),
          *under("data", "tokenizer chat_template tools_key "
                 "enable_thinking_key multiturn.tools_key multiturn.enable_thinking_key")),
    *none("Python files of a model's folder run only where --trust names them", *(f"{owner}.trust_remote_code"
          for owner in (MODEL, "data", "model"))),
    *none("a model is used as its folder describes it", *under(MODEL, "override_config override_config.* "
        "hf_config_path "
          "external_lib mtp.* lora.*"), "model.external_lib"),
    *none("an option of their data sets", *under("data", "custom_cls.path custom_cls.name datagen.path datagen.name "
          "dataloader_num_workers filter_overlong_prompts_workers ignore_input_ids_mismatch multiturn.enable "
          "prompt_dict_keys "
          "response_dict_keys return_full_prompt return_raw_chat sampler.class_name sampler.class_path use_shm")),
    *none(say.HARDWARE, *under(f"{ACTOR}.fsdp_config", FSDP), *under(f"{ACTOR}.megatron", MEGATRON),
          *under(ACTOR, "calculate_entropy entropy_checkpointing entropy_from_logits_with_chunking load_weight "
              "rollout_n "
                 "use_fused_kernels use_prefix_grouper profiler.*"), f"{REF}.profiler.*", "critic.profiler.*",
          "reward_model.profiler.*",
          *under(MODEL, "enable_activation_offload exclude_modules fused_kernel_options.impl_backend tiled_mlp.enabled "
                 "tiled_mlp.num_shards use_fused_kernels use_liger use_shm"),
          *under("model", "use_liger use_shm fsdp_config.model_dtype fsdp_config.wrap_policy.min_num_params"),
          "actor_rollout_ref.nccl_timeout", "global_profiler.*", "ray_kwargs.*", "transfer_queue.enable", "profiler.*",
          *under("trainer", "default_hdfs_dir device esi_redundant_time profile_interval "
              "ray_wait_register_center_timeout "
                 "use_legacy_worker_impl val_only validation_data_dir")),
    *none("names the file of their other options: convert that, too", "--config-path", "--config-dir",
          "defaults", "hydra.*"),
    *none("the class that their config becomes", "*._target_"),
)  # fmt: skip
