"""Plain `transformers`, the independent reference.

It uses the attention, masks, cache and logits processors of `transformers`, and no computation of
Lockstep's.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.utils.rnn import pad_sequence
from transformers import (
    AutoModelForCausalLM,
    DynamicCache,
    GenerationConfig,
    LogitsProcessor,
    LogitsProcessorList,
    MinPLogitsWarper,
    PreTrainedConfig,
    PreTrainedModel,
    RepetitionPenaltyLogitsProcessor,
    TopKLogitsWarper,
    TopPLogitsWarper,
)

from lockstep.config import Device, DType
from lockstep.core import keyed
from lockstep.core.batch import Batch
from lockstep.core.errors import InputError
from lockstep.core.types import Request, SamplingParams
from lockstep.distributed.sampling import draw_tokens
from lockstep.models.device import resolve_device
from lockstep.models.folder import build_skeleton, find_context_length, read_config
from lockstep.models.heads import PLAIN
from lockstep.models.precision import TORCH_TYPES
from lockstep.models.weight_files import check_weights
from lockstep.samplers.torch.model_sampler import append_responses
from lockstep.samplers.torch.sequences import Response
from lockstep_doctor.table.base import USUAL, BackendCapability, BackendConditions

Sequences = Sequence[Tensor]
CHUNK = 1024
"""Tokens per chunk, in eager attention (which holds all its weights) and in computing
log-probabilities from logits.
"""


class HFBackend:
    """Implements `table.base.Backend`, with a copy of the model for each requested type and
    kernel.

    Each step is a method, so that a subclass can change one.
    """

    name = "hf"
    capabilities: frozenset[BackendCapability] = frozenset(("generate", "shaped"))

    def __init__(
        self, folder: str, dtype: DType = "fp32", batch_size: int = 8, device: Device = "cpu"
    ) -> None:
        self.device = resolve_device(device)
        self._folder = folder
        empty = build_skeleton(read_config(folder), folder)
        check_weights(folder, empty)
        self._sdpa = bool(empty._supports_sdpa)
        self._models: dict[tuple[DType | None, str], PreTrainedModel] = {}
        self._usual = BackendConditions(dtype=dtype, batch_size=batch_size)
        self.context = find_context_length(self.read_config())

    @property
    def network(self) -> PreTrainedModel:
        return self.model_for()

    def read_config(self) -> PreTrainedConfig:
        """The model's configuration."""
        return read_config(self._folder)

    def list_settings(self) -> Mapping[str, Any]:
        return {
            "dtype": self._usual.dtype,
            "device": self.device.type,
            "kernel": self.choose_attention(self._usual),
            "layout": "padded",
            "batch_size": self._usual.batch_size,
            "training": any(module.training for module in self.model_for().modules()),
        }

    def close(self) -> None:
        """Does nothing: there are no processes to close."""

    def choose_attention(self, conditions: BackendConditions) -> str:
        """Name of the attention implementation in `transformers`."""
        return conditions.kernel or ("sdpa" if self._sdpa else "eager")

    def model_for(self, conditions: BackendConditions = USUAL) -> PreTrainedModel:
        """The model for the conditions."""
        asked = self._usual.override_with(conditions)
        key = asked.dtype, self.choose_attention(asked)
        if key not in self._models:
            self._models[key] = self.read_model(asked)
        return self._models[key]

    def read_model(self, conditions: BackendConditions) -> PreTrainedModel:
        """Reads the model from its folder, in evaluation mode."""
        model = AutoModelForCausalLM.from_pretrained(
            self._folder,
            config=self.read_config(),
            dtype=TORCH_TYPES[conditions.dtype or "fp32"],
            attn_implementation=self.choose_attention(conditions),
            local_files_only=True,
            use_safetensors=True,
            trust_remote_code=False,
        ).eval()
        nn.Module.to(model, self.device)  # in place; its own `to` is typed for wrappers
        return model

    @torch.no_grad()
    def score(self, batch: Batch, conditions: BackendConditions = USUAL) -> Tensor:
        asked = self._usual.override_with(conditions)
        model = self.model_for(asked)
        sequences = batch.sequences()
        size = asked.batch_size or 1
        columns = list[Tensor]()
        sampling = batch.sampling or PLAIN
        for start in range(0, len(sequences), size):
            chunk = sequences[start : start + size]
            if (
                len(chunk) == 1
                and self.choose_attention(asked) == "eager"
                and len(chunk[0]) > CHUNK
            ):
                logits = [
                    self._read_in_chunks(chunk[0], max(0, _count_prompt(batch, start) - 1), asked)
                ]
            else:
                logits = self.compute_logits(model, chunk)
            for number, (tokens, logits_TV) in enumerate(zip(chunk, logits, strict=True), start):
                prompt = _count_prompt(batch, number)
                seen = ((tokens[:end], tokens[prompt:end]) for end in range(1, len(tokens)))
                shaped_TV = _penalize_rows(logits_TV[:-1], seen, sampling)
                parts = zip(
                    shaped_TV.split(CHUNK), tokens[1:].to(self.device).split(CHUNK), strict=True
                )
                columns.append(torch.zeros(1))  # the first token has no log-probability
                for rows, ids in parts:
                    own = self.compute_logprobs(rows, ids, sampling, asked)
                    columns.append(own.float().cpu())
        return torch.cat(columns) * batch.mask

    @torch.no_grad()
    def generate(
        self,
        requests: Sequence[Request],
        sampling: SamplingParams,
        conditions: BackendConditions = USUAL,
    ) -> Batch:
        if sampling.stop_token_ids:
            raise InputError("the doctor draws responses of full length; leave out stop_token_ids")
        asked = self._usual.override_with(conditions)
        model = self.model_for(asked)
        size = asked.batch_size or 1
        rows: list[Response] = []
        for start in range(0, len(requests), size):
            tokens_BK, logprob_BK = self.draw_tokens(
                model, requests[start : start + size], sampling, asked
            )
            pairs = zip(tokens_BK.tolist(), logprob_BK.tolist(), strict=True)
            rows += [Response(tokens, logprobs, stopped=False) for tokens, logprobs in pairs]
        return append_responses(requests, rows, 0, sampling)

    def compute_logits(self, model: PreTrainedModel, sequences: Sequences) -> Sequences:
        """Computes the logits of each sequence, [T, V], in one padded batch."""
        padded = pad_sequence(list(sequences), batch_first=True).to(self.device)
        seen = pad_sequence(list(map(torch.ones_like, sequences)), batch_first=True).to(self.device)
        logits_BTV = model(input_ids=padded, attention_mask=seen, use_cache=False).logits
        return [logits[: len(tokens)] for logits, tokens in zip(logits_BTV, sequences, strict=True)]

    def _read_in_chunks(self, tokens_T: Tensor, text: int, asked: BackendConditions) -> Tensor:
        """Computes logits of one sequence [T, V] chunk by chunk; the default attention reads the
        first `text` tokens.
        """
        own = self.model_for(asked)
        quick = self.model_for(replace(asked, kernel=None))
        cache = DynamicCache(config=own.config)
        tokens_1T = tokens_T[None].to(self.device)
        if text:
            parts = [(quick, tokens_1T[:, :text])]
        else:
            parts = []
        parts += [(own, part) for part in tokens_1T[:, text:].split(CHUNK, 1)]
        logits = list[Tensor]()
        for model, ids in parts:
            found = model(input_ids=ids, past_key_values=cache, use_cache=True)
            logits.append(found.logits[0])
        return torch.cat(logits)

    def compute_logprobs(
        self,
        logits_MV: Tensor,
        token_M: Tensor,
        sampling: SamplingParams,
        conditions: BackendConditions,
    ) -> Tensor:
        """Log-probabilities of tokens from the logits that predict them, nats, fp32 [M]."""
        shaped_MV = shape_logits(logits_MV.float(), sampling)
        own_M1 = token_M[:, None]
        # A drawn token is inside the support, even if rounding puts it just outside.
        inside_MV = shaped_MV.scatter(
            -1,
            own_M1,
            shape_logits(
                logits_MV.float(), replace(sampling, top_k=0, top_p=1.0, min_p=0.0)
            ).gather(-1, own_M1),
        )
        return inside_MV.log_softmax(-1).gather(-1, own_M1)[:, 0]

    def draw_tokens(
        self,
        model: PreTrainedModel,
        requests: Sequence[Request],
        sampling: SamplingParams,
        conditions: BackendConditions,
    ) -> tuple[Tensor, Tensor]:
        """Draws responses with the model's own `generate`; returns tokens and log-probabilities [B,
        K].
        """
        drawing = _KeyedTokenDrawer(self, requests, sampling, conditions)
        prompts = [torch.tensor(request.tokens) for request in requests]
        padded = pad_sequence(prompts, batch_first=True, padding_side="left")
        seen = pad_sequence(
            list(map(torch.ones_like, prompts)), batch_first=True, padding_side="left"
        )
        model.generation_config = GenerationConfig()
        model.generate(  # pyright: ignore[reportCallIssue]
            padded.to(self.device),
            attention_mask=seen.to(self.device),
            generation_config=GenerationConfig(
                max_new_tokens=sampling.max_tokens, do_sample=False, pad_token_id=0
            ),
            logits_processor=LogitsProcessorList([drawing]),
        )
        return torch.stack(drawing.tokens, 1).cpu(), torch.stack(drawing.logprobs, 1).cpu()


