"""The doctor's command that compares what a run compares, for messages."""

from __future__ import annotations

from typing import assert_never

from lockstep.config import LearnerSection, SamplerBackend, SamplerSection, Sampling


def backends_to_compare(sampler: SamplerBackend) -> tuple[str, ...]:
    """The backends to compare in a table about training with a sampler."""
    match sampler:
        case "torch":
            return ("hf", "torch")
        case "vllm" | "openai":
            return ("torch", sampler)
        case _:
            assert_never(sampler)


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
    plain = backends_to_compare(sampler.backend)
    backends = plain if trainer in plain else (trainer, sampler.backend)
    parts = [f"backends=[{','.join(backends)}] learner.dtype={learner.dtype}"]
    match sampler.backend:
        case "torch" | "openai":
            pass
        case "vllm":
            parts.append("sampler=vllm")
        case _:
            assert_never(sampler.backend)
    if sampler.vllm.kv_cache_gib is not None:
        parts.append(f"sampler.vllm.kv_cache_gib={sampler.vllm.kv_cache_gib:g}")
    if sampling is not None and (sampling.temperature != 1.0 or sampling.top_k or sampling.top_p < 1.0):
        method = {"temperature": sampling.temperature, "top_k": sampling.top_k, "top_p": sampling.top_p}
        options = ", ".join(f"{name}: {value}" for name, value in method.items())
        parts.append(f"'grid.methods=[{{{options}}}]'")
    return " ".join(parts)
