"""OpenRLHF's flags that are no option here: those that differ on purpose, and those without a counterpart."""

from __future__ import annotations

from lockstep.foreign import sentences as say
from lockstep.foreign.words import differs, lose, none, under

OTHERS = (
    *differs(say.PACKED, "train.micro_batch_size", "rollout.micro_batch_size", "rollout.max_tokens_per_gpu",
             "train.dynamic_batch_enable"),
    *differs(say.NO_PADDING, "ds.packing_samples"),
    *differs(say.RESUME, "ckpt.load_enable"),
    *differs(say.EVERY_STEP, "logger.logging_steps"),
    *differs(say.DROPOUT, "ds.lora.dropout"),
    *differs(say.WHOLE_STATE, "ckpt.save_hf", "ckpt.disable_ds", "critic.save_value_network", "ds.use_universal_ckpt"),
    *differs("policy, critic and reference have one layout, that of the learner",
             *under("critic", "num_nodes num_gpus_per_node"), *under("ref", "num_nodes num_gpus_per_node"),
             *under("reward", "num_nodes num_gpus_per_node"), "train.colocate_actor_ref",
                 "train.colocate_critic_reward"),
    *differs(say.OFFLOAD, "ref.offload", "reward.offload", "ds.enable_sleep"),
    *differs(say.EAGER, "ds.attn_implementation", "ds.experts_implementation", "ds.use_liger_kernel"),
    *differs("every run is reproducible, bit for bit", "train.full_determinism_enable"),
    *none("a file of rows has no splits", "data.prompt_split", "data.dataset_split", "eval.split"),
    lose("the tokenizer's own chat template is used as it is", "data.tokenizer_chat_template", ""),
    lose("of a conversation the last answer is learned", "data.multiturn", False),
    *none("rollouts are one step ahead or none", "train.async_queue_size", "train.partial_rollout_enable"),
    lose("the last weights are kept, and no moving average of them", "train.enable_ema", False),
    *none("read with train.enable_ema alone", "train.ema_beta"),
    *(lose("the optimizer is AdamW for all weights", f"{owner}optim", "adam") for owner in ("", "actor.", "critic.")),
    *none(say.ADAMW, *(key for owner in ("", "actor.", "critic.")
                       for key in under(f"{owner}muon", "lr momentum ns_steps nesterov no_nesterov"))),
    *none(say.IMAGES, "actor.freeze_visual_encoder", "data.image_key", "data.max_images_per_prompt"),
    *(lose("the loss has no term for the balance of experts", f"{owner}.aux_loss_coef", 0, 0.0)
      for owner in ("actor", "model")),
    lose("SFT learns completions alone", "model.pretrain_mode_enable", False),
    lose("the weights below adapters are not quantized", "ds.load_in_4bit", False),
    *none("losses are computed in fp32", "model.compute_fp32_loss_enable"),
    *none("heads are added when a reward model is trained", "ds.value_head_prefix"),
    *none("W&B's key and group come from its own environment variables", *under("logger.wandb", "org group")),
    *none(say.ENGINE, "vllm.enable_prefix_caching", "vllm.sync_with_ray"),
    *none(say.OFFLINE, "use_ms"),
    *none(say.HARDWARE, "local_rank", "ckpt.max_mem", "actor.gradient_checkpointing_reentrant",
          "model.gradient_checkpointing_reentrant", *under("data", "dataloader_num_workers disable_fast_tokenizer"),
          *under("ds", "zero_stage zpg grad_accum_dtype overlap_comm ring_attn_head_stride")),
)  # fmt: skip
