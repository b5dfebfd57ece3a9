"""The vLLM sampler: runs one engine in this process.

Takes and returns token ids, never text.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import chain
from operator import itemgetter
from typing import Any

import safetensors.torch
import torch
from pydantic import ValidationError
from torch import Tensor

from lockstep.config import Computation, SamplerSection
from lockstep.core.batch import Batch
from lockstep.core.errors import InputError, first_line
from lockstep.core.types import Request, SamplingParams
from lockstep.models.folder import find_context_length, read_config
from lockstep.samplers.base import ResponsePiece
from lockstep.samplers.stop_strings import open_stop_strings
from lockstep.samplers.vllm.arguments import engine_arguments
from lockstep.samplers.vllm.environment import prepare_process
from lockstep.weight_sync.attestation import WeightAttestation
from lockstep.weight_sync.buckets import WeightBucket
from lockstep.weight_sync.carriers import TransferRoute

ENGINE_DIED = 70
"""Exit code of a sampler process whose engine lost a tensor-parallel worker for good."""

_COLDEST = 0.01

EnginePrompt = tuple[Sequence[int], dict[str, Any]]
"""A prompt, and its arguments for vLLM's `SamplingParams`."""


class VLLMSampler:
    """Implements `samplers.base.WorkerSampler`.

    Args:
        model: A Hugging Face folder.
        section: Sizes, and vLLM's options.
        computation: The learner's; vLLM computes in its type.
        options: More arguments of vLLM's `EngineArgs`; override those of the section.
    """

    worker = "lockstep.samplers.vllm.worker.WeightReceiver"

    def __init__(
        self,
        model: str,
        section: SamplerSection,
        computation: Computation,
        options: Mapping[str, Any] | None = None,
    ) -> None:
        prepare_process()
        try:
            from vllm.engine.arg_utils import EngineArgs
        except (ImportError, RuntimeError) as error:
            raise InputError(
                f"vLLM cannot be imported ({first_line(error)}); see docs/guides/generation.md "
                "for conflicting packages"
            ) from error

        self._takes_turns = section.takes_turns
        self._without_cache = False
        # even the folder's weights, since a weight sync will replace them
        self._drops_weights = section.gets_weights
        self._limit = section.context_limit
        context = find_context_length(read_config(model))
        self._context = min(context, self._limit or context)
        self._model = model
        self._version = 0
        self._requests = 0
        self._cached: dict[int, int] = {}
        chosen = engine_arguments(section, computation, self._context, torch.cuda.is_available())
        chosen |= {"model": model, "worker_extension_cls": self.worker}
        chosen |= {"logprobs_mode": "processed_logprobs", **(options or {})}
        try:
            from vllm.v1.engine.llm_engine import LLMEngine

            self._engine: Any = LLMEngine.from_engine_args(EngineArgs(**chosen))
        except (
            ValueError,
            RuntimeError,
            LookupError,
            TypeError,
            AttributeError,
            AssertionError,
        ) as error:
            raise InputError(
                f"vLLM cannot start with the model in {model} ({_describe_error(error)}); use "
                "sampler=torch"
            ) from error
        executor: Any = self._engine.model_executor
        executor.register_failure_callback(_end_without_worker)
        workers = self._engine.vllm_config.parallel_config.world_size
        self._lost: Callable[[], bool] = lambda: workers > 1 and executor.is_failed

    def pieces(
        self, requests: Sequence[Request], sampling: SamplingParams
    ) -> Iterator[ResponsePiece]:
        prompts: list[tuple[tuple[int, ...], dict[str, Any]]] = []
        for request in requests:
            prompts.append((request.tokens, self._sampling_arguments(request, sampling)))
        for answers in self._stream_outputs(prompts, sampling.stop):
            indices, outputs = zip(*answers, strict=True)
            answered = [requests[index] for index in indices]
            yield indices, self._build_batch(answered, outputs, sampling)

    def logprobs(self, batch: Batch) -> Tensor:
        sequences = [tokens.tolist() for tokens in batch.split_paths().sequences()]
        scoring = {"prompt_logprobs": 0, "max_tokens": 1}
        answers = chain.from_iterable(
            self._stream_outputs([(tokens, scoring) for tokens in sequences])
        )
        found: list[float] = []
        for index, output in sorted(answers, key=itemgetter(0)):
            found += [0.0, *pick_logprobs(sequences[index][1:], output.prompt_logprobs[1:])]
        return torch.tensor(found) * batch.mask

    def join(self, route: TransferRoute) -> None:
        """Opens the route for weights; `route` is for vLLM's first worker."""
        self._call_first_worker("open_route", route.to_json())

    def receive(self, bucket: WeightBucket) -> None:
        """Receives a part of the new weights."""
        if bucket.number == 0 and not self._without_cache:
            # fills the prefix cache, so that `attest` can check that it was dropped
            self._sample_probe()
        self._call_first_worker("receive_weights", bucket.to_json())

    def attest(self, version: int) -> WeightAttestation:
        """Ends a weight sync: drops caches, and attests the loaded weights.

        Allocates the new KV cache only now.
        """
        found = merge_attestations(list(map(json.loads, self._call_workers("attest_weights"))))
        if self._without_cache:
            self._engine.wake_up(["kv_cache"])
            self._without_cache = False
        self._drops_weights = True
        self.drop_caches()
        self._version = version
        found["received"] = frozenset(found["received"])
        kept_caches = ()
        if self._sample_probe().num_cached_tokens:
            kept_caches = ("prefix cache",)
        return WeightAttestation(version, **found, kept_caches=kept_caches)

    def drop_caches(self) -> None:
        """Drops the prefix cache and the multimodal cache."""
        self._engine.reset_prefix_cache()
        self._engine.reset_mm_cache()

    def show(self, name: str) -> Tensor:
        """The tensor that the engine computes with now; −0 in a packed one reads as 0."""
        return safetensors.torch.load(self._call_first_worker("show_tensor", name))[name]

    def take_prefix_hits(self) -> list[int]:
        """Prompt tokens found in the prefix cache, by request, since the last call."""
        cached = self._cached
        self._cached = {}
        return [cached[number] for number in sorted(cached)]

    def settings(self) -> dict[str, Any]:
        """The vLLM settings that affect numbers."""
        import vllm

        config = self._engine.vllm_config
        return {
            "version": vllm.__version__,
            "dtype": str(config.model_config.dtype).removeprefix("torch."),
            "quantization": config.model_config.quantization,
            "logprobs_mode": config.model_config.logprobs_mode,
            "enforce_eager": config.model_config.enforce_eager,
            "max_num_seqs": config.scheduler_config.max_num_seqs,
            "max_num_batched_tokens": config.scheduler_config.max_num_batched_tokens,
            "enable_chunked_prefill": config.scheduler_config.enable_chunked_prefill,
            "enable_prefix_caching": config.cache_config.enable_prefix_caching,
            "kv_cache_dtype": config.cache_config.cache_dtype,
            "tensor_parallel_size": config.parallel_config.tensor_parallel_size,
            "model_runner": 2 if config.use_v2_model_runner else 1,
        } | json.loads(self._call_first_worker("attention_of_layers"))

    def wake(self) -> None:
        """Allocates GPU memory again; the KV cache after the weight sync, if one is needed."""
        if self._takes_turns:
            self._engine.wake_up(["weights"] if self._without_cache else None)

    def sleep(self) -> None:
        """Frees GPU memory, if GPUs are shared.

        Drops weights that came from a learner; moves the folder's weights to host memory.
        """
        if self._takes_turns:
            self._without_cache = self._drops_weights
            self._engine.sleep(level=2 if self._drops_weights else 1)

    def close(self) -> None:
        self._engine.engine_core.shutdown()

    def _stream_outputs(
        self, prompts: Sequence[EnginePrompt], stop: tuple[str, ...] = ()
    ) -> Iterator[list[tuple[int, Any]]]:
        """Yields vLLM's final outputs with their prompts' indices, as they finish."""
        waiting: dict[str, int] = {}
        for index, prompt in enumerate(prompts):
            waiting[self._add_request(*prompt, bool(stop))] = index
        read = dict.fromkeys(waiting, 0)
        try:
            while waiting:
                outputs = self._step_engine()
                if stop:
                    outputs = self._end_by_strings(outputs, stop, read)
                done = [(waiting.pop(output.request_id), output) for output in outputs]
                self._cached |= {
                    int(output.request_id): output.num_cached_tokens or 0 for _, output in done
                }
                if done:
                    yield done
        finally:
            self._engine.abort_request(list(waiting))

    def _end_by_strings(
        self, outputs: Sequence[Any], stop: tuple[str, ...], read: dict[str, int]
    ) -> list[Any]:
        """Ends responses at the token that completes a stop string.

        Args:
            outputs: Cumulative outputs of running responses.
            stop: The stop strings.
            read: Number of each response's tokens that are known to complete none; updated in
                place.

        Returns:
            Outputs of the ended responses.
        """
        strings = open_stop_strings(self._model, stop)
        ended = list[Any]()
        for output in outputs:
            (response,) = output.outputs
            end = strings.find_end(response.token_ids, read[output.request_id])
            read[output.request_id] = len(response.token_ids)
            if end is not None:
                if not output.finished:
                    self._engine.abort_request([output.request_id])
                response.token_ids = response.token_ids[:end]
                response.logprobs = response.logprobs[:end]
                response.finish_reason = "stop"
            if end is not None or output.finished:
                ended.append(output)
        return ended

    def _step_engine(self) -> Sequence[Any]:
        try:
            with self._exit_if_worker_lost():
                return self._engine.step()
        except (ValueError, NotImplementedError) as error:
            raise InputError(
                f"vLLM cannot run this model ({_describe_error(error)}); use sampler=torch"
            ) from error

    def _sampling_arguments(self, request: Request, sampling: SamplingParams) -> dict[str, Any]:
        """The arguments of one response for vLLM's `SamplingParams`.

        Only the listed stop tokens end it early.
        """
        if 0 < sampling.temperature < _COLDEST:
            raise InputError(
                f"vLLM does not support temperatures between 0 and {_COLDEST}; use 0 or a higher "
                "one"
            )
        longest = len(request.tokens) + sampling.max_tokens
        if self._limit is not None and longest > self._limit:
            raise InputError(
                f"a prompt and its response may have {longest} tokens, but "
                f"sampler.vllm.max_model_len is {self._limit}"
            )
        return {
            "max_tokens": min(sampling.max_tokens, self._context - len(request.tokens)),
            "temperature": sampling.temperature,
            "top_k": sampling.top_k,
            "top_p": sampling.top_p,
            "min_p": sampling.min_p,
            "repetition_penalty": sampling.repetition_penalty,
            "presence_penalty": sampling.presence_penalty,
            "frequency_penalty": sampling.frequency_penalty,
            "seed": request.key & (2**63 - 1),
            "stop_token_ids": list(sampling.stop_token_ids),
            "ignore_eos": True,
            "logprobs": 0,
        }

    def _add_request(self, tokens: Sequence[int], options: dict[str, Any], watched: bool) -> str:
        """Adds a request to vLLM; returns its id.

        Its output comes when it is finished, or at each step if watched.
        """
        from vllm import SamplingParams as Options
        from vllm.inputs import TokensPrompt
        from vllm.sampling_params import RequestOutputKind

        self._requests += 1
        name = str(self._requests)
        if watched:
            kind = RequestOutputKind.CUMULATIVE
        else:
            kind = RequestOutputKind.FINAL_ONLY
        chosen = Options(detokenize=False, output_kind=kind, **options)
        self._engine.add_request(name, TokensPrompt(prompt_token_ids=list(tokens)), chosen)
        return name

    def _build_batch(
        self, requests: Sequence[Request], outputs: Sequence[Any], sampling: SamplingParams
    ) -> Batch:
        tokens: list[int] = []
        lengths: list[int] = []
        mask: list[bool] = []
        logprobs: list[float] = []
        truncated: list[bool] = []
        for request, output in zip(requests, outputs, strict=True):
            prompt = request.tokens
            response = output.outputs[0]
            if response.finish_reason not in ("stop", "length"):
                raise RuntimeError(
                    f"vLLM ended a response with {response.finish_reason!r} "
                    f"({response.stop_reason})"
                )
            own = response.token_ids
            tokens += [*prompt, *own]
            lengths.append(len(prompt) + len(own))
            mask += [False] * len(prompt) + [True] * len(own)
            logprobs += [0.0] * len(prompt) + pick_logprobs(own, response.logprobs)
            truncated.append(response.finish_reason == "length")
        return Batch(
            torch.tensor(tokens),
            torch.tensor(lengths),
            {"mask": torch.tensor(mask), "sampler_logprob": torch.tensor(logprobs)},
            {
                "truncated": torch.tensor(truncated),
                "version": torch.full((len(lengths),), self._version),
            },
            sampling,
        )

    def _sample_probe(self) -> Any:
        """Samples one token after a fixed prompt that fills two blocks of the prefix cache."""
        blocks = 2 * self._engine.vllm_config.cache_config.block_size
        tokens = [1] * min(self._context - 1, blocks + 1)
        ((_, output),) = chain.from_iterable(self._stream_outputs([(tokens, {"max_tokens": 1})]))
        return output

    def _call_first_worker(self, verb: str, *arguments: str | bytes) -> Any:
        """Runs a method of `worker.WeightReceiver` on all workers; returns the first result."""
        return self._call_workers(verb, *arguments)[0]

    def _call_workers(self, verb: str, *arguments: str | bytes) -> list[Any]:
        """Runs a method of `worker.WeightReceiver` on all workers. Returns their results."""
        with self._exit_if_worker_lost():
            return self._engine.collective_rpc(verb, args=arguments)

    @contextmanager
    def _exit_if_worker_lost(self) -> Iterator[None]:
        """Ends this process if a call fails because a tensor-parallel worker is gone."""
        try:
            yield
        except RuntimeError:
            if self._lost():
                _end_without_worker()
            raise


