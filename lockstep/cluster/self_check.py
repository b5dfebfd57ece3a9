"""Self-check before a model is opened: Lockstep must compute it as plain `transformers` does.

The check uses a miniature with every kind of its layers (`models.miniature`). Log-probabilities
must agree with those of `transformers`, which reads one sequence at a time with its own attention:
log-probabilities of packed sequences in one pass, and of the torch sampler, which decodes token by
token. Then the model is exported and opened again.

A proof is cached by configuration, versions, source and machine.
"""

from __future__ import annotations

import hashlib
import json
import platform
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from functools import cache
from pathlib import Path
from typing import BinaryIO

import torch
import transformers
from torch import Tensor, nn
from transformers import AutoModelForCausalLM, PreTrainedConfig, PreTrainedModel

import lockstep_logprobs
from lockstep.config import Computation, DType
from lockstep.core import keyed
from lockstep.core.batch import Batch
from lockstep.core.errors import InputError, first_line
from lockstep.core.types import Request, SamplingParams
from lockstep.data.cache import ensure_cached, name_entry
from lockstep.distributed.sampling import token_scores
from lockstep.models import attention
from lockstep.models.device import resolve_device
from lockstep.models.export import assemble_folder
from lockstep.models.families.own_code import find_package, write_own_files
from lockstep.models.folder import ModelError, find_context_length, read_config
from lockstep.models.heads import PLAIN, LogitsHead
from lockstep.models.miniature import build_miniature, plain_logits
from lockstep.models.precision import TORCH_TYPES, open_autocast
from lockstep.samplers.torch.stateful import torch_sampler
from lockstep.version import __version__

LARGEST_GAP = 1e-3
"""Bound on |Δ log π| of any token, nats, fp32.

Of 55 correct families the worst has 6e-4 (Kimi Linear, decoded); a leaking state gives 1e-2 and
more.
"""

LARGEST_HALF_RATIO = 1.1
"""Bound on mean e^|Δ| of bf16 or fp16 against fp32, with random weights.

Of 60 correct families the worst has 1.03.
"""

_INSTEAD = "choose a verified model from docs/models.md"

_PROMPTS = (5, 1, 9, 5, 13, 2)
_RESPONSE = 8
_PROVEN = (
    "core",
    "models",
    "samplers",
    "distributed",
    "weight_sync",
    "cluster/self_check.py",
)
"""Source files and folders of this package in a proof's cache key."""


@dataclass(frozen=True)
class SelfCheckResult:
    """Largest |Δ log π| to plain `transformers`, nats, fp32.

    Attributes:
        scored: Difference of packed sequences in one pass, as a learner scores them.
        decoded: Difference of the torch sampler's log-probabilities of its samples; 0 if it does
            not sample.
    """

    scored: float
    decoded: float

    @property
    def largest_gap(self) -> float:
        return max(self.scored, self.decoded)


def require_proof(
    folder: str | Path, computation: Computation, sampling: SamplingParams | None
) -> SelfCheckResult:
    """Proves a model, or reads this machine's cached proof.

    Args:
        folder: Folder of the model; its weights are not read.
        computation: Device and type of the computation.
        sampling: The torch sampler's distribution; None: it does not sample.

    Raises:
        ModelError: If Lockstep's results differ from those of `transformers`.
    """
    config = read_config(folder, headless=True)
    device = resolve_device(computation.device)
    if sampling is None:
        shape = None
    else:
        shape = replace(sampling.without_penalties, max_tokens=_RESPONSE, stop_token_ids=())
    fields = {name: value for name, value in config.to_dict().items() if name != "_name_or_path"}
    about = (
        json.dumps(fields, sort_keys=True, default=str),
        str(shape),
        computation.dtype,
        str(device),
    )
    key = about, _describe_machine(), _hash_source(), find_package(config.model_type)

    def write_proof(file: BinaryIO) -> None:
        file.write(
            json.dumps(asdict(compute_proof(config, device, computation.dtype, shape))).encode()
        )

    path = ensure_cached(name_entry("self-check", key), write_proof)
    return SelfCheckResult(**json.loads(path.read_bytes()))


