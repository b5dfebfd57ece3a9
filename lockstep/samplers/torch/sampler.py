"""The torch sampler: generates with the learner's own modules and a key-value cache, dropping rows as they finish."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from itertools import chain

import torch
import torch.distributed as dist
from torch import Tensor
from transformers import PreTrainedModel

from lockstep import keyed
from lockstep.batch import Batch
from lockstep.distributed.meeting import Meeting
from lockstep.distributed.sampling import draw, token_scores
from lockstep.errors import RunError
from lockstep.models.attention import Cached
from lockstep.models.exact.model import find_multiple, is_exact
from lockstep.models.folder import context_of
from lockstep.models.heads import PLAIN, LogitsHead, canonical
from lockstep.samplers.base import Piece, gather_pieces, require_room
from lockstep.types import Request, SamplingParams
from lockstep.weight_sync.attestation import Attestation
from lockstep.weight_sync.fingerprints import fingerprint
from lockstep.weight_sync.transfer import Bucket, join_group, unpack

_COMPACT_BELOW = 0.8
"""Finished rows are dropped once fewer than this share still runs: a copy of the cache costs about a step."""


class _NotFinite(Exception):
    """Logits of a token of a row's response are NaN or infinite."""

    def __init__(self, row: int, token: int) -> None:
        super().__init__(row, token)
        self.row, self.token = row, token


