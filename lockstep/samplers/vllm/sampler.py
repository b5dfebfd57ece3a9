"""The vLLM sampler: its asynchronous engine, for a process of its own. Token ids go in and come out, never text."""

from __future__ import annotations

import asyncio
import json
import os
import sys
from collections.abc import AsyncGenerator, Awaitable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict
from itertools import chain
from typing import Any, TypeVar

import safetensors.torch
import torch
from torch import Tensor

from lockstep.batch import Batch
from lockstep.distributed.meeting import Meeting
from lockstep.models.folder import first_line, read_config
from lockstep.recipe import Computation, SamplerSection
from lockstep.samplers.base import Attestation, Piece
from lockstep.samplers.transfer import Bucket
from lockstep.samplers.vllm.environment import clear, prepare
from lockstep.types import Request, SamplingParams

ENGINE_DIED = 70
"""Exit code of a sampler's process whose engine is gone: it is of no use without."""

LIFE_SIGN_S = 1.0
"""So often is looked whether the engine still lives while it is waited for."""

_CPU_CACHE_GIB = 1.0
_CPU_BLOCK = 32
_CPU_BATCH_TOKENS = 4096
_ANY_SHARE = {"gpu_memory_utilization": 0.01}
_COLDEST = 0.01
T = TypeVar("T")


