"""The options of GRPO's relatives, as in the table of docs/algorithms/grpo.md."""

RLOO = ("grpo.baseline=leave_one_out", "grpo.scale_rewards=none")
DR_GRPO = ("grpo.scale_rewards=none", "grpo.loss_mean=constant")
REINFORCE_PP = ("grpo.baseline=none", "grpo.scale_rewards=none", "grpo.whiten_advantages=true")
GSPO = (
    "grpo.importance_sampling_level=sequence", "grpo.loss_mean=responses", "grpo.clip=3.0e-4", "grpo.clip_high=4.0e-4",
)  # fmt: skip
