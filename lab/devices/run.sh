#!/usr/bin/env bash
# Runs programs with JAX, then their steps in PyTorch, into one file.
#
#   ./run.sh FILE.json PROGRAM.npz ...
#
# Needs, in the folder of this script, run_program.py and peer.py; JAX and
# PyTorch in PYTHON (python3), or PyTorch in TORCH_PYTHON. The file has each run
# as soon as it ends. The exit code is 1 if a run failed, or gave other values
# than the CPU; the others are done all the same.
set -uo pipefail
python=${PYTHON:-python3}
here=$(dirname "$(realpath "$0")")
if [ $# -lt 2 ]; then
  echo "error: expected ./run.sh FILE.json PROGRAM.npz ..." >&2
  exit 1
fi
results=$1
shift
failed=0
"$python" "$here/run_program.py" "$@" --json="$results" || failed=1
"${TORCH_PYTHON:-$python}" "$here/peer.py" "$@" --json="$results" || failed=1
exit $failed
