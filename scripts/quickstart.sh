#!/usr/bin/env bash
# Adapter-tunes three small tasks, one after the other, on the same frozen BERT,
# and shows what each came to. `make quickstart` installs what it needs. Earlier
# results in OUTPUT_DIR/customer_intents, same_meaning and short_articles are
# replaced.
#
#   scripts/quickstart.sh [OUTPUT_DIR [FLAGS OF ALL RUNS ...]]
set -euo pipefail
python=${PYTHON:-.venv/bin/python}
root=$(dirname "$(realpath "$0")")/..
out=$(realpath -m "${1:-out/quickstart}")
shift || true
cd "$root"

bert=$("$python" -m scripts.minilm)
for task in customer_intents same_meaning short_articles; do
  found=("$out/$task/train."*)
  if [ -e "${found[0]}" ]; then
    echo "error: $out/$task holds data, not results; choose another OUTPUT_DIR" >&2
    exit 1
  fi
done
tune() { # program, task, flags ...
  local program=$1 task=$2
  shift 2
  echo "== $task"
  rm -rf "${out:?}/$task"
  "$python" "$program" --flagfile="configs/$task.flags" \
    --init_checkpoint="$bert" --output_dir="$out/$task" "$@"
}
tune run_classifier.py customer_intents "$@"
tune run_classifier.py same_meaning "$@"
tune run_squad.py short_articles "$@"
"$python" -m scripts.internal.quickstart_table "$bert/model.safetensors" \
  "$out/customer_intents" "$out/same_meaning" "$out/short_articles"
"$python" -m scripts.internal.show_answers data/short_articles/dev.json \
  "$out/short_articles/predictions.json" 5
