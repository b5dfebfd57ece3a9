"""Peak memory of a training step, as `lockstep plan` predicts it and as it is, over layouts of one
to four processes.

    python -m benchmarks.plan [--save]

A Llama with random weights learns; each rank is a process of its own. Measured is the largest
rank's resident memory at its peak in two steps, beyond what the process held after a step of a tiny
model in the same layout: so programs, threads and sockets do not count. The C library is told to
give memory back at once.
"""

from __future__ import annotations

import os
import tempfile
from pathlib import Path
from typing import Any

from benchmarks.harness import Row, environment, parser_of, save
from benchmarks.plan_measure import TINY, measured, model_folder
from lockstep.algorithms.roles import Load
from lockstep.config import LearnerSection, LoRA, Parallel
from lockstep.models.folder import build_skeleton, read_config
from lockstep.plan.memory import HeadKind, ModelRank
from lockstep.plan.sizes import ModelSizes

TOKENS = 1024
SIZES = {
    "hidden_size": 512,
    "intermediate_size": 1344,
    "num_hidden_layers": 8,
    "num_attention_heads": 8,
    "num_key_value_heads": 4,
    "vocab_size": 16384,
}
AGAIN = {"activation_checkpointing": True}
BF16 = {"dtype": "bf16"}
LORA = {"lora": LoRA()}
CASES: tuple[tuple[str, dict[str, int], dict[str, Any], HeadKind], ...] = (
    ("one process", {}, {}, "logits"),
    ("one process, checkpointed", {}, AGAIN, "logits"),
    ("one process, bf16", {}, BF16, "logits"),
    ("one process, critic", {}, {}, "value"),
    ("dp 2", {"dp": 2}, {}, "logits"),
    ("dp 2, checkpointed", {"dp": 2}, AGAIN, "logits"),
    ("dp 2, bf16", {"dp": 2}, BF16, "logits"),
    ("dp 2, bf16, checkpointed", {"dp": 2}, AGAIN | BF16, "logits"),
    ("dp 2, bf16, summed in every pass", {"dp": 2}, BF16 | {"sync_every_pass": True}, "logits"),
    ("tp 2", {"tp": 2}, {}, "logits"),
    ("tp 2, checkpointed", {"tp": 2}, AGAIN, "logits"),
    ("cp 2", {"cp": 2}, {}, "logits"),
    ("cp 2, checkpointed", {"cp": 2}, AGAIN, "logits"),
    ("dp 4", {"dp": 4}, {}, "logits"),
    ("dp 2 · tp 2", {"dp": 2, "tp": 2}, {}, "logits"),
    ("dp 2 · tp 2, checkpointed", {"dp": 2, "tp": 2}, AGAIN, "logits"),
    ("dp 2 · cp 2", {"dp": 2, "cp": 2}, {}, "logits"),
    ("tp 2 · cp 2", {"tp": 2, "cp": 2}, {}, "logits"),
    ("one process, adapters", {}, LORA, "logits"),
    ("one process, adapters, bf16", {}, LORA | BF16, "logits"),
    ("dp 2, adapters, checkpointed", {"dp": 2}, LORA | AGAIN, "logits"),
)


def compared(
    folder: Path, tiny: Path, tokens: int, case: int, passes: int = 1
) -> tuple[float, float]:
    """The fullest rank of a case: measured and planned bytes.

    Args:
        folder: Folder of the model.
        tiny: Folder of a tiny model.
        tokens: Tokens of a pass: two sequences.
        case: Index in `CASES`.
        passes: Passes of a step.
    """
    _, parallel, options, head = CASES[case]
    section = LearnerSection(
        device="cpu", parallel=Parallel(**parallel), micro_batch_tokens=tokens, **options
    )
    load = Load(tokens // 2, 1, 2 * passes * section.parallel.dp)
    rank = ModelRank(
        ModelSizes.from_model(build_skeleton(read_config(folder), str(folder)), section.lora),
        section,
        load,
        head,
    )
    return measured(
        folder, tiny, section, head, [tokens // 2] * 2 * passes
    ), rank.peak_moment.total_bytes


def main() -> None:
    parser = parser_of(__doc__, "plan")
    args = parser.parse_args()
    os.environ["OMP_NUM_THREADS"] = "1"
    rows = []
    print("| peak MB of a rank | measured | planned | planned / measured |\n|---|---:|---:|---:|")
    with tempfile.TemporaryDirectory() as root:
        tiny = model_folder(Path(root) / "tiny", TINY)
        folder = model_folder(Path(root) / "model", SIZES)
        for number, (name, *_) in enumerate(CASES):
            was, planned = compared(folder, tiny, TOKENS, number)
            rows.append(Row(name, was / 1e6, planned / 1e6, planned / was))
            print(
                f"| {name} | {was / 1e6:.0f} | {planned / 1e6:.0f} | {planned / was:.3f} |",
                flush=True,
            )
    where = environment(threads=1)
    print(where)
    if args.save:
        print(save("plan", where, rows, {}))


if __name__ == "__main__":
    main()
