"""The 26 names of `lockstep.distributed.model_utils` at a real model's vocabulary, against float64.

    python -m benchmarks.mission.logprob_checks MODEL OUT

Logits and hidden states are the model's own on two rows of English text. Each function runs on one
process, on two that share the vocabulary (tp 2), and, where it knows context parallelism, on two
that share each sequence (cp 2), in fp32 and in bf16; the comparison is with the same in float64 on
whole tensors, forward and gradient. OUT gets, by name and layout, the largest differences and their
largest share of the bound (`logprob_bounds`).
"""

from __future__ import annotations

import json
import os
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.multiprocessing.spawn import start_processes

from benchmarks.mission import logprob_claims as claims
from benchmarks.mission.logprob_bounds import U_BF16
from benchmarks.mission.logprob_claims import Claim, Inputs
from benchmarks.mission.logprob_places import Place

ROWS = 2
LENGTH = 32
TEXT = """The harbor was quiet when the first boats came in. Gulls walked along the wall, and a boy counted the baskets
as they were lifted out: herring, mackerel, and one large eel that nobody had asked for. His grandmother, who had sold
fish here for forty years, said that the price of ice would decide the day, as it always did in July."""
TYPES = {"fp32": torch.float32, "bf16": torch.bfloat16}
LAYOUTS = ((1, 1), (2, 1), (1, 2))


@dataclass(frozen=True)
class Check:
    """A name's claim, and where it is made.

    Attributes:
        claim: Calls the function.
        cp: True if it knows context parallelism.
        tp: True if it knows tensor parallelism.
    """

    claim: Callable[[Inputs], Claim]
    cp: bool = False
    tp: bool = True


CHECKS = {
    "_compute_distributed_log_softmax": Check(claims.log_softmax),
    "_compute_distributed_softmax": Check(claims.softmax),
    "DistributedLogprob": Check(claims.logprob),
    "DistributedCrossEntropy": Check(claims.cross_entropy),
    "ChunkedDistributedLogprob": Check(claims.chunked_logprob),
    "DistributedLogprobWithSampling": Check(claims.sampled_logprob),
    "ChunkedDistributedLogprobWithSampling": Check(claims.chunked_sampled_logprob),
    "ChunkedDistributedGatherLogprob": Check(claims.gather_logprob),
    "dtensor_from_parallel_logits_to_logprobs": Check(claims.dtensor_target, cp=True),
    "from_parallel_logits_to_logprobs": Check(claims.from_logits, cp=True),
    "from_parallel_logits_to_logprobs_packed_sequences": Check(claims.packed, cp=True),
    "_get_tokens_on_this_cp_rank": Check(claims.own_tokens, cp=True, tp=False),
    "allgather_cp_sharded_tensor": Check(claims.gather_sequence, cp=True, tp=False),
    "AllGatherCPTensor": Check(claims.gather_sequence_apply, cp=True, tp=False),
    "get_logprobs_from_vocab_parallel_logits": Check(claims.dtensor_logits, cp=True),
    "get_next_token_logprobs_from_logits": Check(claims.next_token, cp=True),
    "distributed_vocab_topk": Check(claims.top_k),
    "gather_logits_at_global_indices": Check(claims.gather_logits, cp=True),
    "get_distillation_topk_logprobs_from_logits": Check(claims.distillation, cp=True),
    "ChunkedDistributedEntropy": Check(claims.entropy),
    "from_parallel_hidden_states_to_logprobs": Check(claims.from_hidden),
    "ChunkedDistributedHiddenStatesToLogprobs": Check(claims.hidden_apply),
    "all_to_all_vp2sq": Check(claims.to_rows),
    "all_to_all_sq2vp": Check(claims.to_columns),
}
"""By name; `logprob_megatron` has the other two, which need Megatron."""


def measure_all(
    place: Place, tensors: dict[str, Tensor], names: list[str]
) -> dict[str, dict[str, Any]]:
    """Measures names on this rank and layout, by name and type."""
    found: dict[str, dict[str, Any]] = {}
    for name in names:
        check = CHECKS[name]
        if (place.cp > 1 and not check.cp) or (place.tp > 1 and not check.tp):
            continue
        for kind, dtype in TYPES.items():
            own = {key: x.to(dtype) if x.is_floating_point() else x for key, x in tensors.items()}
            found.setdefault(name, {})[kind] = measure(check.claim(Inputs(place, dtype, **own)))
    return found


def measure(claim: Claim) -> dict[str, float | None]:
    """Largest difference of results and of gradients, and the largest share of a bound that either
    takes.
    """
    values = [
        _apart(result.detach(), wanted.detach(), bound)
        for result, wanted, bound in zip(claim.results, claim.wanted, claim.bounds, strict=True)
    ]
    gradients = _gradients_apart(claim) if claim.leaves else []
    return {
        "value": max(apart for apart, _ in values),
        "gradient": max((apart for apart, _ in gradients), default=None),
        "share": max(share for _, share in [*values, *gradients]),
    }


