#!/usr/bin/env bash
# Makes the programs of lab/devices/run.sh: training and prediction of 32 x 128
# tokens, float32 and bfloat16, of three sizes of BERT, a few hundred kilobytes
# each. `make compilers` installs what this needs; no device is needed.
#
#   lab/devices/make_programs.sh OUT [SIZE ...]
#
# SIZE is minilm, base or large; default: all. The weights of base and large are
# random, so nothing is downloaded. The CPU's record has 10 training steps of
# minilm, 5 of base, 2 of large: the CPU takes minutes for one of large, and
# after some 15 of minilm differences in rounding have grown to other losses.
# DEVICE (h100) is compiled for.
set -euo pipefail
python=${PYTHON:-.venv/bin/python}
device=${DEVICE:-h100}
if [ $# = 0 ]; then
  echo "error: OUT is missing: lab/devices/make_programs.sh OUT [SIZE ...]" >&2
  exit 1
fi
declare -A record=([minilm]=10 [base]=5 [large]=2)
out=$(realpath -m "$1")
sizes=("${@:2}")
[ ${#sizes[@]} -gt 0 ] || sizes=(minilm base large)
for size in "${sizes[@]}"; do
  if [ -z "${record[${size:-none}]:-}" ]; then
    echo "error: unknown size '$size'; expected minilm, base or large" >&2
    exit 1
  fi
done
cd "$(dirname "$(realpath "$0")")/../.."
minilm=$("$python" -m adapter_bert minilm)
mkdir -p "$out"
scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT

write_bert='
import pathlib, sys
from lab.devices.runs import SIZES
from lab.trials import tiny_files
_, size, folder = sys.argv
config = SIZES[size][2]
tiny_files.write_bert(pathlib.Path(folder), config, config.initializer_range)
'
for size in "${sizes[@]}"; do
  bert=$minilm
  if [ "$size" != minilm ]; then
    bert=$scratch/$size
    "$python" -c "$write_bert" "BERT-$size" "$bert"
    cp "$minilm/vocab.txt" "$bert"
  fi
  for dtype in float32 bfloat16; do
    compile() { # name of the step, flags ...
      echo "== $size, $dtype, $1"
      "$python" -m adapter_bert compile "$device" --values=seed \
        --program="$out/$size-$dtype-$1.npz" --record_steps="${record[$size]}" \
        -- run_classifier.py --flagfile=configs/same_meaning.flags \
        --init_checkpoint="$bert" --do_eval=false --max_seq_length=128 \
        --compute_dtype="$dtype" "${@:2}"
    }
    compile training --train_batch_size=32
    # Of an adapter that is not trained: values are drawn all the same.
    compile prediction --predict_batch_size=32 --do_train=false \
      --do_predict=true
  done
  rm -rf "${scratch:?}/$size"
done
ls -l "$out"
