"""Bad configs of other libraries, for `lockstep convert`; what is said of them stands in
messages.md.
"""

from __future__ import annotations

from bad_inputs import BadInput
from workspace import write


def theirs(ending: str, content: str | bytes, flags: str = "") -> BadInput:
    """Of `lockstep convert`, with a config of another library."""
    return BadInput(f"convert theirs.{ending} {flags}", write(f"theirs.{ending}", content))


ODD_BATCH = """python3 -m verl.trainer.main_ppo algorithm.adv_estimator=grpo data.train_batch_size=32 \\
    actor_rollout_ref.rollout.n=4 actor_rollout_ref.actor.ppo_mini_batch_size=7
"""
CONVERTED = {
    "convert: no such file": BadInput("convert absent.yaml"),
    "convert: a folder": BadInput("convert model"),
    "convert: too large": theirs("yaml", "#" * (1 << 20) + "\n"),
    "convert: not UTF-8": theirs("yaml", b"x: \xfc\n"),
    "convert: no YAML": theirs("yaml", "x: [1\n"),
    "convert: no JSON": theirs("json", "{"),
    "convert: no keys": theirs("json", "[1]"),
    "convert: several commands": theirs("sh", "cd x\npython train.py a=1\n"),
    "convert: nothing known": theirs("yaml", "x: 1\n"),
    "convert: no algorithm": theirs("yaml", "model_name_or_path: m\nlearning_rate: 1e-6\n"),
    "convert: over a file": theirs(
        "yaml", "grpo: {num_generations_per_prompt: 4}\n", "--out ./theirs.yaml"
    ),
    "convert: a recipe that does not load": theirs("sh", ODD_BATCH),
    "convert: another objective": theirs(
        "sh", "python grpo.py --model_name_or_path m --loss_type sapo\n"
    ),
}
