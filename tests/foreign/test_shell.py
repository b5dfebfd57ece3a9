"""Shell scripts: what a condition decides is not known, and is said."""

from __future__ import annotations

import pytest
from conversions import Convert

from lockstep.foreign.shell import find_command
from lockstep.foreign.words import Kind

COMMAND = "\npython3 -m verl.trainer.main_ppo algorithm.adv_estimator=rloo actor_rollout_ref.rollout.n=2 "
COMMAND += "actor_rollout_ref.actor.optim.lr=$lr\n"
LR = "actor_rollout_ref.actor.optim.lr"
TWO_VALUES = {
    "if": 'if [ "$1" = small ]; then\n  lr=1e-5\nelse\n  lr=1e-6\nfi',
    "if of one line": "if [ $# -lt 1 ]; then lr=1e-5; else lr=1e-6; fi",
    "if over a value": "lr=1e-5\nif [ -n $SMALL ]\nthen\n  export lr=1e-6\nfi",
    "case": "case $1 in\n  small) lr=1e-5 ;;\n  a|b | c)\n    lr=1e-6\n  ;;\nesac",
    "case of one line": 'case "$1" in small) lr=1e-5;; *) lr=1e-6;; esac',
    "for": "lr=1e-5\nfor i in 1 2; do\n  lr=$((lr * 2))\ndone",
    "and": "lr=1e-5\n[ -n $SMALL ] && lr=1e-6",
    "nested": "if a; then\n  if b; then\n    lr=1\n  fi\nelif c; then\n  lr=2\nfi",
}


@pytest.mark.parametrize("script", TWO_VALUES.values(), ids=TWO_VALUES)
def test_a_variable_with_two_values_is_not_known(script: str, convert: Convert) -> None:
    converted = convert("run.sh", script + COMMAND)
    entry = next(entry for entry in converted.entries if entry.theirs == LR)
    assert (entry.kind, entry.value) == (Kind.REFUSED, "$lr")
    assert entry.reason == "a variable that the file does not set"


ONE_VALUE = {
    "default": "if [ -z $lr ]; then\n  lr=1e-5\nfi",
    "the same": "if a; then lr=1e-5; else lr=1e-5; fi",
    "set again": "if a; then lr=1; else lr=2; fi\nlr=1e-5",
    "before": "lr=1e-5; if a; then x=1; else x=2; fi",
}


@pytest.mark.parametrize("script", ONE_VALUE.values(), ids=ONE_VALUE)
def test_a_variable_with_one_value_is_known(script: str) -> None:
    assert find_command(script + COMMAND).read()[LR] == 1e-5


def test_arguments_that_are_not_known_are_named(convert: Convert) -> None:
    script = "if a; then\n  more='data.seed=1'\nelse\n  more='data.seed=2'\nfi\nARGS=(\n  data.shuffle=True\n)\n"
    script += "if b; then\n  ARGS+=(\n    data.seed=3\n  )\nfi\nARGS+=(\n  data.truncation=error\n)"
    converted = convert("run.sh", f"{script}{COMMAND.rstrip()} $more ${{ARGS[@]}} $OTHER --x $y")
    assert converted.missing == ("$more", "$OTHER", "what a condition adds to $ARGS")
    assert "data.seed" not in {entry.theirs for entry in converted.entries}
    assert converted.options["data.shuffle"] is True


@pytest.mark.parametrize(
    "array",
    [
        "(data.seed=3 data.shuffle=True)",
        "( data.seed=3\n  data.shuffle=True )",
        "(data.seed=3  # note :)\n data.shuffle=True)",
        "(\n  data.seed=$(echo 3)\n  data.shuffle=True\n)",
    ],
)
def test_an_array_ends_at_its_parenthesis(array: str) -> None:
    command = find_command(f'ARGS={array}\npython -m verl.trainer.main_ppo "${{ARGS[@]}}" data.truncation=error\n')
    assert command.read()["data.shuffle"] is True
    assert command.read()["data.truncation"] == "error"


@pytest.mark.parametrize(
    ("word", "text"),
    [
        (r"$'User: {}\nAssistant: '", "User: {}\nAssistant: "),
        (r"$'it\'s \x41\101\u00e9\U1F600 \\ \q'", "it's AA\u00e9\U0001f600 \\ \\q"),
        ("'User: {}\nAssistant: '", "User: {}\nAssistant: "),
        ("'Q {}\n\nA '", "Q {}\n\nA "),
        ('"Q \\"{}\\"\nA "', 'Q "{}"\nA '),
    ],
)
@pytest.mark.parametrize(
    ("before", "used"),
    [("", "--a 1 --b %s"), ("T=%s\n# don't\n", '--a 1 --b "$T"'), ("ARGS=(\n  --a 1\n  --b %s\n)\n", "${ARGS[@]}")],
)
def test_a_text_is_what_bash_makes_of_it(before: str, used: str, word: str, text: str) -> None:
    command = f"{before}python -m openrlhf.cli.train_sft \\\n {used} \\\n --c 2\necho done\n".replace("%s", word)
    assert find_command(command).read() == {"a": 1, "b": text, "c": 2}


@pytest.mark.parametrize("shell", ["bash -c", "sh -ec", "/bin/bash -xc", "bash -l -c", "bash -euo pipefail -c"])
def test_a_shell_is_given_several_lines(shell: str) -> None:
    inner = "set -x; cd /w\nlr=3\npython3 -m openrlhf.cli.train_sft \\\n --a $lr --b 'x\ny'\necho done"
    assert find_command(f'srun -N 1 {shell} "{inner}" &\nwait\n').read() == {"a": 3, "b": "x\ny"}


def test_a_quote_that_does_not_end_takes_no_lines() -> None:
    script = "cat > notes <<EOF\nit's a run\nEOF\n# don't\npython -m openrlhf.cli.train_sft --a 1\necho it's\n"
    assert find_command(script).read() == {"a": 1}


def test_two_backslashes_add_no_line() -> None:
    script = "echo here\\\\\npython -m openrlhf.cli.train_sft --a 1 \\\n --b 2 \\\\\necho done\n"
    assert find_command(script).read() == {"a": 1, "b": [2, "\\"]}
