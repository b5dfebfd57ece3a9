"""The guide to the endpoint: its command serves, its blocks talk to it and prove what it says."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from contextlib import ExitStack
from pathlib import Path

from doc_commands import ROOT, blocks
from served_models import write_agent_model

PAGE = ROOT / "docs/guides/serve.md"


def test_serve_guide_command_and_python_blocks_run(tmp_path: Path) -> None:
    write_agent_model(tmp_path / "agent")
    command = "serve agent --port 0 --key sk-mine learner.device=cpu endpoint.max_requests=200"
    with (
        subprocess.Popen(
            [sys.executable, "-m", "lockstep", *command.split()],
            cwd=tmp_path,
            env={**os.environ, "PYTHONUNBUFFERED": ""},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        ) as process,
        ExitStack() as stack,
    ):
        stack.callback(process.kill)  # if a block fails
        assert process.stdout is not None
        line = process.stdout.readline()
        found = re.search(r"agent is served at http://127.0.0.1:(\d+)/v1", line)
        assert found is not None, line
        assert "sk-mine" not in line
        names: dict[str, object] = {}
        for language, text in blocks(PAGE):
            if language == "python":
                exec(text.replace(":8000", f":{found[1]}"), names)
        process.send_signal(signal.SIGINT)
        rest, errors = process.communicate(timeout=60)
    assert process.returncode == 0, errors
    assert not rest
