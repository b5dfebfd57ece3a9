"""The doctor command that makes the same comparison as a run, for messages."""

from __future__ import annotations

from lockstep.config import LearnerSection, SamplerSection, Sampling


def doctor_options(
    learner: LearnerSection, sampler: SamplerSection, sampling: Sampling | None
) -> str:
    """Options for doctor commands such as `table MODEL`, for the same comparison as a run.

    Args:
        learner: The learner of the run.
        sampler: The sampler of the run.
        sampling: The distribution; None: the model's own.
    """
    layout = learner.parallel
    sizes = {"dp": layout.dp, "tp": layout.tp, "cp": layout.cp, "pp": layout.pp}
    cut = "".join(f"{name}{size}" for name, size in sizes.items() if size > 1)
    trainer = f"{learner.backend}-{cut}" if cut else learner.backend
    if trainer == sampler.backend:
        trainer = "hf"
    parts = [f"backends=[{trainer},{sampler.backend}] learner.dtype={learner.dtype}"]
    if sampler.kv_cache_gib is not None:
        parts.append(f"sampler={sampler.backend} sampler.kv_cache_gib={sampler.kv_cache_gib:g}")
    shape = {} if sampling is None else sampling.params().filters_and_penalties
    if sampling is not None and (sampling.temperature != 1.0 or shape):
        options = ", ".join(
            f"{name}: {value}"
            for name, value in {"temperature": sampling.temperature, **shape}.items()
        )
        parts.append(f"'grid.methods=[{{{options}}}]'")
    return " ".join(parts)
