"""Causes of differences between an engine's weights and those sent, from fingerprints now and before."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from lockstep.cluster.sampler_pool import SamplerPool
from lockstep.weight_sync.attestation import Attestation
from lockstep.weight_sync.sync import HasWeights, Sent, differing

_FEWER_BITS = (torch.bfloat16, torch.float16, torch.float8_e4m3fn, torch.float8_e5m2)
_BITS = {1: torch.int8, 2: torch.int16, 4: torch.int32, 8: torch.int64}


CURES = {
    "stale_tensor": "send it again, and attest what the engine holds after a refit",
    "swapped_tensors": "mend the name map; gate and up projections are the usual pair",
    "permuted_tensor": "mend the conversion: order of heads, or a transpose",
    "tied_head": "send the head too, or tie it again after loading",
    "missed_buffer": "stream buffers too, those never saved among them",
    "quantised_weights": "load weights unquantised, or train with the same quantiser",
    "stale_prefix_cache": "drop the prefix cache at each refit",
}
"""Causes of a wrong tensor, with their fixes."""


@dataclass(frozen=True)
class RefitFinding:
    """Something that is wrong after a refit.

    Attributes:
        what: A tensor by its name, a cache, or what else was compared.
        cause: Its name in `CURES`; None where it cannot be told.
        why: What was seen.
    """

    what: str
    cause: str | None
    why: str

    @property
    def sentence(self) -> str:
        """Message for a user."""
        if self.cause is None:
            return f"{self.what} {self.why} (unexplained)"
        return f"{self.what} {self.why} ({self.cause}: {CURES[self.cause]})"


@dataclass(frozen=True)
class Refitted:
    """Weights sent in one refit, and the engine's attestation.

    Attributes:
        source: Whose weights went out.
        sent: Their fingerprints.
        held: The engine's attestation.
    """

    source: HasWeights
    sent: Mapping[str, Sent]
    held: Attestation


def findings(
    now: Refitted, before: Mapping[str, Mapping[str, Sent]], buffers: set[str], engine: SamplerPool
) -> Iterator[RefitFinding]:
    """Names what differs.

    Args:
        now: A refit, whose source still has the weights that it sent.
        before: By the names of earlier states of the engine, what was sent for them.
        buffers: Names of the tensors that are no parameters.
        engine: Shows what it holds.
    """
    expected = _add_tied(now.sent, now.held)
    for name, why in (_behind_kernels(now, engine) | differing(now.sent, now.held)).items():
        if name in now.held.kept_caches:
            yield RefitFinding(name, "stale_prefix_cache", why)
        elif name not in now.held.fingerprints or name not in expected:
            yield RefitFinding(name, "missed_buffer" if name in buffers else "stale_tensor", why)
        else:
            yield _of_tensor(name, why, now, before, buffers, engine)


def _behind_kernels(now: Refitted, engine: SamplerPool) -> dict[str, str]:
    """The tensors that an attestation knows by some columns, and that differ when they are read whole."""
    sent = {name: now.held.tied.get(name, name) for name in now.held.columns}
    differ: dict[str, str] = {}
    for source, tensor in now.source.weights():
        for name in (name for name, own in sent.items() if own == source):
            held = engine.show(name).cpu()
            if not torch.equal(held, tensor.cpu().to(held.dtype)):
                differ[name] = "arrived, but is not what is computed with"
    return differ


def _of_tensor(
    name: str,
    why: str,
    now: Refitted,
    before: Mapping[str, Mapping[str, Sent]],
    buffers: set[str],
    engine: SamplerPool,
) -> RefitFinding:
    """A tensor that the engine has, with other bits."""
    for state, sent in before.items():
        if holds(now.held, name, _add_tied(sent, now.held)[name]):
            cause = "missed_buffer" if name in buffers else "tied_head" if name in now.held.tied else "stale_tensor"
            return RefitFinding(name, cause, f"is still that of {state}")
    others = (other for other, sent in now.sent.items() if other != name and holds(now.held, name, sent))
    if (other := next(others, None)) is not None:
        return RefitFinding(name, "swapped_tensors", f"holds {other}")
    sent, held = _tensor(now, name, engine.dtype), engine.show(name).cpu()
    if sent.numel() == held.numel() and torch.equal(_sort_bits(sent), _sort_bits(held)):
        return RefitFinding(name, "permuted_tensor", "has the numbers that were sent in another order")
    if sent.shape != held.shape:
        return RefitFinding(name, "stale_tensor", f"has the shape {tuple(held.shape)} instead of {tuple(sent.shape)}")
    if any(torch.equal(sent.to(low).to(held.dtype), held) for low in _FEWER_BITS if sent.is_floating_point()):
        return RefitFinding(name, "quantised_weights", "has what was sent, rounded to fewer bits")
    gap = (sent.double() - held.double()).abs()
    return RefitFinding(
        name, "stale_tensor", f"{why}: {int((gap > 0).sum())} of {gap.numel()} numbers, by up to {gap.max():.2g}"
    )


def _add_tied(sent: Mapping[str, Sent], held: Attestation) -> Mapping[str, Sent]:
    """Adds the tied names to what was sent."""
    return {**sent, **{name: sent[other] for name, other in held.tied.items() if other in sent}}


def holds(held: Attestation, name: str, sent: Sent) -> bool:
    """Returns True if an engine holds a tensor that was sent then, as far as it attests."""
    if name in held.columns:
        return held.columns[name] == sent.columns
    return held.fingerprints[name] == sent.whole


def _tensor(now: Refitted, name: str, dtype: torch.dtype) -> Tensor:
    source = now.held.tied.get(name, name)
    tensor = next(tensor for other, tensor in now.source.weights() if other == source).cpu()
    return tensor.to(dtype) if tensor.is_floating_point() else tensor


def _sort_bits(tensor: Tensor) -> Tensor:
    """The numbers as integers, in order; 0 and −0 are the same."""
    flat = (tensor + 0.0 if tensor.is_floating_point() else tensor).contiguous().reshape(-1)
    return flat.view(_BITS[flat.element_size()]).sort().values