def _count_prompt(batch: Batch, number: int) -> int:
    """Returns the number of tokens before the first masked token of a sequence."""
    return int(batch.mask.split(batch.lengths.tolist())[number].int().argmax())


def _penalize_rows(
    logits_MV: Tensor, seen: Iterable[tuple[Tensor, Tensor]], sampling: SamplingParams
) -> Tensor:
    """Applies penalties to next-token logits; `seen` has each row's earlier tokens, and the
    response's tokens among them.
    """
    if not sampling.penalizes or not len(logits_MV):
        return logits_MV
    pairs = zip(logits_MV, seen, strict=True)
    return torch.stack([apply_penalties(row_V, *both, sampling) for row_V, both in pairs])


def apply_penalties(
    logits_V: Tensor, before: Tensor, response: Tensor, sampling: SamplingParams
) -> Tensor:
    """Applies penalties to next-token logits: repetition for all earlier tokens, frequency and
    presence for the response's; returns fp32.
    """
    scores: Any = RepetitionPenaltyLogitsProcessor(sampling.repetition_penalty)
    penalized_V = scores(before[None].to(logits_V.device), logits_V[None].float())[0]
    times_V = torch.bincount(response, minlength=len(logits_V)).to(logits_V.device)
    return (
        penalized_V
        - sampling.frequency_penalty * times_V
        - sampling.presence_penalty * (times_V > 0)
    )


