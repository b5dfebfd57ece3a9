"""One class per shipped algorithm: `lockstep.GRPO(model="folder", ...).train()`.

The types of their keyword arguments are generated from the recipes (`.ci/face.py`).
"""

from __future__ import annotations

from typing import final

from lockstep.api.trainer import Trainer


@final
class SFT(Trainer):
    """Supervised fine-tuning on prompts and completions, or on conversations.

    Examples:
        >>> lockstep.SFT(model="folder", train="rows.jsonl", data={"messages": "messages"}).train()
    """

    algorithm = "sft"


@final
class DPO(Trainer):
    """Direct preference optimization on pairs of answers (Rafailov et al. 2023).

    Examples:
        >>> lockstep.DPO(
        ...     model="folder", train="rows.jsonl", dpo={"ref_policy_kl_penalty": 0.1}
        ... ).train()
    """

    algorithm = "dpo"


@final
class KTO(Trainer):
    """KTO on answers labeled good or bad (Ethayarajh et al. 2024).

    Examples:
        >>> lockstep.KTO(model="folder", train="labeled.jsonl").train()
    """

    algorithm = "kto"


@final
class ORPO(Trainer):
    """ORPO on pairs of answers, without a reference policy (Hong et al. 2024).

    Examples:
        >>> lockstep.ORPO(model="folder", train="pairs.jsonl").train()
    """

    algorithm = "orpo"


@final
class SimPO(Trainer):
    """SimPO on pairs of answers, without a reference policy (Meng et al. 2024).

    Examples:
        >>> lockstep.SimPO(model="folder", train="pairs.jsonl").train()
    """

    algorithm = "simpo"


@final
class OnlineDPO(Trainer):
    """DPO on pairs of the policy's own answers (Guo et al. 2024).

    Examples:
        >>> lockstep.OnlineDPO(model="folder", train="rows.jsonl", reward="math").train()
    """

    algorithm = "online_dpo"


@final
class RewardModel(Trainer):
    """A reward model, trained on pairs of answers.

    Examples:
        >>> lockstep.RewardModel(model="folder", train="pairs.jsonl").train()
    """

    algorithm = "reward_model"


@final
class PPO(Trainer):
    """PPO with a critic (Schulman et al. 2017).

    Examples:
        >>> lockstep.PPO(
        ...     model="folder", train="rows.jsonl", reward="math", critic={"lr": 1e-5}
        ... ).train()
    """

    algorithm = "ppo"


@final
class GRPO(Trainer):
    """GRPO (Shao et al. 2024) and its variants, without a critic.

    Examples:
        >>> lockstep.GRPO(
        ...     model="folder", train="rows.jsonl", reward="math", grpo={"clip": 0.1}
        ... ).train()
    """

    algorithm = "grpo"


@final
class Distill(Trainer):
    """Distillation from a teacher, on-policy or on rows.

    Examples:
        >>> lockstep.Distill(
        ...     model="folder", train="prompts.jsonl", teacher={"path": "larger"}
        ... ).train()
    """

    algorithm = "distill"


@final
class SelfRewarding(Trainer):
    """Self-Rewarding and Meta-Rewarding training, with the policy as its own judge.

    Examples:
        >>> lockstep.SelfRewarding(model="folder", train="prompts.jsonl").train()
    """

    algorithm = "self_rewarding"
