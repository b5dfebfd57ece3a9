"""One class per algorithm that ships: `lockstep.GRPO(model="folder", reward=function, train=rows).train()`.

The types of their keyword arguments are made from the recipes (`.ci/face.py`).
"""

from __future__ import annotations

from typing import final

from lockstep.api.trainer import Trainer


@final
class SFT(Trainer):
    """Supervised fine-tuning on prompts and completions, or on conversations. Options: `Trainer`."""

    algorithm = "sft"


@final
class DPO(Trainer):
    """Direct preference optimization on pairs of answers (Rafailov et al. 2023). Options: `Trainer`."""

    algorithm = "dpo"


@final
class KTO(Trainer):
    """KTO on answers that are each labeled good or bad (Ethayarajh et al. 2024). Options: `Trainer`."""

    algorithm = "kto"


@final
class ORPO(Trainer):
    """ORPO on pairs of answers, without a reference policy (Hong et al. 2024). Options: `Trainer`."""

    algorithm = "orpo"


@final
class SimPO(Trainer):
    """SimPO on pairs of answers, without a reference policy (Meng et al. 2024). Options: `Trainer`."""

    algorithm = "simpo"


@final
class OnlineDPO(Trainer):
    """DPO on pairs of the policy's own answers (Guo et al. 2024). Options: `Trainer`."""

    algorithm = "online_dpo"


@final
class RewardModel(Trainer):
    """A reward model, trained on pairs of answers. Options: `Trainer`."""

    algorithm = "reward_model"


@final
class PPO(Trainer):
    """PPO with a critic (Schulman et al. 2017). Options: `Trainer`."""

    algorithm = "ppo"


@final
class GRPO(Trainer):
    """GRPO (Shao et al. 2024) and its relatives, without a critic. Options: `Trainer`."""

    algorithm = "grpo"


@final
class Distill(Trainer):
    """Distillation of a teacher, on-policy or on rows. Options: `Trainer`."""

    algorithm = "distill"


@final
class SelfRewarding(Trainer):
    """Self-Rewarding and Meta-Rewarding training, by the policy's own judgement. Options: `Trainer`."""

    algorithm = "self_rewarding"
