"""Declaration of the training backend `megatron`. Imports no torch."""

from __future__ import annotations

import importlib.util
import warnings
from typing import TYPE_CHECKING, final

from lockstep.core.errors import InputError, install_command
from lockstep.learners.backend import TrainingBackend

if TYPE_CHECKING:
    from transformers import PreTrainedConfig

    from lockstep.config import LearnerSection, Optimizer
    from lockstep.core.types import HeadKind
    from lockstep.distributed.ranks import RankMesh
    from lockstep.learners.megatron.learner import MegatronLearner


@final
class MegatronTraining(TrainingBackend):
    """Megatron Core, always in separate processes."""

    title = "Megatron"

    def in_process(self, section: LearnerSection) -> bool:
        return False

    def refuse_options(self, section: LearnerSection) -> None:
        if section.needs_loss_scale:
            raise ValueError(
                "learner.backend=megatron does not support fp16; set learner.dtype=bf16"
            )
        if section.parallel.dp_replicate > 1:
            raise ValueError(
                "dp_replicate requires FSDP; with Megatron, every rank of parallel.dp already has "
                "a copy of the model"
            )
        torchs = {
            "compile": section.compile,
            "cpu_offload": section.cpu_offload,
            "sync_every_pass": section.sync_every_pass,
            "lora": section.lora is not None,
            "rows_per_pass": section.rows_per_pass is not None,
        }
        for name, asked in torchs.items():
            if asked:
                raise ValueError(f"{name} requires learner.backend=torch; leave it out")

    def require_model(self, config: PreTrainedConfig, section: LearnerSection) -> None:
        from lockstep.models.device import resolve_device
        from lockstep.models.megatron import require_known, split_stages

        if importlib.util.find_spec("megatron") is None:
            raise InputError(
                "learner.backend is megatron, which is not installed; "
                f"{install_command('megatron')}"
            )
        if section.is_half and resolve_device(section.device).type == "cpu":
            raise InputError(
                "learner.backend=megatron supports bf16 only on GPUs; use learner.dtype=fp32"
            )
        require_known(config)
        split_stages(int(config.num_hidden_layers), section.parallel.pp, section.layout_key)

    def build_learner(
        self,
        folder: str,
        head: HeadKind,
        seed: int,
        section: LearnerSection,
        optimizer: Optimizer | None,
        ranks: RankMesh,
    ) -> MegatronLearner:
        with warnings.catch_warnings():
            # Megatron warns about each missing optional package
            warnings.simplefilter("ignore")
            from lockstep.learners.megatron.start import start_learner

            return start_learner(folder, head, seed, section, optimizer, ranks)