def shape_logits(logits_MV: Tensor, sampling: SamplingParams) -> Tensor:
    """Returns logits of the sampling distribution, by the processors of `transformers`."""
    scores: Any = logits_MV / sampling.divisor
    nothing: Any = None
    if sampling.min_p:
        scores = MinPLogitsWarper(sampling.min_p)(nothing, scores)
    if sampling.top_k:
        scores = TopKLogitsWarper(min(sampling.top_k, scores.shape[-1]))(nothing, scores)
    if sampling.top_p < 1:
        scores = TopPLogitsWarper(sampling.top_p)(nothing, scores)
    return scores


class _KeyedTokenDrawer(LogitsProcessor):
    """Draws tokens with keyed random numbers, records them, and forces `generate` to take them."""

    def __init__(
        self,
        backend: HFBackend,
        requests: Sequence[Request],
        sampling: SamplingParams,
        conditions: BackendConditions,
    ) -> None:
        self._backend = backend
        self._sampling = sampling
        self._conditions = conditions
        self._prompts = [torch.tensor(request.tokens) for request in requests]
        keys = torch.tensor([request.key for request in requests])
        self._uniform_BK = keyed.draw_uniforms(keys, torch.arange(sampling.max_tokens)).to(
            backend.device
        )
        self.tokens: list[Tensor] = []
        self.logprobs: list[Tensor] = []

    def __call__(self, input_ids: Any, scores: Any) -> Any:
        if self._sampling.penalizes:
            none = torch.zeros(len(scores), 0, dtype=torch.int64)
            drawn_BK = torch.cat([none, *(token_B.cpu()[:, None] for token_B in self.tokens)], 1)
            pairs = zip(self._prompts, drawn_BK, strict=True)
            seen = ((torch.cat([prompt, response]), response) for prompt, response in pairs)
            scores = _penalize_rows(scores, seen, self._sampling)
        token_B, _ = draw_tokens(scores, self._uniform_BK[:, len(self.tokens)], self._sampling)
        self.logprobs.append(
            self._backend.compute_logprobs(scores, token_B, self._sampling, self._conditions)
        )
        self.tokens.append(token_B)
        return torch.full_like(scores, float("-inf")).scatter(-1, token_B[:, None], 0.0)
