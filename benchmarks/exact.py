"""What `agreement.exact` keeps: the number of tokens whose log-probabilities differ.

    python -m benchmarks.exact [--save]
    python -m benchmarks.exact --layouts

Mismatches: a small random model of each family samples with the torch sampler, plainly, at a
temperature, by top-k and by top-p (on more threads than one, by one of them each); the learner
scores each token packed in other company, and again as it trains. A token counts once, and as a
mismatch if either log-probability has another bit than the sampler's. Threads are those of the
sampler and of the learner. The last column is the share of mismatches without exact kernels.

With --layouts learners over ranks score the tokens, as `lockstep certify --layouts` does it for one
model. A layout that `models.exact.layouts` does not list for a family is left out.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from tempfile import TemporaryDirectory

import torch
from transformers import AutoConfig, AutoModelForCausalLM, PreTrainedModel

from benchmarks.families import FAMILIES
from benchmarks.harness import environment, parser_of, save
from benchmarks.small_llama import random_prompts
from lockstep.config import DType, Parallel
from lockstep.core import keyed
from lockstep.core.batch import Batch
from lockstep.core.types import Request, SamplingParams
from lockstep.inference.certify_layouts import compare_layout
from lockstep.models import attention
from lockstep.models.exact.layouts import explain_inexact_layout
from lockstep.models.exact.model import make_exact
from lockstep.models.families.registry import EXACT_TYPES
from lockstep.models.heads import LogitsHead
from lockstep.models.precision import open_autocast
from lockstep.samplers.torch.sampler import TorchSampler

TYPES: tuple[DType, ...] = ("fp32", "bf16")
THREADS = ((1, 1), (1, 2), (2, 1), (4, 4))
LAYOUTS = (
    Parallel(dp=2),
    Parallel(cp=2),
    Parallel(tp=2),
    Parallel(tp=4),
    Parallel(dp=2, cp=2, tp=2),
)
HEADS = {"num_attention_heads": 4, "num_key_value_heads": 4}
"""So that 4 ranks can divide them."""
ROWS = 576
"""Prompts of a cell on one thread; on more an eighth of them, over ranks half."""
SAMPLINGS = (
    SamplingParams(96, temperature=1.0, stop_token_ids=(3,)),
    SamplingParams(96, temperature=0.7, stop_token_ids=(3,)),
    SamplingParams(96, temperature=1.2, top_k=20, stop_token_ids=(3,)),
    SamplingParams(96, temperature=1.0, top_p=0.9, stop_token_ids=(3,)),
)


@dataclass(frozen=True)
class Cell:
    """Tokens of one family that were compared.

    Attributes:
        family: Its type.
        dtype: Type of the computation.
        how: Threads of the sampler and of the learner, or the layout of the learner's ranks.
        tokens: Tokens compared.
        mismatches: Those with different bits.
        inexact: Share of mismatches without exact kernels; None: not tried.
    """

    family: str
    dtype: DType
    how: str
    tokens: int
    mismatches: int
    inexact: float | None


def build(family: str, **sizes: int) -> PreTrainedModel:
    """A small random model, all of whose vectors matter."""
    torch.manual_seed(0)
    sizes["max_position_embeddings"] = 256
    config = AutoConfig.for_model(family, **(FAMILIES[family] | sizes))
    lm = AutoModelForCausalLM.from_config(
        config, attn_implementation=attention.NAME, dtype=torch.float32
    ).eval()
    for vector in (parameter for parameter in lm.parameters() if parameter.ndim == 1):
        vector.data += 0.1 * torch.randn(vector.shape)
    return lm


def compare(family: str) -> Iterator[Cell]:
    """Compares one family in both types, on all numbers of threads."""
    inexact = build(family)
    exact = build(family)
    make_exact(exact)
    for dtype in TYPES:
        for number, threads in enumerate(THREADS):
            alone = threads == (1, 1)
            tokens, mismatches = count(exact, dtype, threads, ROWS if alone else ROWS // 8, number)
            few, wrong = count(inexact, dtype, threads, ROWS // 8, number) if alone else (0, 0)
            yield Cell(
                family,
                dtype,
                f"{threads[0]}/{threads[1]}",
                tokens,
                mismatches,
                wrong / few if few else None,
            )


def compare_layouts(family: str) -> Iterator[Cell]:
    """Compares one family in both types over ranks, in each layout that is exact for it."""
    lm = build(family, **HEADS)
    layouts = [layout for layout in LAYOUTS if explain_inexact_layout(lm.config, layout) is None]
    with TemporaryDirectory() as folder:
        lm.save_pretrained(folder)
        make_exact(lm)
        for dtype in TYPES:
            batches = list(sample(lm, dtype, 1, ROWS // 2, 0, SAMPLINGS))
            columns = [batch["sampler_logprob"] for batch in batches]
            for layout in layouts:
                found = compare_layout(folder, dtype, layout, batches, columns)
                how = " ".join(f"{name} {size}" for name, size in layout if size > 1)
                yield Cell(family, dtype, how, found.tokens, found.mismatches, None)


def sample(
    lm: PreTrainedModel,
    dtype: DType,
    threads: int,
    rows: int,
    seed: int,
    samplings: Sequence[SamplingParams],
) -> Iterator[Batch]:
    """Responses to random prompts, divided among distributions."""
    prompts = random_prompts([1 + 61 * row % 64 for row in range(rows)], seed)
    requests = [
        Request(tuple(t % 256 for t in p), keyed.hash_key("exact", seed, i))
        for i, p in enumerate(prompts)
    ]
    for start, sampling in enumerate(samplings):
        torch.set_num_threads(threads)
        yield TorchSampler(lm, 100, dtype).generate(requests[start :: len(samplings)], sampling)


def count(
    lm: PreTrainedModel, dtype: DType, threads: tuple[int, int], rows: int, seed: int
) -> tuple[int, int]:
    """Tokens that were sampled, and those that the learner gives another log-probability, scored or
    trained.
    """
    head = LogitsHead(lm, products=lm.config.model_type != "gemma2")
    tokens = 0
    mismatches = 0
    samplings = SAMPLINGS if threads == (1, 1) else SAMPLINGS[seed : seed + 1]
    for batch in sample(lm, dtype, threads[0], rows, seed, samplings):
        torch.set_num_threads(threads[1])
        for part in batch.select(torch.randperm(len(batch))).split(40):
            wrong = torch.zeros(int(part.mask.sum()), dtype=torch.bool)
            for gradient in (False, True):
                wrong |= score(head, part, dtype, gradient) != part["sampler_logprob"][part.mask]
            tokens = tokens + len(wrong)
            mismatches = mismatches + int(wrong.sum())
    return tokens, mismatches


def score(head: LogitsHead, batch: Batch, dtype: DType, gradient: bool) -> torch.Tensor:
    """Log-probabilities of the sampled tokens, as the learner scores them or as it trains."""
    with open_autocast(torch.device("cpu"), dtype), torch.set_grad_enabled(gradient):
        logprob = head(batch).logprob
    assert logprob is not None
    return logprob.detach()[batch.mask]


def share(cell: Cell) -> str:
    """The share of mismatches without exact kernels."""
    return "" if cell.inexact is None else f"{cell.inexact:.0%}"


def show(cells: list[Cell]) -> str:
    """The mismatches as a Markdown table."""
    lines = [
        "| family | type | threads or ranks | tokens compared | mismatches | inexact |",
        "|---|---|---|---:|---:|---:|",
    ]
    rows = [
        f"{c.family} | {c.dtype} | {c.how} | {c.tokens:,} | {c.mismatches:,} | {share(c)}"
        for c in cells
    ]
    rows.append(
        f"all | | | {sum(c.tokens for c in cells):,} | {sum(c.mismatches for c in cells):,} | "
    )
    return "\n".join(lines + [f"| {row} |" for row in rows])


def main() -> int:
    parser = parser_of(__doc__, "exact")
    parser.add_argument("--layouts", action="store_true", help="compare learners over ranks")
    args = parser.parse_args()
    cells: list[Cell] = []
    for family in EXACT_TYPES:
        cells += compare_layouts(family) if args.layouts else compare(family)
        print(family, flush=True)
    print(environment(threads=max(map(max, THREADS))), show(cells), sep="\n", flush=True)
    if args.save:
        print(save("exact", environment(), [], {"mismatches": [vars(cell) for cell in cells]}))
    return int(any(cell.mismatches for cell in cells))


if __name__ == "__main__":
    raise SystemExit(main())
