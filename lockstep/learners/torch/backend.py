"""Declaration of the training backend `torch`. Imports no torch."""

from __future__ import annotations

from typing import TYPE_CHECKING, final

from lockstep.learners.backend import TrainingBackend

if TYPE_CHECKING:
    from lockstep.config import LearnerSection, Optimizer
    from lockstep.core.types import HeadKind
    from lockstep.distributed.ranks import RankMesh
    from lockstep.learners.torch.learner import TorchLearner


@final
class TorchTraining(TrainingBackend):
    """PyTorch with FSDP2, tensor and context parallelism."""

    title = "torch"
    is_planned = True
    is_exact = True
    shares_prefixes = True

    def in_process(self, section: LearnerSection) -> bool:
        return section.parallel.ranks == 1

    def refuse_options(self, section: LearnerSection) -> None:
        if section.parallel.pp > 1:
            raise ValueError("parallel.pp requires learner.backend=megatron; leave it at 1")

    def build_learner(
        self,
        folder: str,
        head: HeadKind,
        seed: int,
        section: LearnerSection,
        optimizer: Optimizer | None,
        ranks: RankMesh,
    ) -> TorchLearner:
        from lockstep.learners.torch.learner import TorchLearner
        from lockstep.learners.torch.start import build_model
        from lockstep.models.device import resolve_device
        from lockstep.models.exact.model import make_exact
        from lockstep.models.heads import LogitsHead
        from lockstep.models.open_kernels import open_kernels, settle_sharing

        device = resolve_device(section.device)
        model = build_model(folder, head, seed, section, ranks, device)
        network = model.lm if isinstance(model, LogitsHead) else model.backbone
        if section.exact:
            make_exact(network)
        else:
            open_kernels(network, device, section.dtype)
        section = settle_sharing(network.config, section, device)
        return TorchLearner(model, section, optimizer, ranks)
