"""Lockstep: post-training of language models in which the trained policy and the sampling policy
stay in lockstep.

    import lockstep

    run = lockstep.GRPO(model="folder", reward=my_function, train=rows).train()

Names are imported on first use, so that `import lockstep` is quick and pulls in no torch. Covered
by semantic versioning: all of `__all__`.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

from lockstep.system import process_defaults
from lockstep.system.guarded_imports import install_guards
from lockstep.system.lazy_names import export_lazily
from lockstep.version import __version__ as __version__

if TYPE_CHECKING:
    from lockstep import losses, objectives
    from lockstep.algorithms.grpo.options import PolicyGradient
    from lockstep.api.algorithms import (
        DPO,
        GRPO,
        KTO,
        ORPO,
        PPO,
        SFT,
        Distill,
        OnlineDPO,
        RewardModel,
        SelfRewarding,
        SimPO,
    )
    from lockstep.api.loop import (
        SyncProof,
        TextSampler,
        close_all,
        load,
        open_learner,
        open_sampler,
        rollout,
        sample,
        save,
        sync,
    )
    from lockstep.api.run import Run
    from lockstep.api.sweep import Sweep, sweep
    from lockstep.api.trainer import Trainer, train
    from lockstep.config.trust import trust
    from lockstep.core.batch import Batch
    from lockstep.core.metrics import Metrics
    from lockstep.core.types import SamplingParams
    from lockstep.learners.base import Learner
    from lockstep.losses.base import Loss
    from lockstep.report.agreement import AgreementSummary
    from lockstep.rollouts.rollout import Rollouts
    from lockstep.samplers.base import Sampler

__all__ = [
    "DPO",
    "GRPO",
    "KTO",
    "ORPO",
    "PPO",
    "SFT",
    "AgreementSummary",
    "Batch",
    "Distill",
    "Learner",
    "Loss",
    "Metrics",
    "OnlineDPO",
    "PolicyGradient",
    "RewardModel",
    "Rollouts",
    "Run",
    "Sampler",
    "SamplingParams",
    "SelfRewarding",
    "SimPO",
    "Sweep",
    "SyncProof",
    "TextSampler",
    "Trainer",
    "close_all",
    "load",
    "losses",
    "objectives",
    "open_learner",
    "open_sampler",
    "rollout",
    "sample",
    "save",
    "sweep",
    "sync",
    "train",
    "trust",
]

_find = export_lazily(__name__, __file__)

process_defaults.limit_threads()
process_defaults.fix_order_of_sums()
install_guards()


def __getattr__(name: str) -> object:
    if name in ("losses", "objectives"):
        return import_module(f"lockstep.{name}")
    return _find(name)


def __dir__() -> list[str]:
    return [*__all__, "__version__"]
