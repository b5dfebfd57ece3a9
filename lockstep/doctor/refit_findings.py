"""Faults in the weights that an engine holds, described by measurement: fingerprints now and before."""

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


@dataclass(frozen=True)
class RefitFinding:
    """Something that is wrong after a refit.

    Attributes:
        what: A tensor by its name, a cache, or what else was compared.
    """

    what: str
    why: str


@dataclass(frozen=True)
class Refitted:
    """One refit.

    Attributes:
        source: Whose weights went out; it still has them.
    """

    source: HasWeights
    sent: Mapping[str, Sent]
    held: Attestation

    def name_of(self, name: str) -> str:
        """Name under which a tensor was sent."""
        return self.held.tied.get(name, name)

    def holds(self, name: str, sent: Mapping[str, Sent]) -> bool:
        """True if the engine holds a tensor as it was sent then, as far as it attests."""
        one = sent[self.name_of(name)]
        if name in self.held.columns:
            return self.held.columns[name] == one.columns
        return self.held.fingerprints[name] == one.whole


def find_faults(now: Refitted, before: Mapping[str, Mapping[str, Sent]], engine: SamplerPool) -> Iterator[RefitFinding]:
    """Describes what differs.

    Args:
        before: By the names of earlier states of the engine, newest first, what was sent for them.
    """
    for name, why in (_behind_kernels(now, engine) | differing(now.sent, now.held)).items():
        is_known = name in now.held.fingerprints and now.name_of(name) in now.sent
        yield RefitFinding(name, _describe(name, why, now, before, engine) if is_known else why)


def _behind_kernels(now: Refitted, engine: SamplerPool) -> dict[str, str]:
    """The tensors that an attestation knows by some columns, and that differ when they are read whole."""
    differ: dict[str, str] = {}
    for source, tensor in now.source.weights():
        for name in (name for name in now.held.columns if now.name_of(name) == source):
            held = engine.show(name).cpu()
            if not torch.equal(held, tensor.cpu().to(held.dtype)):
                differ[name] = "arrived, but is not what is computed with"
    return differ


def _describe(name: str, why: str, now: Refitted, before: Mapping[str, Mapping[str, Sent]], engine: SamplerPool) -> str:
    """Says what is in the place of a tensor that has other bits."""
    for state, sent in before.items():
        if now.holds(name, sent):
            return f"is still that of {state}"
    for other in now.sent:
        if other != now.name_of(name) and now.holds(name, {now.name_of(name): now.sent[other]}):
            return f"holds {other}"
    tensor = next(tensor for own, tensor in now.source.weights() if own == now.name_of(name)).cpu()
    sent, held = tensor.to(engine.dtype) if tensor.is_floating_point() else tensor, engine.show(name).cpu()
    if sent.numel() == held.numel() and torch.equal(_sort_bits(sent), _sort_bits(held)):
        return "has the numbers that were sent in another order"
    if sent.shape != held.shape:
        return f"has the shape {tuple(held.shape)} instead of {tuple(sent.shape)}"
    if any(torch.equal(sent.to(low).to(held.dtype), held) for low in _FEWER_BITS if sent.is_floating_point()):
        return "has what was sent, rounded to fewer bits"
    gap = (sent.double() - held.double()).abs()
    return f"{why}: {int((gap > 0).sum())} of {gap.numel()} numbers, by up to {gap.max():.2g}"


def _sort_bits(tensor: Tensor) -> Tensor:
    """The numbers as integers, in order; 0 and −0 are the same."""
    flat = (tensor + 0.0 if tensor.is_floating_point() else tensor).contiguous().reshape(-1)
    return flat.view(_BITS[flat.element_size()]).sort().values
