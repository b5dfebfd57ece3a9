"""Options of losses, optimizers and templates that do not fit; what is said of them stands in
messages.md.
"""

from __future__ import annotations

from pathlib import Path

from bad_inputs import BadInput, a_run, own, reward, said
from safetensors.torch import load_file, save_file
from workspace import write


def judged_by(which: str = "", question: str = "{prompt} {response}") -> str:
    """The override that has a judge reward the responses."""
    options = [which] * bool(which) + [
        f'template: "{question}"',
        "chat: false",
        "max_prompt_tokens: 64",
    ]
    return (
        f"'reward={{type: judge, marker: null, judge: {{{', '.join(options)}, sampling: "
        f"{{max_tokens: 8}}}}}}'"
    )


def another_sweep(folder: Path) -> None:
    """The folder of a sweep that another version, or another program, has noted."""
    (folder / "sweeps/old").mkdir(parents=True)
    write("sweeps/old/sweep.json", '{"threads": 1}')(folder)


def a_run_with_tools(folder: Path) -> None:
    """A run of a policy that calls tools, which is finished."""
    a_run(folder)
    (folder / "run/final").mkdir()
    tools = (
        "{class_name: lockstep.environments.calculator:CalculatorTool, tool_format: hermes, "
        "max_tokens: 24}"
    )
    with (folder / "run/recipe.yaml").open("a") as recipe:
        recipe.write(f"environment: {tools}\n")


def a_run_of_others(folder: Path) -> None:
    """A run that somebody sends, and the code that it names, which lies next to it."""
    (folder / "run").mkdir()
    (folder / "theirs.py").write_text("class Algorithm: theirs = True\n")
    (folder / "run/recipe.yaml").write_text("base: ../own.yaml\nalgorithm: theirs.py:Algorithm\n")


def break_weights(folder: Path) -> None:
    """The model's weights are no numbers, and there is a dump to judge by them."""
    file = folder / "model/model.safetensors"
    save_file(
        {name: weight * float("nan") for name, weight in load_file(file).items()},
        file,
        {"format": "pt"},
    )
    write(
        "dump.jsonl",
        (
            '{"ids": [1, 2, 3], "old_log_probs": [-0.1, -0.2, -0.1], "rollout_log_probs": [-0.1, '
            "-0.3, -0.1]}\n"
        ),
    )(folder)


TEMPLATE = (
    "{% if enable_thinking %}<think>{% endif %}{% for m in messages %}{{ m.content }}{% "
    "endfor %}{{ eos_token }}"
)
CALCULATOR = (
    "environment.class_name=lockstep.environments.calculator:CalculatorTool "
    "environment.max_tokens=24"
)
OPTIONS = {
    "chat template: arguments": own(
        write("model/chat_template.jinja", TEMPLATE),
        "data.chat=true 'data.template_args={think: true}'",
    ),
    "chat template: an argument of no type": said(
        "data.chat=true 'data.template_args={think: [1]}'"
    ),
    "rule: arguments without a template": said("'data.template_args={think: true}'"),
    "data: messages as text": own(
        write("talks.jsonl", '{"question": [{"role": "user", "content": "Hi"}], "answer": "1"}\n'),
        "data.train=talks.jsonl",
    ),
    "reward: a file without its ending": own(
        write("without_ending.py", "def f(prompt, response, answer, row):\n    return 0.0\n"),
        "reward=without_ending:f",
    ),
    "reward: a function without its file": own(overrides="reward=my_rewards.brief"),
    "reward: one of OpenRLHF": own(
        write("theirs.py", "def short(queries, prompts, labels):\n    return [0.0]\n"),
        "reward.type=python reward.function=theirs.py:short reward.marker=null",
    ),
    "rule: another optimizer": BadInput("train sft_arithmetic optimizer.name=Muon"),
    "rule: nothing to learn of labels": BadInput(
        "train kto_arithmetic kto.desirable_weight=0 kto.undesirable_weight=0"
    ),
    "rule: groups of equal answers": BadInput("train grpo_arithmetic sampling.temperature=0"),
    "rule: pairs of equal answers": BadInput("train online_dpo_arithmetic sampling.temperature=0"),
    "rule: a deviation of others beside a mean of all": BadInput(
        "train grpo_arithmetic grpo.scale_rewards=others"
    ),
    "rule: robust against nothing": BadInput("train dpo_arithmetic dpo.preference_loss=robust"),
    "generate: a run with tools": BadInput("generate run rows.jsonl", a_run_with_tools),
    "export: code of others": BadInput("export run out", a_run_of_others),
    "environment: tools without a format": said(CALCULATOR),
    "environment: tools without a conversation": said(
        f"{CALCULATOR} environment.tool_format=hermes"
    ),
    "environment: a format of another model": own(
        write("model/chat_template.jinja", TEMPLATE),
        f"{CALCULATOR} environment.tool_format=hermes data.chat=true",
    ),
    "rule: rows of two kinds": BadInput("train kto_arithmetic data.task.pairs=true"),
    "doctor: a model that is broken": BadInput(
        "doctor locate dump.jsonl --model model", break_weights
    ).late,
    "sweep: a value twice": BadInput("sweep sft.yaml seed=0,0", dry=False),
    "sweep: one run": BadInput("sweep sft.yaml seed=0", dry=False),
    "sweep: its note is another's": BadInput(
        "sweep sft.yaml seed=0,1 --name old", another_sweep, dry=False
    ),
    "sweep: a folder of a run's own": BadInput(
        "sweep sft.yaml seed=0,1 run.folder=mine", dry=False
    ),
    "rule: a judge one step ahead": said(
        f"ppo.one_step_ahead=true ppo.correction.kind=token_tis {judged_by('path: model')}"
    ),
    "rule: eval has no initial model": BadInput(f"eval model rows.jsonl {judged_by()}"),
    "judge: a question without the response": said(judged_by("path: model", "{prompt}")),
    "reward: k of no pass": reward(
        "rewards.py:parity",
        (
            "validation_sampling.temperature=1.0 validation_sampling.num_samples=4 "
            "validation_sampling.k=[2]"
        ),
    ),
    "reward: a part of validation's takes too little": said(
        "'validation_reward={type: sum, parts: {format: {type: python, function: "
        "rewards.py:narrow}}}'"
    ),
    "report: a torn recipe": BadInput(
        "report run", lambda folder: [a_run(folder), write("run/recipe.yaml", "run: {")(folder)]
    ),
    "export: no run": BadInput("export model out"),
    "export: adapters of none": BadInput("export run out --adapter", a_run),
}
