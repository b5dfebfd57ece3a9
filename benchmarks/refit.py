"""Time of a weight sync, attestation included, beside the time to copy the same bytes once.

    python -m benchmarks.refit [--save] [--sizes 1 100 500]

Models with random weights, fp32; learner and engine are processes of this machine. A weight sync reads each tensor
and puts it into memory that both see (one copy), takes its fingerprint there, takes it out on the other side (another
copy, or vLLM's own loading and packing), reads back what the engine holds, and scores a probe on both sides.
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

import torch
from transformers import LlamaConfig, LlamaForCausalLM

from benchmarks.harness import Row, environment, measure, save, table
from lockstep.cluster.learner_group import launch
from lockstep.cluster.sampler_pool import SamplerPool
from lockstep.cluster.specs import LearnerSpec, SamplerSpec
from lockstep.config import LearnerSection, Parallel, SamplerSection
from lockstep.learners.base import Learner
from lockstep.learners.rank import RankLearner
from lockstep.weight_sync.sync import random_probe, sync_weights

VOCABULARY, CONTEXT = 32_000, 256
SHAPES = {  # millions of parameters: hidden size, layers
    1: (32, 1),
    100: (768, 11),
    500: (1280, 23),
}
ENGINES = {
    "torch, shared memory": SamplerSection(replicas=1, transfer="shared_memory"),
    "torch, process group": SamplerSection(replicas=1, transfer="process_group"),
    "vLLM, shared memory": SamplerSection(backend="vllm", max_batch_size=16, transfer="shared_memory"),
    "vLLM, process group": SamplerSection(backend="vllm", max_batch_size=16, transfer="process_group"),
}

RANKS = ("torch, shared memory", "torch, process group")
"""Engines that two ranks send weights to, as well."""


def model_folder(root: Path, size: int) -> Path:
    """Writes a Llama with about `size` million parameters."""
    hidden, layers = SHAPES[size]
    config = LlamaConfig(
        vocab_size=VOCABULARY,
        hidden_size=hidden,
        intermediate_size=hidden * 8 // 3 // 32 * 32,
        num_hidden_layers=layers,
        num_attention_heads=max(1, hidden // 64),
        num_key_value_heads=max(1, hidden // 64),
        max_position_embeddings=CONTEXT,
        tie_word_embeddings=True,
    )
    torch.manual_seed(0)
    LlamaForCausalLM(config).save_pretrained(root / str(size))
    return root / str(size)


def copy_once(learner: RankLearner) -> Callable[[], None]:
    """The baseline: copies every tensor to existing memory."""
    tensors = [tensor for _, tensor in learner.weights()]
    copies = [torch.empty_like(tensor) for tensor in tensors]

    def copy() -> None:
        for tensor, other in zip(tensors, copies, strict=True):
            other.copy_(tensor)

    return copy


def refit_seconds(
    learner: Learner, change: Callable[[], None], folder: Path, section: SamplerSection, repeats: int
) -> list[float]:
    """Wall seconds of weight syncs, after a first one that sets up the memory between the processes."""
    computation = LearnerSection(device="cpu")
    replicas = SamplerPool(SamplerSpec(str(folder), section, computation), print)
    probe, seconds = random_probe(VOCABULARY, CONTEXT), []
    try:
        for version in range(repeats + 1):
            change()
            begun = time.perf_counter()
            sync_weights(learner, replicas, version, probe)
            seconds.append(time.perf_counter() - begun)
    finally:
        replicas.close()
    return seconds[1:]


@torch.no_grad()
def _change(learner: RankLearner) -> None:
    for parameter in learner.model.parameters():
        parameter.mul_(1.001)


def ranks_seconds(folder: Path, section: SamplerSection, repeats: int) -> list[float]:
    """The same where the weights are those of two ranks, which gather and send them."""
    own = LearnerSection(device="cpu", parallel=Parallel(dp=2))
    learner = launch(LearnerSpec(str(folder), "logits", own, None, 0), 600.0)
    try:
        return refit_seconds(learner, lambda: None, folder, section, repeats)
    finally:
        learner.close()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sizes", type=int, nargs="+", default=list(SHAPES), choices=SHAPES, help="million parameters")
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--save", action="store_true", help="write benchmarks/results/refit.json")
    args = parser.parse_args()
    torch.set_num_threads(1)
    rows: list[Row] = []
    moved: dict[str, int] = {}
    with tempfile.TemporaryDirectory() as root:
        for size in args.sizes:
            folder = model_folder(Path(root), size)
            learner = LearnerSpec(str(folder), "logits", LearnerSection(device="cpu"), None, 0).build()
            moved[f"{size} M"] = sum(tensor.nbytes for _, tensor in learner.weights())
            once = measure(copy_once(learner), args.repeats).wall_median_s
            for name, section in ENGINES.items():
                change = partial(_change, learner)
                mine = statistics.median(refit_seconds(learner, change, folder, section, args.repeats))
                rows.append(Row(f"{size} M, {name}", once, mine, once / mine))
                print(rows[-1], flush=True)
            for name in RANKS:
                mine = statistics.median(ranks_seconds(folder, ENGINES[name], args.repeats))
                rows.append(Row(f"{size} M, two ranks, {name}", once, mine, once / mine))
                print(rows[-1], flush=True)
    print(environment())
    print(table(rows, "one copy", "seconds"))
    print(f"bytes moved: {moved}")
    if args.save:
        print(save("refit", environment(), rows, {"repeats": args.repeats, "bytes": moved}))


if __name__ == "__main__":
    main()