@torch.no_grad()
def compute_proof(
    config: PreTrainedConfig, device: torch.device, dtype: DType, sampling: SamplingParams | None
) -> SelfCheckResult:
    """Computes the proof; see `require_proof`."""
    model = build_miniature(config)
    nn.Module.to(model, device)
    with torch.random.fork_rng(devices=[]), _refuse_unsupported(config):
        requests = _draw_requests(model)
        if sampling is None:
            prompts = [torch.tensor(request.tokens) for request in requests]
            sampled = Batch(torch.cat(prompts), torch.tensor(list(map(len, prompts))))
        else:
            sampled = torch_sampler(model, 3).generate(requests, sampling)
        every = replace(sampled, sampling=None).with_columns({"mask": sampled.position > 0})
        plain = [plain_logits(model, tokens) for tokens in sampled.sequences()]
        wanted_N = _score_plain_logits(plain, every, PLAIN)
        head = LogitsHead(model)
        found = SelfCheckResult(_measure_gap(_score_batch(head, every), wanted_N), 0.0)
        if sampled.sampling is not None:
            decoded = _measure_gap(
                sampled["sampler_logprob"], _score_plain_logits(plain, sampled, sampled.sampling)
            )
            found = replace(found, decoded=decoded)
        _require_gaps(config.model_type, found)
        if TORCH_TYPES[dtype] != torch.float32:
            with open_autocast(device, dtype):
                half_N = _score_batch(head, every)
            _require_half(config.model_type, dtype, (half_N - wanted_N)[every.mask])
        _require_export(model)
    return found


def _draw_requests(model: PreTrainedModel) -> list[Request]:
    """Prompts of uneven lengths, which fit the model's context."""
    most = max(1, find_context_length(model.config) - _RESPONSE)
    sizes = torch.tensor([min(length, most) for length in _PROMPTS])
    tokens = keyed.draw_bits(
        torch.tensor([keyed.hash_key("self-check prompts")]), torch.arange(int(sizes.sum()))
    )[0]
    tokens = tokens.remainder(int(model.config.vocab_size)).abs()
    found: list[Request] = []
    for number, part in enumerate(tokens.split(sizes.tolist())):
        found.append(Request(tuple(part.tolist()), keyed.hash_key("self-check", number)))
    return found


def _score_batch(head: LogitsHead, batch: Batch) -> Tensor:
    logprob = head(batch.to(head.lm.device)).logprob
    assert logprob is not None, "a head of logits scores tokens"
    return logprob.float().cpu()


def _score_plain_logits(plain: list[Tensor], batch: Batch, sampling: SamplingParams) -> Tensor:
    """log π of the masked tokens from each sequence's logits, [N]; 0 elsewhere."""
    columns: list[Tensor] = []
    for logits_TV, tokens_T, mask_T in zip(
        plain, batch.sequences(), batch.sequences("mask"), strict=True
    ):
        own = token_scores(logits_TV[:-1].float().cpu(), tokens_T[1:], sampling)[0]
        columns.append(torch.cat([own.new_zeros(1), own]) * mask_T)
    return torch.cat(columns)


def _measure_gap(found_N: Tensor, wanted_N: Tensor) -> float:
    """The largest |Δ|; infinite if any is NaN."""
    return float((found_N.cpu() - wanted_N.cpu()).abs().nan_to_num(float("inf")).max())


