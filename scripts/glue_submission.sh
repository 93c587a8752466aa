#!/usr/bin/env bash
# Makes the zip file that GLUE's leaderboard takes of the predictions of runs,
# and checks it.
#
#   scripts/glue_submission.sh RUNS ZIP
#
# RUNS holds the output folder of each task's `run_classifier.py --do_predict`
# under the task's name: RUNS/CoLA, RUNS/SST-2, ..., RUNS/AX.
set -euo pipefail
root=$(dirname "$(realpath "$0")")/..
PYTHONPATH=$root exec "${PYTHON:-"$root/.venv/bin/python"}" \
  -m adapter_bert glue_submission "$@"
