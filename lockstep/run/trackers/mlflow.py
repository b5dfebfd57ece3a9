"""MLflow: a run on a tracking server or in a local database, rewritten from the logs where it was ahead of them.

MLflow keeps every point it was sent. So a run that was killed after its newest checkpoint is deleted there (into
MLflow's own bin) and written again from the logs; one that ended in order is resumed.
"""

from __future__ import annotations

import json
import logging
import time
from collections.abc import Mapping

from mlflow.entities import LifecycleStage, Metric, Param, Run, RunTag
from mlflow.exceptions import MlflowException
from mlflow.protos.databricks_pb2 import RESOURCE_DOES_NOT_EXIST, ErrorCode
from mlflow.tracking import MlflowClient
from mlflow.utils.mlflow_tags import MLFLOW_LOGGED_ARTIFACTS

from lockstep.config import MLflow
from lockstep.run.trackers.view import Facts, Outcome, Rows, View, table
from lockstep.system.yaml12 import flat

_STATUS: dict[Outcome, str] = {"finished": "FINISHED", "failed": "FAILED", "interrupted": "KILLED"}
_UNKNOWN = ErrorCode.Name(RESOURCE_DOES_NOT_EXIST)
_NEWEST_STEP = "lockstep.step"
_MOST_PARAMS, _LONGEST_PARAM = 100, 6000  # of one call, and characters of one value


class MLflowView(View):
    """Metrics and timings as metrics, samples as tables, the recipe as parameters, recipe and environment as files."""

    def __init__(self, section: MLflow, facts: Facts) -> None:
        self._section, self._facts = section, facts
        self._run_id_file = facts.folder / "mlflow_run_id"

    @property
    def where(self) -> str:
        return f"experiment {self._section.experiment}, run {self._run_id}, at {self._client.tracking_uri}"

    def open(self, step: int) -> int:
        logging.getLogger("mlflow").setLevel(logging.WARNING)  # not a line for each table of a new database
        self._client = MlflowClient()
        experiment_id = self._experiment_id()
        before = self._run_before()
        if before is not None:
            newest = int(before.data.tags.get(_NEWEST_STEP, -1))
            if before.info.experiment_id == experiment_id and newest <= step:
                self._run_id = before.info.run_id
                self._client.update_run(self._run_id, "RUNNING")
                return newest
            self._client.delete_run(before.info.run_id)
        self._begin(experiment_id)
        return -1

    def send(self, step: int, values: Mapping[str, float], samples: Mapping[str, Rows]) -> None:
        """Sends metrics, and a file of each kind of responses; MLflow's page of tables shows the newest."""
        now = int(time.time() * 1000)
        metrics = [Metric(name, value, now, step) for name, value in values.items()]
        self._client.log_batch(self._run_id, metrics=metrics, tags=[RunTag(_NEWEST_STEP, str(step))])
        for kind, rows in samples.items():
            columns, cells = table(rows)
            path = f"{kind}/step_{step:06}.json"
            self._client.log_dict(self._run_id, {"columns": columns, "data": cells}, path)
            self._client.set_tag(self._run_id, MLFLOW_LOGGED_ARTIFACTS, json.dumps([{"path": path, "type": "table"}]))

    def close(self, outcome: Outcome) -> None:
        self._client.set_terminated(self._run_id, _STATUS[outcome])

    def _experiment_id(self) -> str:
        found = self._client.get_experiment_by_name(self._section.experiment)
        return self._client.create_experiment(self._section.experiment) if found is None else found.experiment_id

    def _run_before(self) -> Run | None:
        """The run that an earlier process wrote; None where there is none, or it has been deleted."""
        if not self._run_id_file.exists():
            return None
        try:
            run = self._client.get_run(self._run_id_file.read_text(encoding="utf-8"))
        except MlflowException as error:
            if error.error_code != _UNKNOWN:
                raise
            return None
        return None if run.info.lifecycle_stage == LifecycleStage.DELETED else run

    def _begin(self, experiment_id: str) -> None:
        client, facts = self._client, self._facts
        self._run_id = client.create_run(experiment_id, run_name=self._section.name or facts.name).info.run_id
        self._run_id_file.write_text(self._run_id, encoding="utf-8")
        texts = {
            key: value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
            for key, value in flat(facts.recipe)
        }
        params = [Param(key, text[:_LONGEST_PARAM]) for key, text in texts.items()]
        for start in range(0, len(params), _MOST_PARAMS):
            client.log_batch(self._run_id, params=params[start : start + _MOST_PARAMS])
        client.log_dict(self._run_id, facts.recipe, "recipe.yaml")
        client.log_dict(self._run_id, facts.environment, "environment.json")