def _gradients_apart(claim: Claim) -> list[tuple[float, float]]:
    upstream = [
        torch.randn(x.shape, generator=torch.Generator().manual_seed(7)) for x in claim.wanted
    ]
    followed = [(i, x) for i, x in enumerate(claim.results) if x.requires_grad]
    torch.autograd.backward(
        [x for _, x in followed], [upstream[i].to(x.dtype) for i, x in followed]
    )
    wanted = [(claim.wanted[i], upstream[i].to(x.dtype).double()) for i, x in followed]
    torch.autograd.backward([x for x, _ in wanted], [given for _, given in wanted])
    bounds = claim.gradient_bounds([given.double() for given in upstream])
    found = []
    for leaf, bound in zip(claim.leaves, bounds, strict=True):
        assert leaf.own.grad is not None, "no gradient reaches an input"
        assert leaf.whole.grad is not None, "no gradient reaches an input in float64"
        of_whole = (
            bound * claim.times if isinstance(bound, Tensor) else torch.zeros_like(leaf.whole)
        )
        found.append(
            _apart(leaf.own.grad, leaf.cut(leaf.whole.grad) * claim.times, leaf.cut(of_whole))
        )
    return found


def _apart(found: Tensor, wanted: Tensor, bound: Tensor | float) -> tuple[float, float]:
    """Largest difference, and its largest share of the bound: 0 where there is none, infinite where
    none is allowed.
    """
    if found.shape != wanted.shape:
        return float("inf"), float("inf")
    equal = found.double() == wanted  # as infinities of one sign are
    apart = (found.double() - wanted).abs().masked_fill(equal, 0.0).nan_to_num(torch.inf)
    allowed = torch.as_tensor(bound, dtype=torch.float64).expand_as(apart)
    if found.dtype == torch.bfloat16 and isinstance(bound, Tensor):
        allowed = allowed + U_BF16 * wanted.abs().nan_to_num(0.0, 0.0, 0.0)
    share = (apart / allowed).masked_fill(apart == 0, 0.0)
    return float(apart.max()), float(share.max())


def run_rank(rank: int, tp: int, cp: int, folder: str, names: list[str]) -> None:
    """Measures names with the other ranks, and writes what it found."""
    torch.set_num_threads(1)
    size = tp * cp
    dist.init_process_group(
        "gloo", init_method=f"file://{folder}/store_{tp}_{cp}", rank=rank, world_size=size
    )
    tensors = torch.load(Path(folder, "tensors.pt"), mmap=True)
    place = Place(rank, tp, cp, tensors["weight"].shape[0])
    found = measure_all(place, tensors, names)
    Path(folder, f"found_{tp}_{cp}_{rank}.json").write_text(json.dumps(found))
    dist.destroy_process_group()


def check_names(model: Path, names: list[str]) -> dict[str, dict[str, dict[str, Any]]]:
    """Measures names on all layouts.

    Returns figures by name, layout and type, the worst of the ranks.
    """
    found: dict[str, dict[str, dict[str, Any]]] = {}
    with tempfile.TemporaryDirectory(prefix="lockstep-logprobs-") as folder:
        torch.save(read_tensors(model), Path(folder, "tensors.pt"))
        for tp, cp in LAYOUTS:
            start_processes(run_rank, (tp, cp, folder, names), tp * cp, start_method="spawn")
            layout = Place(0, tp, cp, 0).layout
            files = [Path(folder, f"found_{tp}_{cp}_{rank}.json") for rank in range(tp * cp)]
            seen = [json.loads(file.read_text()) for file in files]
            for name in seen[0]:
                of_name = found.setdefault(name, {})
                of_name[layout] = {
                    kind: _worst([rank[name][kind] for rank in seen]) for kind in TYPES
                }
    return found


def _worst(figures: list[dict[str, float | None]]) -> dict[str, float | None]:
    """The largest of each figure."""
    return {
        key: max((one[key] for one in figures if one[key] is not None), default=None)  # pyright: ignore
        for key in figures[0]
    }


def read_tensors(model: Path) -> dict[str, Tensor]:
    """The model's logits, last hidden states and head on the text, in fp32."""
    from transformers import AutoModelForCausalLM, AutoTokenizer

    torch.set_num_threads(1)
    read = AutoModelForCausalLM.from_pretrained(model, dtype=torch.float32)
    ids = AutoTokenizer.from_pretrained(model)(TEXT)["input_ids"][: ROWS * LENGTH]
    target = torch.tensor(ids).view(ROWS, LENGTH)
    with torch.no_grad():
        hidden = read.model(target).last_hidden_state
        weight = read.lm_head.weight
        logits = hidden @ weight.t()
    return {"logits": logits, "hidden": hidden, "weight": weight.detach().clone(), "target": target}


def main() -> int:
    """Entry point. Returns the exit code."""
    model = Path(sys.argv[1])
    out = Path(sys.argv[2])
    names = sys.argv[3:] or list(CHECKS)
    start = time.monotonic()
    found = check_names(model, names)
    aside = out.with_name(f"{out.name}.part")
    aside.write_text(json.dumps(found, indent=1))
    os.rename(aside, out)
    print(f"{len(found)} names in {time.monotonic() - start:.0f} s")
    return 0


if __name__ == "__main__":
    sys.exit(main())