def merge_attestations(answers: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Merges all tensor-parallel workers' results of `attest_weights`.

    Tensors in which they differ get a fingerprint that matches nothing.
    """
    found, *others = answers
    for kind in ("fingerprints", "columns"):
        for name in set(chain.from_iterable(answer[kind] for answer in answers)):
            if len({answer[kind].get(name) for answer in answers}) > 1:
                found[kind][name] = _UNLIKE
    assert all(answer["tied"] == found["tied"] for answer in others), "workers run one model"
    return found


_UNLIKE = -1
"""A fingerprint that matches no tensor, except with probability 2⁻⁶⁴."""


def _end_without_worker() -> None:
    print("vLLM has lost a worker", file=sys.stderr, flush=True)
    os._exit(ENGINE_DIED)


def _describe_error(error: Exception) -> str:
    """Explains why vLLM does not start.

    The first line of a ValidationError only counts the errors.
    """
    if isinstance(error, ValidationError):
        return str(error.errors()[0]["msg"]).rstrip(".")
    return f"{type(error).__name__}: {first_line(error)}"


def pick_logprobs(tokens: Sequence[int], entries: Sequence[Any]) -> list[float]:
    """Picks each token's log-probability from vLLM's output for its position."""
    return [entry[token].logprob for token, entry in zip(tokens, entries, strict=True)]