class TorchSampler:
    """Implements `samplers.base.Sampler`; given the learner's own model it shares the weights without a copy.

    Args:
        lm: A causal language model with Lockstep's attention.
        max_batch_size: Sequences generated side by side.
        bf16: Compute as a bf16 learner does; weights are fp32 all the same.
        raw_logprobs: Log-probabilities are those of temperature 1 and of all tokens, for any sampling.
    """

    dtype = torch.float32

    def __init__(
        self, lm: PreTrainedModel, max_batch_size: int, bf16: bool = False, raw_logprobs: bool = False
    ) -> None:
        self._lm, self._max_batch_size, self._bf16, self._raw_logprobs = lm, max_batch_size, bf16, raw_logprobs
        self._context = context_of(lm.config)
        self.version: int | None = None
        self._group: dist.ProcessGroup | None = None

    def generate(self, requests: Sequence[Request], sampling: SamplingParams) -> Batch:
        return gather_pieces(self.pieces(requests, sampling))

    def pieces(self, requests: Sequence[Request], sampling: SamplingParams) -> Iterator[Piece]:
        """Samples prompts of like length together, short ones first, so that a repeated rest is batched as before."""
        require_room(requests, self._context)
        order = sorted(range(len(requests)), key=lambda i: len(requests[i].tokens))
        size = self._max_batch_size
        for start in range(0, len(order), size):
            places = order[start : start + size]
            try:
                yield places, self._generate([requests[i] for i in places], sampling)
            except _NotFinite as broken:
                raise self._not_finite(requests, places[broken.row], broken.token) from None

    @torch.no_grad()
    def logprobs(self, batch: Batch) -> Tensor:
        head, parts = LogitsHead(self._lm), replace(batch, sampling=None).split(self._max_batch_size)
        with torch.autocast(self._lm.device.type, torch.bfloat16, enabled=self._bf16):
            scores = [head(part.to(self._lm.device)).logprob for part in parts]
        return torch.cat(scores).float().cpu()

    def load_weights(self, stream: Iterable[tuple[str, Tensor]], version: int) -> Sequence[Attestation]:
        self.version = None
        self._take(stream)
        return [self.attest(version)]

    def join(self, meeting: Meeting) -> None:
        self._group = join_group(meeting.store(), meeting)

    def receive(self, bucket: Bucket) -> None:
        self._take(unpack(bucket, self._group))

    def attest(self, version: int) -> Attestation:
        self.version = version
        return Attestation(version, {name: fingerprint(tensor) for name, tensor in self._tensors()})

    def show(self, name: str) -> Tensor:
        return dict(self._tensors())[name].detach()

    def wake(self) -> None:
        """Does nothing: the sampler is always awake."""

    def sleep(self) -> None:
        """Does nothing: only weights are held between rollouts."""

    def close(self) -> None:
        """Does nothing: there are no other processes."""

    def _tensors(self) -> Iterator[tuple[str, Tensor]]:
        held = chain(self._lm.named_parameters(), self._lm.named_buffers())
        return ((canonical(f"lm.{name}"), tensor) for name, tensor in held)

    @torch.no_grad()
    def _take(self, stream: Iterable[tuple[str, Tensor]]) -> None:
        own = dict(self._tensors())
        for name, tensor in stream:
            if own[name].data_ptr() != tensor.data_ptr():
                own[name].copy_(tensor)

    @torch.no_grad()
    def _generate(self, requests: Sequence[Request], sampling: SamplingParams) -> Batch:
        prompts = _prompts(requests).to(self._lm.device)
        room_B = (self._context - prompts.lengths).clamp(max=sampling.max_tokens).to(self._lm.device)
        # Autocast keeps its bf16 copies of the weights until it is left; in `inference_mode` it would keep none.
        with torch.autocast(self._lm.device.type, torch.bfloat16, enabled=self._bf16):
            tokens_BK, logprob_BK, length_B, stopped_B = self._decode(prompts, requests, sampling, room_B)
        return self._assemble(prompts.to("cpu"), tokens_BK, logprob_BK, length_B, stopped_B, sampling)

    def _decode(
        self, prompts: Batch, requests: Sequence[Request], sampling: SamplingParams, room_B: Tensor
    ) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """Decodes token by token. Returns tokens and log-probabilities [B, K], lengths [B], and stopped rows [B]."""
        device, rows, most = self._lm.device, len(requests), int(room_B.max())
        exact = is_exact(self._lm)
        cache = self._cache(prompts, int(prompts.lengths.max()) + most)
        tokens_BK = torch.zeros(rows, most, dtype=torch.int64, device=device)
        logprob_BK = torch.zeros(rows, most, device=device)
        length_B = torch.zeros(rows, dtype=torch.int64, device=device)
        stopped_B = torch.zeros(rows, dtype=torch.bool, device=device)
        uniform_BK = keyed.uniforms(torch.tensor([r.key for r in requests]), torch.arange(most)).to(device)
        stops = torch.tensor(sampling.stop_token_ids, dtype=torch.int64, device=device)
        alive = torch.arange(rows, device=device)
        running = torch.ones(rows, dtype=torch.bool, device=device)
        logits = self._logits(prompts.tokens[None], prompts.position[None], cache, _last(prompts))[0]
        for k in range(most):
            token, logprob = draw(logits, uniform_BK[alive, k], sampling, exact)
            if self._raw_logprobs:
                logprob, _ = token_scores(logits, token, PLAIN, row_invariant=exact)
            tokens_BK[alive, k], logprob_BK[alive, k] = token, logprob
            broken = running & ~logprob.isfinite()
            length_B[alive] += running
            stopped_B[alive] |= running & torch.isin(token, stops)
            running = running & ~stopped_B[alive] & (room_B[alive] > k + 1)
            left, num_broken = torch.stack([running.sum(), broken.sum()]).tolist()  # one wait for the device
            if num_broken:
                raise _NotFinite(int(alive[broken][0]), k)
            if left == 0:
                break
            if left < _COMPACT_BELOW * alive.numel():
                kept = running.nonzero().squeeze(-1)
                cache.keep(kept)
                alive, token, running = alive[kept], token[kept], running[kept]
            cache.next_token()
            logits = self._logits(token[:, None], cache.filled[:, None], cache, 1)[:, 0]
        return tokens_BK, logprob_BK, length_B, stopped_B

    def _not_finite(self, requests: Sequence[Request], row: int, token: int) -> RunError:
        weights = "as it was opened" if self.version is None else f"with the weights of step {self.version}"
        folder, prompt = self._lm.config.name_or_path or "memory", len(requests[row].tokens)
        return RunError(
            f"the model in {folder}, {weights}, gives logits that are not finite for token {token + 1} of the response "
            f"to row {row} of {len(requests)}, a prompt of {prompt} tokens; lower the learning rate, or look at the "
            "model's weights"
        )

    def _cache(self, prompts: Batch, capacity: int) -> Cached:
        """Returns the layout that keeps keys and values."""
        return Cached(prompts, capacity, find_multiple(self._lm))

    def _logits(self, tokens: Tensor, position: Tensor, cache: Cached, keep: int | Tensor) -> Tensor:
        return self._lm(
            input_ids=tokens, position_ids=position, use_cache=False, layout=cache, logits_to_keep=keep
        ).logits

    def _assemble(
        self,
        prompts: Batch,
        tokens_BK: Tensor,
        logprob_BK: Tensor,
        length_B: Tensor,
        stopped_B: Tensor,
        sampling: SamplingParams,
    ) -> Batch:
        """Lays each response behind its prompt."""
        length_B = length_B.cpu()
        written = torch.arange(tokens_BK.shape[1])[None, :] < length_B[:, None]
        responses = Batch(tokens_BK.cpu()[written], length_B, {"sampler_logprob": logprob_BK.cpu()[written]})
        both = Batch(
            torch.cat([prompts.tokens, responses.tokens]),
            torch.stack([prompts.lengths, length_B]).reshape(-1),
            {
                "mask": torch.arange(prompts.tokens.numel() + responses.tokens.numel()) >= prompts.tokens.numel(),
                "sampler_logprob": torch.cat([torch.zeros(prompts.tokens.numel()), responses["sampler_logprob"]]),
            },
        ).select(torch.arange(2 * len(prompts)).view(2, -1).T.reshape(-1))
        return Batch(
            both.tokens,
            prompts.lengths + length_B,
            both.token,
            {
                "truncated": ~stopped_B.cpu(),
                "version": torch.full((len(prompts),), self.version or 0),
            },
            sampling,
        )


def _prompts(requests: Sequence[Request]) -> Batch:
    """The requests' tokens as a batch."""
    return Batch(
        torch.tensor([token for request in requests for token in request.tokens], dtype=torch.int64),
        torch.tensor([len(request.tokens) for request in requests], dtype=torch.int64),
    )


def _last(prompts: Batch) -> Tensor:
    """Flat index of each prompt's last token, which is the state before the first response token."""
    return (prompts.starts + prompts.lengths - 1).to(prompts.tokens.device)
