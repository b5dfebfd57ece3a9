"""The doctor's command that compares what a run compares, for messages."""

from __future__ import annotations

from lockstep.config import LearnerSection, SamplerSection, Sampling


def name_backends(learner: LearnerSection, sampler: SamplerSection) -> tuple[str, str]:
    """The backends that the doctor compares for a run: of a learner and a sampler of one kind, also `transformers`."""
    sizes = (("dp", learner.parallel.dp), ("tp", learner.parallel.tp), ("cp", learner.parallel.cp))
    layout = "".join(f"{name}{size}" for name, size in (*sizes, ("pp", learner.parallel.pp)) if size > 1)
    trainer = f"{learner.backend}-{layout}" if layout else learner.backend
    return ("hf" if trainer == sampler.backend else trainer, sampler.backend)


def doctor_options(learner: LearnerSection, sampler: SamplerSection, sampling: Sampling | None) -> str:
    """Options for `lockstep doctor table MODEL` and its like, so that they compare what a run compares.

    Args:
        learner: The learner of the run.
        sampler: The sampler of the run.
        sampling: The distribution; None: the model's own.
    """
    parts = [f"backends=[{','.join(name_backends(learner, sampler))}] learner.dtype={learner.dtype}"]
    if sampler.kv_cache_gib is not None:
        parts.append(f"sampler={sampler.backend} sampler.kv_cache_gib={sampler.kv_cache_gib:g}")
    shape = {} if sampling is None else sampling.params().filters_and_penalties
    if sampling is not None and (sampling.temperature != 1.0 or shape):
        options = ", ".join(
            f"{name}: {value}" for name, value in {"temperature": sampling.temperature, **shape}.items()
        )
        parts.append(f"'grid.methods=[{{{options}}}]'")
    return " ".join(parts)