def _require_gaps(kind: str, proof: SelfCheckResult) -> None:
    if proof.scored > LARGEST_GAP:
        raise ModelError(
            f"Lockstep's {kind} differs from transformers: log-probabilities of packed sequences "
            f"are up to {proof.scored:.2g} nats off, so it cannot be trained here; {_INSTEAD}"
        )
    if proof.decoded > LARGEST_GAP:
        raise ModelError(
            f"Lockstep's {kind} decodes differently from transformers: token by token, "
            f"log-probabilities are up to {proof.decoded:.2g} nats off, so it cannot be sampled "
            "with sampler.backend=torch; use sampler.backend=vllm if it supports the model, or a "
            "different model from docs/models.md"
        )


def _require_half(kind: str, dtype: DType, gap_n: Tensor) -> None:
    """Raises ModelError if a model differs too much from its fp32 results, or is not finite."""
    ratio = float(gap_n.abs().exp().nan_to_num(float("inf")).mean())
    if ratio > LARGEST_HALF_RATIO:
        raise ModelError(
            f"a {kind} in {dtype} differs too much from fp32 (mean e^|Δ log π| is {ratio:.3f}, "
            f"above {LARGEST_HALF_RATIO}); use learner.dtype=fp32"
        )


def _require_export(model: PreTrainedModel) -> None:
    """Writes the model as a run does, and opens it with `transformers`."""
    kind = model.config.model_type
    tokens = torch.arange(_RESPONSE) % int(model.config.vocab_size)
    kept_names = model.state_dict().keys()
    buffers = {name: buffer for name, buffer in model.named_buffers() if name in kept_names}
    try:
        with tempfile.TemporaryDirectory(prefix="lockstep-self-check-") as made:
            frame = Path(made) / "frame"
            out = Path(made) / "out"
            model.config.save_pretrained(frame)
            write_own_files(kind, frame)
            assemble_folder(
                frame, {**dict(model.named_parameters()), **buffers}, out, "fp32", card=""
            )
            again = AutoModelForCausalLM.from_pretrained(
                out, dtype=torch.float32, attn_implementation=attention.NAME
            )
    except (ValueError, RuntimeError, NotImplementedError, KeyError, OSError) as error:
        raise ModelError(f"a {kind} cannot be exported: {first_line(error)}; {_INSTEAD}") from error
    nn.Module.to(again, model.device)
    gap = _measure_gap(plain_logits(again.eval(), tokens), plain_logits(model, tokens))
    if gap > LARGEST_GAP:
        raise ModelError(
            f"an exported and reopened {kind} computes different logits (by up to {gap:.2g}); "
            f"{_INSTEAD}"
        )


@contextmanager
def _refuse_unsupported(config: PreTrainedConfig) -> Iterator[None]:
    """Turns errors of unsupported models (attention, packing, cache) into ModelError."""
    try:
        yield
    except InputError:
        raise
    except (
        RuntimeError,
        ValueError,
        TypeError,
        AttributeError,
        KeyError,
        IndexError,
        AssertionError,
    ) as error:
        raise ModelError(
            f"a {config.model_type} cannot run in Lockstep ({type(error).__name__}: "
            f"{first_line(error)}); {_INSTEAD}"
        ) from error


@cache
def _describe_machine() -> tuple[str, ...]:
    """Versions and hardware."""
    gpu = torch.cuda.get_device_name() if torch.cuda.is_available() else ""
    versions = __version__, torch.__version__, transformers.__version__, platform.python_version()
    return (
        *versions,
        platform.machine(),
        platform.processor(),
        torch.backends.cpu.get_cpu_capability(),
        gpu,
    )


@cache
def _hash_source() -> str:
    """Hash of the source in `_PROVEN`."""
    root = Path(__file__).parents[1]
    digest = hashlib.sha256()
    parts = [*(root / name for name in _PROVEN), Path(lockstep_logprobs.__file__).parent]
    for part in parts:
        files = sorted([part] if part.suffix else part.rglob("*.py"))
        assert files, f"{part} has moved; update the location of the code that the proof covers"
        for path in files:
            digest.update(path.read_bytes())
    return digest.hexdigest()
