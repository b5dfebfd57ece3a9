"""The doctor's command that compares what a run compares, for messages."""

from __future__ import annotations

from lockstep.config import LearnerSection, SamplerSection, Sampling
from lockstep.config.backends import INFERENCE


def doctor_options(learner: LearnerSection, sampler: SamplerSection, sampling: Sampling | None) -> str:
    """Options for `lockstep doctor table MODEL` and its like, so that they compare what a run compares.

    Args:
        learner: The learner of the run.
        sampler: The sampler of the run.
        sampling: The distribution; None: the model's own.
    """
    sizes = (("dp", learner.parallel.dp), ("tp", learner.parallel.tp), ("cp", learner.parallel.cp))
    layout = "".join(f"{name}{size}" for name, size in (*sizes, ("pp", learner.parallel.pp)) if size > 1)
    trainer = f"{learner.backend}-{layout}" if layout else learner.backend
    backend = INFERENCE.find(sampler.backend)
    plain = backend.doctor_backends
    backends = plain if trainer in plain else (trainer, sampler.backend)
    parts = [f"backends=[{','.join(backends)}] learner.dtype={learner.dtype}", *backend.doctor_options(sampler)]
    shape = {} if sampling is None else sampling.params().filters_and_penalties
    if sampling is not None and (sampling.temperature != 1.0 or shape):
        options = ", ".join(
            f"{name}: {value}" for name, value in {"temperature": sampling.temperature, **shape}.items()
        )
        parts.append(f"'grid.methods=[{{{options}}}]'")
    return " ".join(parts)
