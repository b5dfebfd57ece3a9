"""`lockstep certify --layouts`: learners over ranks score the samples of one process."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from torch import Tensor

from lockstep.cluster.learner_group import launch_learner
from lockstep.cluster.specs import LearnerSpec
from lockstep.config import DType, LearnerSection, Parallel
from lockstep.core.batch import Batch
from lockstep.core.errors import InputError
from lockstep.models.exact.layouts import explain_inexact_layout
from lockstep.models.folder import read_config
from lockstep.objectives.tally import MismatchTally

_TIMEOUT_S = 1800.0


@dataclass(frozen=True)
class LayoutFindings:
    """A learner over ranks, compared with samples.

    Attributes:
        tokens: Number of tokens compared.
        mismatches: Number of them whose log-probabilities are not bit-identical.
        seen: Number of them that differ from the scores with one changed weight: what the same
            comparison finds if something is wrong.
    """

    tokens: int
    mismatches: int
    seen: int


def parse_layouts(words: Sequence[str], model: str) -> dict[str, Parallel]:
    """Layouts as written on the command line, such as dp=2,tp=2.

    Raises:
        InputError: A word is not a layout, has only one rank, or is not exact for the model.
    """
    layouts = dict[str, Parallel]()
    for word in words:
        sizes = dict[str, str]()
        for part in word.split(","):
            name, _, size = part.partition("=")
            sizes[name] = size
        known = sizes.keys() <= {"dp", "dp_replicate", "cp", "tp"}
        if not known or not all(size.isdecimal() and int(size) for size in sizes.values()):
            raise InputError(
                f"--layouts {word}: write sizes of dp, dp_replicate, cp and tp, such as dp=2,tp=2; "
                "pp needs Megatron, whose kernels are not exact"
            )
        layouts[word] = Parallel(**{name: int(size) for name, size in sizes.items()})
        if layouts[word].ranks == 1:
            raise InputError(f"--layouts {word} has one rank, which is tested anyway; leave it out")
        reason = explain_inexact_layout(read_config(model), layouts[word])
        if reason is not None:
            raise InputError(f"--layouts {word}: {reason}")
    return layouts


def compare_layout(
    model: str,
    dtype: DType,
    parallel: Parallel,
    samples: Sequence[Batch],
    nudged: Sequence[Tensor],
) -> LayoutFindings:
    """Scores samples with a learner over ranks, as child processes.

    Args:
        model: Folder of the model.
        dtype: Type of the computation.
        parallel: Layout of the ranks.
        samples: Batches with `sampler_logprob`.
        nudged: Log-probabilities of each batch with one changed weight, by one process.
    """
    section = LearnerSection(device="cpu", dtype=dtype, parallel=parallel).compute_exactly()
    learner = launch_learner(LearnerSpec(model, "logits", section, None, seed=0), _TIMEOUT_S)
    tally = MismatchTally()
    seen = 0
    try:
        for batch, other in zip(samples, nudged, strict=True):
            scored = learner.logprobs(batch)
            tally += MismatchTally.from_logprobs(
                scored, batch["sampler_logprob"], batch.mask, batch.lengths
            )
            seen += int((scored != other)[batch.mask].sum())
    finally:
        learner.close()
    return LayoutFindings(int(tally.tokens), tally.mismatches, seen)
