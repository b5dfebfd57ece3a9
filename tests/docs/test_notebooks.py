"""The notebooks of docs/notebooks run from their first cell to their last; they assert what they
say.
"""

from __future__ import annotations

from pathlib import Path

import nbformat
import pytest
from nbclient import NotebookClient

NOTEBOOKS = sorted((Path(__file__).parents[2] / "docs/notebooks").glob("*.ipynb"))


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_stored_notebook_has_every_cell_run_in_order_without_error(path: Path) -> None:
    cells = [cell for cell in nbformat.read(path, 4).cells if cell.cell_type == "code"]
    assert [cell.execution_count for cell in cells] == [*range(1, len(cells) + 1)]
    assert not [
        output for cell in cells for output in cell.outputs if output.output_type == "error"
    ]
    assert not [
        cell
        for cell in cells
        if str(Path.home()) in str(cell.outputs) or "/tmp" in str(cell.outputs)
    ]


@pytest.mark.proof
@pytest.mark.timeout(7200)
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_a_notebook_runs(
    path: Path, assets: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MODEL", str(assets / "models/stories260K/hf"))
    folder = {"metadata": {"path": str(tmp_path)}}
    NotebookClient(
        nbformat.read(path, 4), timeout=3600, kernel_name="python3", resources=folder
    ).execute()
