"""An attestation is of the memory that a sampler computes with as it is at that moment, not as it
was copied.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import torch

from lockstep.models.load import load_causal_lm
from lockstep.samplers.torch.sampler import TorchSampler
from lockstep.weight_sync.carriers import TransferRoute
from lockstep.weight_sync.fingerprints import fingerprint_tensor
from lockstep.weight_sync.outgoing import OutgoingWeights
from lockstep.weight_sync.sender import LocalSender

NAME = "model.norm.weight"


def test_attestation_detects_weight_changed_after_transfer(models: Callable[..., Path]) -> None:
    weights = {
        name: tensor.detach()
        for name, tensor in load_causal_lm(models("llama", seed=1)).named_parameters()
    }
    sampler, sender = TorchSampler(load_causal_lm(models("llama")), 2), LocalSender()
    route = TransferRoute("shared_memory", sender.file_paths)
    sender.open_route(route)
    sampler.join(route)
    for bucket in sender.fill_buckets(OutgoingWeights.wrap_stream(weights.items()), columns=False):
        sampler.receive(bucket)
    expected = {name: fingerprint_tensor(tensor) for name, tensor in weights.items()}
    held = sampler.attest(1).fingerprints
    assert {name: held[name] for name in expected} == expected
    with torch.no_grad():
        sampler.show(NAME).view(-1)[1] += 1.0
    held = sampler.attest(1).fingerprints
    assert [name for name in expected if held[name] != expected[name]] == [NAME]
