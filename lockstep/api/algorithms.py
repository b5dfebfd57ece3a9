"""One class per algorithm that ships: `lockstep.GRPO(model="folder", reward=function, train=rows).train()`."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Unpack, final

from lockstep.api.trainer import Trainer

if TYPE_CHECKING:
    from lockstep.api.options import (
        DistillOptions,
        DPOOptions,
        GRPOOptions,
        KTOOptions,
        OnlineDPOOptions,
        ORPOOptions,
        PPOOptions,
        RewardModelOptions,
        SelfRewardingOptions,
        SFTOptions,
        SimPOOptions,
    )


@final
class SFT(Trainer):
    """Supervised fine-tuning on prompts and completions, or on conversations. Options: `Trainer`."""

    algorithm = "sft"

    def __init__(self, *, recipe: str | Path | None = None, **options: Unpack[SFTOptions]) -> None:
        super().__init__(recipe=recipe, **options)


@final
class DPO(Trainer):
    """Direct preference optimization on pairs of answers (Rafailov et al. 2023). Options: `Trainer`."""

    algorithm = "dpo"

    def __init__(self, *, recipe: str | Path | None = None, **options: Unpack[DPOOptions]) -> None:
        super().__init__(recipe=recipe, **options)


@final
class KTO(Trainer):
    """KTO on answers that are each labeled good or bad (Ethayarajh et al. 2024). Options: `Trainer`."""

    algorithm = "kto"

    def __init__(self, *, recipe: str | Path | None = None, **options: Unpack[KTOOptions]) -> None:
        super().__init__(recipe=recipe, **options)


@final
class ORPO(Trainer):
    """ORPO on pairs of answers, without a reference policy (Hong et al. 2024). Options: `Trainer`."""

    algorithm = "orpo"

    def __init__(self, *, recipe: str | Path | None = None, **options: Unpack[ORPOOptions]) -> None:
        super().__init__(recipe=recipe, **options)


@final
class SimPO(Trainer):
    """SimPO on pairs of answers, without a reference policy (Meng et al. 2024). Options: `Trainer`."""

    algorithm = "simpo"

    def __init__(self, *, recipe: str | Path | None = None, **options: Unpack[SimPOOptions]) -> None:
        super().__init__(recipe=recipe, **options)


@final
class OnlineDPO(Trainer):
    """DPO on pairs of the policy's own answers (Guo et al. 2024). Options: `Trainer`."""

    algorithm = "online_dpo"

    def __init__(self, *, recipe: str | Path | None = None, **options: Unpack[OnlineDPOOptions]) -> None:
        super().__init__(recipe=recipe, **options)


@final
class RewardModel(Trainer):
    """A reward model, trained on pairs of answers. Options: `Trainer`."""

    algorithm = "reward_model"

    def __init__(self, *, recipe: str | Path | None = None, **options: Unpack[RewardModelOptions]) -> None:
        super().__init__(recipe=recipe, **options)


@final
class PPO(Trainer):
    """PPO with a critic (Schulman et al. 2017). Options: `Trainer`."""

    algorithm = "ppo"

    def __init__(self, *, recipe: str | Path | None = None, **options: Unpack[PPOOptions]) -> None:
        super().__init__(recipe=recipe, **options)


@final
class GRPO(Trainer):
    """GRPO (Shao et al. 2024) and its relatives, without a critic. Options: `Trainer`."""

    algorithm = "grpo"

    def __init__(self, *, recipe: str | Path | None = None, **options: Unpack[GRPOOptions]) -> None:
        super().__init__(recipe=recipe, **options)


@final
class Distill(Trainer):
    """Distillation of one or several teachers, on-policy or on rows. Options: `Trainer`."""

    algorithm = "distill"

    def __init__(self, *, recipe: str | Path | None = None, **options: Unpack[DistillOptions]) -> None:
        super().__init__(recipe=recipe, **options)


@final
class SelfRewarding(Trainer):
    """Self-Rewarding and Meta-Rewarding training, by the policy's own judgement. Options: `Trainer`."""

    algorithm = "self_rewarding"

    def __init__(self, *, recipe: str | Path | None = None, **options: Unpack[SelfRewardingOptions]) -> None:
        super().__init__(recipe=recipe, **options)
