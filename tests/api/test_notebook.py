"""A cell of a real notebook trains, shows progress, and is interrupted as its stop button does
it.
"""

from __future__ import annotations

import os
import signal
import threading
import time
from pathlib import Path
from typing import Any

import nbformat
import pytest
from nbclient import NotebookClient

CELLS = """
import lockstep
rows = [{"question": f"Once upon a time there was a {name}"} for name in ("dog", "cat", "boy", "girl")]
def letters(prompt, response, answer, row):
    return response.count("e") / 10
def train(steps, **callbacks):
    return lockstep.GRPO(
        model=MODEL, reward=letters, train=rows, data={"max_prompt_tokens": 32, "answer": ""},
        sampling={"max_tokens": 8}, validation_sampling={"max_tokens": 8}, policy={"lr": 1e-3},
        grpo={"num_prompts_per_step": 4, "num_generations": 4, "global_batch_size": 16}, run={"max_steps": steps},
    ).train(**callbacks)
"""


def client_of(cells: list[str], folder: Path) -> NotebookClient:
    notebook = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(cell) for cell in cells])
    return NotebookClient(
        notebook, timeout=550, kernel_name="python3", resources={"metadata": {"path": str(folder)}}
    )


def outputs(client: NotebookClient, cell: int) -> list[Any]:
    return client.nb.cells[cell].outputs


@pytest.mark.full
@pytest.mark.filterwarnings("ignore")
def test_notebook_cell_trains_and_shows_progress(assets: Path, tmp_path: Path) -> None:
    model = f"MODEL = {str(assets / 'models/stories260K/hf')!r}"
    client = client_of([model + CELLS, "run = train(2)", "run"], tmp_path)
    client.execute()
    shown = "".join(out.text for out in outputs(client, 1) if out.output_type == "stream")
    assert "step 2/2" in shown
    assert "AGREE" in outputs(client, 2)[0].data["text/html"]


@pytest.mark.full
@pytest.mark.filterwarnings("ignore")
def test_notebook_interrupt_stops_run_and_rerun_of_cell_finishes_it(
    assets: Path, tmp_path: Path
) -> None:
    model = f"MODEL = {str(assets / 'models/stories260K/hf')!r}"
    slow = "import os, pathlib, time\ndef slowly(step, values):\n    time.sleep(0.3)\n"
    slow += (
        "    pathlib.Path('begun').write_text(str(os.getpid()))\nrun = train(60, on_step=slowly)"
    )
    slow += "\nprint(run.is_finished, len(run.metrics))"
    client = client_of([model + CELLS, slow, "print(train(60).is_finished)"], tmp_path)

    def interrupt() -> None:
        begun = tmp_path / "begun"  # the cell's first step, with the kernel's number
        while not begun.exists() or not begun.read_text():
            time.sleep(0.1)
        os.kill(int(begun.read_text()), signal.SIGINT)  # as the stop button does

    stopper = threading.Thread(target=interrupt, daemon=True)
    stopper.start()
    client.execute()
    text = "".join(
        out.text
        for out in outputs(client, 1)
        if out.output_type == "stream" and out.name == "stdout"
    )
    assert text.split()[-2] == "False"
    assert int(text.split()[-1]) < 60
    last = "".join(
        out.text
        for out in outputs(client, 2)
        if out.output_type == "stream" and out.name == "stdout"
    )
    assert last.split()[-1] == "True"
