"""Reads back, by each tool's own means, what a run was shown as."""

from __future__ import annotations

import json
import subprocess
import sys
from collections import defaultdict
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from mlflow.entities import Run
from mlflow.tracking import MlflowClient
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

Series = dict[str, list[tuple[int, float]]]
"""Steps and values by metric, in order."""


def tensorboard(folder: Path) -> EventAccumulator:
    return EventAccumulator(str(folder / "tensorboard"), {"scalars": 0, "tensors": 0}).Reload()


def tensorboard_series(folder: Path) -> Series:
    events = tensorboard(folder)
    tags: Mapping[str, list[str]] = events.Tags()
    return {tag: [(event.step, event.value) for event in events.Scalars(tag)] for tag in tags["scalars"]}


def tensorboard_texts(folder: Path, tag: str) -> dict[int, str]:
    return {event.step: event.tensor_proto.string_val[0].decode() for event in tensorboard(folder).Tensors(tag)}


def wandb_records(folder: Path, kind: str) -> list[dict[str, Any]]:
    """Records of one kind in the one offline run there is."""
    (file,) = folder.glob("wandb/offline-run-*/run-*.wandb")
    command = [sys.executable, "-m", "wandb", "leet", "inspect", "--json", str(file)]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    records = [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]
    return [record[kind] for record in records if record["type"] == kind]


def wandb_series(folder: Path) -> Series:
    series: Series = defaultdict(list)
    for record in wandb_records(folder, "history"):
        for name, value in record["item"].items():
            if not name.startswith(("_", "samples")):
                series[name].append((record["item"]["_step"], value))
    return dict(series)


def mlflow_runs(experiment: str) -> list[Run]:
    """Those that are not in the bin."""
    client = MlflowClient()
    found = client.get_experiment_by_name(experiment)
    return [] if found is None else list(client.search_runs([found.experiment_id]))


def mlflow_series(run: Run) -> Series:
    client = MlflowClient()
    histories = {name: client.get_metric_history(run.info.run_id, name) for name in run.data.metrics}
    return {name: sorted((point.step, point.value) for point in points) for name, points in histories.items()}


def logged(rows: Sequence[Mapping[str, float]]) -> Series:
    """What the logs say, in the same form."""
    series: Series = defaultdict(list)
    for row in rows:
        for name, value in row.items():
            if name != "step":
                series[name].append((int(row["step"]), value))
    return dict(series)
