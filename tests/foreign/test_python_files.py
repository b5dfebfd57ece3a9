"""Programs of TRL: constants and dictionaries are followed, LoRA and the trainer are read, the rest is named."""

from __future__ import annotations

import pytest
from conversions import Convert

PROGRAM = """
LR: float = 3e-6
base = dict(num_generations=4, max_completion_length=64)
more = {"beta": 0.04, **base}
beta = 1
beta = 2
model = AutoModelForCausalLM.from_pretrained("my/model")
rows = load_dataset("json", data_files="./rows.jsonl", split="train")
def main():
    args = GRPOConfig(learning_rate=LR, epsilon=beta, **more, **load())
    lora = LoraConfig(r=4)
    GRPOTrainer(model=model, args=args, train_dataset=rows, eval_dataset=held, reward_funcs=short, peft_config=lora)
"""


def test_a_program_is_followed_as_far_as_it_says_what_it_does(convert: Convert) -> None:
    converted = convert("mine.py", PROGRAM)
    expected = {
        "policy.lr": 3e-6, "grpo.num_generations": 4, "sampling.max_tokens": 64, "grpo.kl.coef": 0.04,
        "grpo.clip": None, "model.path": "models/model", "data.train": "./rows.jsonl", "learner.lora.rank": 4,
        "learner.lora.alpha": 8, "reward.type": "python", "reward.function": "my_rewards.py:short",
    }  # fmt: skip
    assert {key: converted.options.get(key) for key in expected} == expected
    assert converted.missing == ("**load()", "eval_dataset=held of GRPOTrainer")
    assert "peft chooses the maps by the model" in " ".join(converted.remarks)
    assert converted.list_changes() == {"epsilon = ${beta}": "ppo.clip", "reward_funcs = ['short']": "reward.type"}


SMALL = """
model = LlamaConfig(hidden_size=8, num_layers=2, num_heads=2, vocab=9, rope=1)
lora = peft.LoraConfig(r=4, target_modules=("q_proj", "v_proj"))
"""


@pytest.mark.parametrize(
    ("trainer", "missing"),
    [
        ('trl.SFTTrainer("Qwen/small", args, collate)', ("argument 3=collate of SFTTrainer",)),
        (
            "SFTTrainer(args=args, model=make(), **more.dict())",
            ("model=make() of SFTTrainer", "**=more.dict() of SFTTrainer"),
        ),
    ],
)
def test_modules_tuples_and_places_of_arguments_are_read(
    trainer: str, missing: tuple[str, ...], convert: Convert
) -> None:
    converted = convert("mine.py", f"{SMALL}args = trl.SFTConfig(learning_rate=2e-5, max_length=64)\n{trainer}")
    found = converted.options
    assert (converted.algorithm, found["sft.max_tokens"], found["learner.lora.rank"]) == ("sft", 64, 4)
    assert found["learner.lora.target_modules"] == ["q_proj", "v_proj"]
    assert found["model.path"] == ("models/small" if "Qwen" in trainer else "models/MODEL")
    assert converted.missing == missing


def test_rewards_may_be_the_second_argument(convert: Convert) -> None:
    converted = convert("mine.py", 'GRPOTrainer("m", [short], GRPOConfig(num_generations=4), train_dataset=None)')
    assert converted.options["reward.function"] == "my_rewards.py:short"
