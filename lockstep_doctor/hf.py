"""The engine `hf`: a folder as `transformers` computes it, by prefill or token by token with its cache."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from lockstep_doctor.builds import watch_build
from lockstep_doctor.engines import EngineOptions
from lockstep_doctor.modules import ModuleTap

_BUILDER = """import torch
from transformers import AutoModelForCausalLM

model = AutoModelForCausalLM.from_pretrained({folder!r}, dtype={dtype}).to({device!r}).eval()


def read(tokens):
    return model(input_ids=tokens[None].to({device!r}), use_cache=False).logits[0]

"""


def load(folder: Path, dtype: torch.dtype, device: str) -> Any:
    """Returns a causal language model of `transformers`, of files on this machine alone; no code of theirs is run."""
    from transformers import AutoModelForCausalLM

    model: Any = AutoModelForCausalLM.from_pretrained(
        folder, dtype=dtype, local_files_only=True, use_safetensors=True, trust_remote_code=False
    )
    return model.to(device).eval()


def read_type(folder: Path) -> torch.dtype:
    """Returns the type in which a folder's weights are saved, by its configuration; fp32 where that does not say."""
    from transformers import AutoConfig

    config = AutoConfig.from_pretrained(folder, local_files_only=True, trust_remote_code=False)
    return config.dtype if isinstance(config.dtype, torch.dtype) else torch.float32


@contextmanager
def open_hf(folder: Path, options: EngineOptions) -> Iterator[ModuleTap]:
    """Opens a folder; see `engines.OpenTap`."""
    if options.parallel or options.neighbors:
        raise ValueError("the engine hf reads one sequence in one process; leave parallel and neighbors out")
    with watch_build() as models:
        models.append(model := load(folder, options.dtype, options.device))
    if options.dtype == torch.float64:
        model.set_experts_implementation("eager")  # torch has no grouped products of that type
    builder = _BUILDER.format(folder=str(folder), dtype=options.dtype, device=options.device)
    if options.prompt is None:
        yield ModuleTap(model, "hf", builder)
    else:
        read = read_by_decoding(options.prompt)
        yield ModuleTap(model, "hf decoding", read=read, prompt=options.prompt)


def read_by_decoding(prompt: int) -> Callable[[nn.Module, Tensor], Tensor]:
    """Returns how a model reads a sequence with a cache: `prompt` tokens together, each of the others alone."""
    if prompt < 1:
        raise ValueError(f"prompt is {prompt}, but decoding begins behind at least one token")

    def read(model: nn.Module, tokens_T: Tensor) -> Tensor:
        found = model(input_ids=tokens_T[None, :prompt], use_cache=True)
        logits = [found.logits[0]]
        for token in tokens_T[prompt:]:
            found = model(input_ids=token.view(1, 1), past_key_values=found.past_key_values, use_cache=True)
            logits.append(found.logits[0])
        return torch.cat(logits)

    return read