class VLLMSampler:
    """Implements `samplers.base.Served`.

    Args:
        model: A Hugging Face folder.
        section: Sizes, and options of vLLM's.
        computation: vLLM computes in the learner's type.
        raw_logprobs: Log-probabilities are those of temperature 1 and of all tokens, whatever is drawn from.
        options: More of vLLM's options, by its words; they go before those that are made of the section.
    """

    worker = "lockstep.samplers.vllm.worker.WeightReceiver"

    def __init__(
        self,
        model: str,
        section: SamplerSection,
        computation: Computation,
        raw_logprobs: bool = False,
        options: Mapping[str, Any] | None = None,
    ) -> None:
        prepare(threads=max(1, (os.cpu_count() or 1) // section.replicas))
        try:
            from vllm.engine.arg_utils import AsyncEngineArgs
            from vllm.v1.engine.async_llm import AsyncLLM
        except (ImportError, RuntimeError) as error:
            raise ValueError(
                f"vLLM is installed and cannot be imported ({first_line(error)}); docs/guides/generation.md says which "
                "packages stand in its way"
            ) from error

        self._sleeps = section.vllm.sleep
        self._context = int(read_config(model).get_text_config().max_position_embeddings)
        self._version = 0
        self._requests = 0
        self._cached: dict[int, int] = {}
        self._loop = asyncio.new_event_loop()
        chosen = _options(section, computation, self._context)
        chosen |= {"model": model, "worker_extension_cls": self.worker}
        chosen |= {"logprobs_mode": "raw_logprobs" if raw_logprobs else "processed_logprobs", **(options or {})}

        async def start() -> AsyncLLM:
            return AsyncLLM.from_engine_args(AsyncEngineArgs(**chosen))

        try:
            self._engine = self._loop.run_until_complete(start())
        except (ValueError, RuntimeError) as error:
            raise ValueError(f"vLLM does not start with the model in {model}: {first_line(error)}") from error

    def pieces(self, requests: Sequence[Request], sampling: SamplingParams) -> Iterator[Piece]:
        answered = self._answered(requests, sampling)
        try:
            while (piece := self._run(anext(answered, None))) is not None:
                yield piece
        finally:
            self._run(answered.aclose())

    def logprobs(self, batch: Batch) -> Tensor:
        sequences = [tokens.tolist() for tokens in batch.sequences()]
        scoring = {"prompt_logprobs": 0, "max_tokens": 1}
        outputs = self._run(self._outputs(sequences, scoring))
        columns = (
            (0.0, *_chosen(tokens[1:], output.prompt_logprobs[1:]))
            for tokens, output in zip(sequences, outputs, strict=True)
        )
        return _flat(columns) * batch.mask

    def join(self, meeting: Meeting) -> None:
        """Joins the process group that weights come by; `meeting` is that of vLLM's worker."""
        self._on_worker("join_carrier", json.dumps(asdict(meeting)))

    def receive(self, bucket: Bucket) -> None:
        """Takes a part of new weights."""
        if bucket.number == 0:
            self._probe()  # so that there is something in the prefix cache, which has to be gone afterwards
        self._on_worker("receive_weights", bucket.json())

    def attest(self, version: int) -> Attestation:
        """Ends a refit: drops caches, and says what is held."""
        found = json.loads(self._on_worker("attest_weights"))
        self.forget_old_weights()
        self._version = version
        found["received"] = frozenset(found["received"])
        return Attestation(version, **found, kept_caches=self._kept_caches())

    def forget_old_weights(self) -> None:
        """What a refit has to drop."""
        self.drop_caches()

    def drop_caches(self) -> None:
        """Drops all that was computed for earlier requests."""
        self._run(self._engine.reset_prefix_cache())
        self._run(self._engine.reset_mm_cache())

    def tensor_names(self) -> list[str]:
        """Of the tensors that `show` knows: those of the checkpoint, and a head that is tied."""
        return json.loads(self._on_worker("tensor_names"))

    def show(self, name: str) -> Tensor:
        """A tensor as it is computed with now; where a kernel keeps it, 0 and −0 are the same."""
        return safetensors.torch.load(self._on_worker("show_tensor", name))[name]

    def observed(self) -> dict[str, Any]:
        """What was seen since this was last asked.

        Returns:
            `cached`, of each request in turn how many tokens of its prompt came out of the prefix cache; and what
            `WeightReceiver.observe_passes` tells.
        """
        cached, self._cached = self._cached, {}
        return {"cached": [cached[number] for number in sorted(cached)]} | json.loads(self._on_worker("observe_passes"))

    def config(self) -> dict[str, Any]:
        """The model's configuration as vLLM has it, as plain values."""
        return self._engine.vllm_config.model_config.hf_text_config.to_dict()

    def settings(self) -> dict[str, Any]:
        """How vLLM has set itself up, as far as that shapes its numbers."""
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
        } | json.loads(self._on_worker("attention_of_layers"))

    def wake(self) -> None:
        if self._sleeps:
            self._run(self._engine.wake_up())

    def sleep(self) -> None:
        """Moves the weights to the host's memory and drops the cache; only on a GPU."""
        if self._sleeps:
            self._run(self._engine.sleep(level=1))

    def close(self) -> None:
        self._engine.shutdown()
        clear()

    async def _answered(self, requests: Sequence[Request], sampling: SamplingParams) -> AsyncGenerator[Piece]:
        """Responses, as many at a time as are ready."""
        waiting = {
            asyncio.ensure_future(self._output(request.tokens, self._drawing(request, sampling))): place
            for place, request in enumerate(requests)
        }
        try:
            while waiting:
                done, _ = await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
                places = [waiting.pop(task) for task in done]
                outputs = [task.result() for task in done]
                yield places, self._batch([requests[place] for place in places], outputs, sampling)
        finally:
            for task in waiting:
                task.cancel()

    def _drawing(self, request: Request, sampling: SamplingParams) -> dict[str, Any]:
        """How to draw one response, in vLLM's words. Nothing but the listed tokens ends it before its time."""
        if 0 < sampling.temperature < _COLDEST:
            raise ValueError(f"vLLM knows no temperature between 0 and {_COLDEST}; use 0, or a higher one")
        return {
            "max_tokens": min(sampling.max_tokens, self._context - len(request.tokens)),
            "temperature": sampling.temperature,
            "top_k": sampling.top_k,
            "top_p": sampling.top_p,
            "seed": request.key & (2**63 - 1),
            "stop_token_ids": list(sampling.stop_token_ids),
            "ignore_eos": True,
            "logprobs": 0,
        }

    async def _output(self, tokens: Sequence[int], options: dict[str, Any]) -> Any:
        """vLLM's final output for one prompt."""
        from vllm import SamplingParams as Options
        from vllm.inputs import TokensPrompt
        from vllm.sampling_params import RequestOutputKind

        self._requests += 1
        number = self._requests
        chosen = Options(detokenize=False, output_kind=RequestOutputKind.FINAL_ONLY, **options)
        prompt = TokensPrompt(prompt_token_ids=list(tokens))
        outputs = [output async for output in self._engine.generate(prompt, chosen, str(number))]
        self._cached[number] = outputs[-1].num_cached_tokens or 0
        return outputs[-1]

    async def _outputs(self, sequences: Sequence[Sequence[int]], options: dict[str, Any]) -> list[Any]:
        return await asyncio.gather(*(self._output(tokens, options) for tokens in sequences))

    def _batch(self, requests: Sequence[Request], outputs: Sequence[Any], sampling: SamplingParams) -> Batch:
        responses = [output.outputs[0] for output in outputs]
        prompts = [request.tokens for request in requests]
        pairs = list(zip(prompts, responses, strict=True))
        return Batch(
            _flat((*prompt, *response.token_ids) for prompt, response in pairs),
            torch.tensor([len(prompt) + len(response.token_ids) for prompt, response in pairs]),
            {
                "mask": _flat([False] * len(prompt) + [True] * len(response.token_ids) for prompt, response in pairs),
                "sampler_logprob": _flat(
                    [0.0] * len(prompt) + _chosen(response.token_ids, response.logprobs) for prompt, response in pairs
                ),
            },
            {
                "truncated": torch.tensor([_truncated(response) for response in responses]),
                "version": torch.full((len(pairs),), self._version),
            },
            sampling,
        )

    def _probe(self) -> Any:
        """One token behind a prompt that is the same every time and fills two blocks of the prefix cache."""
        blocks = 2 * self._engine.vllm_config.cache_config.block_size
        return self._run(self._output([1] * min(self._context - 1, blocks + 1), {"max_tokens": 1}))

    def _kept_caches(self) -> tuple[str, ...]:
        return ("prefix cache",) if self._probe().num_cached_tokens else ()

    def _on_worker(self, verb: str, *arguments: str) -> Any:
        """Runs a method of `worker.WeightReceiver`; of several workers, the first one's answer."""
        result, *_ = self._run(self._engine.collective_rpc(verb, args=arguments))
        return result

    def _run(self, work: Awaitable[T]) -> T:
        """Waits for the engine; ends this process where the engine is gone."""
        from vllm.v1.engine.exceptions import EngineDeadError

        try:
            return self._loop.run_until_complete(self._answer(work))
        except EngineDeadError as error:
            print(f"vLLM's engine is gone: {first_line(error)}", file=sys.stderr, flush=True)
            os._exit(ENGINE_DIED)

    async def _answer(self, work: Awaitable[T]) -> T:
        """What the engine answers. vLLM lets a call on its workers wait for ever when the engine dies meanwhile."""
        answer = asyncio.ensure_future(work)
        while not (await asyncio.wait([answer], timeout=LIFE_SIGN_S))[0]:
            if self._engine.errored:
                raise self._engine.dead_error
        return answer.result()


def _options(section: SamplerSection, computation: Computation, context: int) -> dict[str, Any]:
    """vLLM's options, by its words."""
    options: dict[str, Any] = {
        "skip_tokenizer_init": True,
        "dtype": "bfloat16" if computation.dtype == "bf16" else "float32",
        "max_num_seqs": section.max_batch_size,
        "enable_prefix_caching": True,
        "enable_sleep_mode": section.vllm.sleep,
        "disable_log_stats": True,
        "use_tqdm_on_load": False,
        "seed": 0,
    }
    gib = section.vllm.kv_cache_gib
    if torch.cuda.is_available():
        # With a size for the cache, the share of the GPU that vLLM may use decides only whether it starts at all.
        return options if gib is None else options | {"kv_cache_memory_bytes": int(gib * 2**30)} | _ANY_SHARE
    return options | {
        "kv_cache_memory_bytes": int((gib or _CPU_CACHE_GIB) * 2**30),
        "block_size": _CPU_BLOCK,
        "enforce_eager": True,
        # vLLM dies where it takes a prompt in parts and has a seed: on a CPU it cannot take a draw back.
        "enable_chunked_prefill": False,
        "max_num_batched_tokens": max(_CPU_BATCH_TOKENS, context),
    }


def _chosen(tokens: Sequence[int], entries: Sequence[Any]) -> list[float]:
    """The log-probability of each token, out of all that vLLM tells of its position."""
    return [entry[token].logprob for token, entry in zip(tokens, entries, strict=True)]


def _truncated(response: Any) -> bool:
    """Whether a response was cut off."""
    if response.finish_reason not in ("stop", "length"):
        raise RuntimeError(f"vLLM ended a response with {response.finish_reason!r} ({response.stop_reason})")
    return response.finish_reason == "length"


def _flat(rows: Iterable[Iterable[Any]]) -> Tensor:
    return torch.tensor(list(chain.from_iterable(rows)))
