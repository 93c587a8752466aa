#!/usr/bin/env bash
# Adapter-tunes two small tasks, one after the other, on the same frozen BERT,
# shows what each came to, and answers a sentence with one of the adapters.
# `make quickstart` installs what it needs. Earlier results in
# OUTPUT_DIR/customer_intents and same_meaning are replaced.
#
#   scripts/quickstart.sh [OUTPUT_DIR [FLAGS OF ALL RUNS ...]]
set -euo pipefail
if [[ ${1:-} == -* ]]; then
  echo 'usage: scripts/quickstart.sh [OUTPUT_DIR [FLAGS OF ALL RUNS ...]]' >&2
  exit 1
fi
python=${PYTHON:-.venv/bin/python}
root=$(dirname "$(realpath "$0")")/..
out=$(realpath -m "${1:-out/quickstart}")
shift || true
cd "$root"

bert=$("$python" -m adapter_bert minilm)
for task in customer_intents same_meaning; do
  found=("$out/$task/train."*)
  if [ -e "${found[0]}" ]; then
    echo "error: $out/$task holds data, not results; choose another OUTPUT_DIR" >&2
    exit 1
  fi
done
tune() { # task, flags ...
  local task=$1
  shift
  echo "== $task"
  rm -rf "${out:?}/$task"
  "$python" run_classifier.py --flagfile="configs/$task.flags" \
    --init_checkpoint="$bert" --output_dir="$out/$task" "$@"
}
tune customer_intents "$@"
tune same_meaning "$@"
"$python" -m adapter_bert show table "$bert/model.safetensors" \
  "$out/customer_intents" "$out/same_meaning"

sentence="Where is my parcel? It should have been here on Monday."
ask=("$python" -m adapter_bert predict --init_checkpoint="$bert"
  --adapter="$out/customer_intents/adapter")
echo
echo "$sentence"
"${ask[@]}" <<< "$sentence" |
  "$python" -m adapter_bert show labels
echo
echo "Ask it yourself, one sentence a line:"
printf -v words '%q ' "${ask[@]}"
echo "  ${words% }"
