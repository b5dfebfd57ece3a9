#!/usr/bin/env bash
# Tests a machine's own torch on its GPU, without a network and without vLLM: what is missing comes as wheels in a folder.
#
#     scripts/gpu_bare.sh WHEELS OUT
#
# WHEELS: a folder of wheels, which may be empty; `scripts/gpu_wheels.sh WHEELS` fills it where there is a network.
# OUT: gets tests.log, tests.xml and what `lockstep gpu-check` writes.
# PYTHON: the interpreter that has torch (default: python3).
set -uo pipefail
cd "$(dirname "$0")/.."
if [ $# -ne 2 ] || [ ! -d "$1" ]; then
  echo "usage: scripts/gpu_bare.sh WHEELS OUT, where WHEELS is a folder" >&2
  exit 2
fi
python=${PYTHON:-python3} site=$PWD/build/gpu_bare wheels=("$1"/*.whl)
rm -rf "$site"
if [ -e "${wheels[0]}" ]; then
  "$python" -m pip install --quiet --no-index --no-deps --target "$site" "${wheels[@]}" || exit 2
fi
export PYTHONPATH=$PWD:$site
mkdir -p "$2"
"$python" -m pytest -q tests/gpu tests/logprobs -m "gpu and not vllm" --junitxml="$2/tests.xml" 2>&1 | tee "$2/tests.log"
tested=${PIPESTATUS[0]}
"$python" -m lockstep gpu-check --out "$2"
checked=$?
[ "$tested" -ne 0 ] && exit "$tested"
exit "$checked"
