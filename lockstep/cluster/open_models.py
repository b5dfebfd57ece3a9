"""Opens learners and samplers: in this process if possible, otherwise in separate processes."""

from __future__ import annotations

from lockstep.cluster.learner_group import MeshLearner, launch_learner
from lockstep.cluster.self_check import require_proof
from lockstep.cluster.specs import LearnerSpec, SamplerSpec
from lockstep.cluster.turns import DeviceTurns
from lockstep.cluster.workers import WorkerPool
from lockstep.config import Computation, DType, LearnerSection
from lockstep.core.errors import InputError
from lockstep.core.types import SamplingParams
from lockstep.learners.base import Learner
from lockstep.learners.rank import RankLearner
from lockstep.models.heads import LogitsHead
from lockstep.report.progress import RunProgress
from lockstep.samplers.backend import find_backend
from lockstep.samplers.base import Sampler


def open_learner(
    spec: LearnerSpec,
    sampling: SamplingParams | None,
    timeout_s: float,
    progress: RunProgress,
    workers: WorkerPool,
    turns: DeviceTurns | None = None,
) -> RankLearner | MeshLearner:
    """Opens a learner; in separate processes if it has several ranks or a cluster.

    Args:
        spec: The learner.
        sampling: Distribution of samplers that decode with Lockstep's own KV cache; None: no such
            samplers.
        timeout_s: Timeout of a call.
        progress: Reports to the user.
        workers: Owner of its processes.
        turns: Turns of learners that share their devices; None: no sharing.

    Raises:
        ModelError: The model fails the self-check.
    """
    with progress.phase("self-check"):
        require_proof(spec.model, spec.section, sampling)
    if workers.is_local and spec.section.in_process:
        return spec.build()
    with progress.phase("start learners"):
        learner = launch_learner(
            spec, timeout_s, workers, None if turns is None else turns.begin_work
        )
    workers.callback(learner.close)
    return learner


def find_section(learner: Learner) -> LearnerSection:
    """The options that a learner was opened with.

    Raises:
        InputError: It is not a Lockstep learner.
    """
    if isinstance(learner, RankLearner | MeshLearner):
        return learner.section
    raise InputError("the learner was not opened by open_learner; remove it, and sync its weights")


def find_dtype(learner: Learner) -> DType:
    """Type of a learner's computation; the least precise type if it is not Lockstep's."""
    if isinstance(learner, RankLearner | MeshLearner):
        return learner.section.dtype
    return "bf16"


def count_updates(learner: Learner) -> int:
    """Number of optimizer steps that changed a learner's weights; 0 if it is not Lockstep's."""
    if isinstance(learner, RankLearner | MeshLearner):
        return learner.count_updates()
    return 0


def computes_exactly(learner: Learner, sampler: Computation) -> bool:
    """True if a learner and a sampler give each token bit-identical log-probabilities."""
    if not isinstance(learner, RankLearner | MeshLearner):
        return False
    return learner.section.exact and sampler.exact and learner.section.dtype == sampler.dtype


def share_weights(
    learner: Learner, section: LearnerSection, spec: SamplerSpec, workers: WorkerPool
) -> Sampler | None:
    """A sampler that shares a learner's weights.

    None if adapters are merged, or if both are not in this process.
    """
    backend = find_backend(spec.section)
    merges = section.lora is not None and spec.learner.adapters_apart is None
    if (
        not (workers.is_local and spec.section.in_process)
        or workers.engines_apart
        or merges
        or backend is None
    ):
        return None
    if not isinstance(learner, RankLearner) or not isinstance(learner.model, LogitsHead):
        return None
    return backend.wrap_model(learner.model.lm, spec.section, section)
