from __future__ import annotations

import pytest
import torch
from torch import Tensor

from lockstep.core.batch import Batch
from lockstep.core.types import SamplingParams
from lockstep.distributed.penalties import apply_penalties, find_earlier
from lockstep_logprobs.shard import Shard

VOCABULARY = 7
ALL = SamplingParams(1, repetition_penalty=1.3, presence_penalty=0.5, frequency_penalty=-0.25)


def episodes() -> Batch:
    """Five sequences over few tokens, so that they repeat; one without a response, one with a
    prompt of one token.
    """
    generator = torch.Generator().manual_seed(0)
    lengths, prompts = torch.tensor([12, 3, 9, 5, 20]), torch.tensor([5, 3, 1, 4, 9])
    tokens = torch.randint(0, VOCABULARY, (int(lengths.sum()),), generator=generator)
    batch = Batch(tokens, lengths)
    return batch.with_columns({"mask": batch.position >= prompts[batch.row]})


def by_hand(batch: Batch, logits_mV: Tensor, sampling: SamplingParams) -> Tensor:
    """Penalties by the words of their definition, place by place, float64 [m, V]."""
    rows = list[Tensor]()

    def penalize(z: Tensor, token: int, before: Tensor, made: Tensor) -> Tensor:
        if bool((before == token).any()):
            z = z / sampling.repetition_penalty if z > 0 else z * sampling.repetition_penalty
        times = int(((before == token) & made).sum())
        return z - sampling.frequency_penalty * times - sampling.presence_penalty * (times > 0)

    for sequence, mask in zip(batch.sequences(), batch.sequences("mask"), strict=True):
        for t in mask.nonzero()[:, 0].tolist():
            z = logits_mV[len(rows)].double()
            rows.append(
                torch.stack(
                    [
                        penalize(z[token], token, sequence[:t], mask[:t])
                        for token in range(VOCABULARY)
                    ]
                )
            )
    return torch.stack(rows)


@pytest.mark.parametrize(
    "sampling",
    [
        ALL,
        SamplingParams(1, repetition_penalty=0.8),
        SamplingParams(1, presence_penalty=1.0),
        SamplingParams(1, frequency_penalty=1.0),
    ],
    ids=["all", "repetition", "presence", "frequency"],
)
def test_penalized_logits_match_definition_token_by_token(sampling: SamplingParams) -> None:
    batch = episodes()
    own_m = batch.mask_indices
    logits = torch.randn(len(own_m), VOCABULARY, generator=torch.Generator().manual_seed(1))
    penalized = apply_penalties(logits, find_earlier(batch, own_m), sampling)
    torch.testing.assert_close(
        penalized.double(), by_hand(batch, logits, sampling), atol=1e-6, rtol=0.0
    )


def test_penalties_on_cp_and_vocab_shard_equal_slice_of_full_penalties() -> None:
    """A context-parallel share in zig-zag order, and a shard of the vocabulary."""
    batch = episodes()
    own_m = batch.mask_indices
    logits = torch.randn(len(own_m), VOCABULARY, generator=torch.Generator().manual_seed(1))
    whole = apply_penalties(logits, find_earlier(batch, own_m), ALL)
    share = torch.tensor([17, 3, 18, 0, 9])
    found = apply_penalties(
        logits[share][:, 2:5],
        find_earlier(batch, own_m[share]),
        ALL,
        Shard(2, torch.distributed.group.WORLD),
    )
    assert torch.equal(found, whole[share][:, 2:5])


def test_penalty_gradient_matches_float64_definition() -> None:
    batch = episodes()
    own_m, weight = batch.mask_indices, torch.randn(VOCABULARY)
    logits = torch.randn(
        len(own_m), VOCABULARY, generator=torch.Generator().manual_seed(1)
    ).requires_grad_()
    (apply_penalties(logits, find_earlier(batch, own_m), ALL) * weight).sum().backward()
    assert logits.grad is not None
    wanted = torch.autograd.functional.jacobian(
        lambda z: (by_hand(batch, z, ALL) * weight).sum(), logits.detach().double()
    )
    torch.testing.assert_close(logits.grad.double(), wanted, atol=1e-6, rtol=0.0)
