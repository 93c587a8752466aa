#!/usr/bin/env bash
# Proves a machine with TensorFlow and a device, in at most 15 minutes:
# a training without dropout on the CPU, compared with the same on the device and
# on the device with XLA (a TPU always has XLA): the loss of every tenth step,
# the adapter, the probabilities of test rows; a training that is killed and goes
# on, whose files must be those of one that is not; the speed in float32 and
# bfloat16.
#
#   DEVICE=gpu lab/devices/prove.sh OUT [FLAGS ...]
#
# DEVICE is cpu, gpu or tpu. OUT takes the runs, their logs, and prove.json; it
# must not exist. FLAGS are those of run_classifier.py that name task and data;
# default: --flagfile=configs/same_meaning.flags, whose data ship with the
# project. BERT is the model's folder, with config.json; default: MiniLM. STEPS
# (40, at least 20), BATCH (32) and EXAMPLES (320) are those of each run, CORES
# (8) those of a TPU, LIMIT (900) the seconds of everything. The exit code is 1
# if a proof fails.
set -euo pipefail
python=${PYTHON:-.venv/bin/python}
device=${DEVICE:-}
if [ $# = 0 ]; then
  echo "error: OUT is missing: DEVICE=gpu lab/devices/prove.sh OUT" >&2
  exit 1
fi
steps=${STEPS:-40} batch=${BATCH:-32} examples=${EXAMPLES:-320}
cores=${CORES:-8} limit=${LIMIT:-900}
for name in steps batch examples cores limit; do
  if ! [[ ${!name} =~ ^[1-9][0-9]*$ ]]; then
    echo "error: ${name^^} is '${!name}', expected a number of 1 or more" >&2
    exit 1
  fi
done
if [ "$steps" -lt 20 ]; then
  echo "error: STEPS is $steps, expected >= 20: one run is killed after 10" >&2
  exit 1
fi
if [ $((steps * batch % examples)) != 0 ]; then
  echo "error: $steps STEPS of $batch rows are not whole epochs of $examples" \
    "EXAMPLES; choose others" >&2
  exit 1
fi
xla=(--use_xla=true)
case $device in
  cpu) flags=() ;;
  gpu) flags=(--num_devices=1) ;;
  tpu)
    flags=(--use_tpu=true --tpu_name=local --num_tpu_cores="$cores")
    xla=()
    ;;
  *)
    echo "error: DEVICE is '$device'; expected cpu, gpu or tpu" >&2
    exit 1
    ;;
esac
out=$(realpath -m "$1")
shift
if [ -e "$out" ]; then
  echo "error: $out is there already; choose another OUT" >&2
  exit 1
fi
cd "$(dirname "$(realpath "$0")")/../.."
if [ "$device" = gpu ] && ! nvidia-smi -L > /dev/null 2>&1; then
  echo "error: nvidia-smi finds no GPU; choose another DEVICE" >&2
  exit 1
fi
bert=${BERT:-$("$python" -m adapter_bert minilm)}
mkdir -p "$out"
# Dropout is drawn for each core, from its own first row.
"$python" - "$bert/config.json" "$out/no_dropout.json" << 'END'
import json, sys
with open(sys.argv[1]) as file:
    sizes = json.load(file)
sizes.update(hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0)
with open(sys.argv[2], "w") as file:
    json.dump(sizes, file)
END
[ $# -gt 0 ] || set -- --flagfile=configs/same_meaning.flags
all=("$@" --do_train=true --init_checkpoint="$bert"
  --engine=strategy --do_eval=false --max_train_examples="$examples"
  --train_batch_size="$batch" --eval_batch_size="$batch"
  --predict_batch_size="$batch"
  --num_train_epochs="$((steps * batch / examples))")
prepare() { # name, flags ...
  echo "== $1"
  run=("$python" run_classifier.py "${all[@]}" --output_dir="$out/$1" "${@:2}")
}
train() { # name, flags ...
  prepare "$@"
  local left=$((limit - SECONDS))
  if [ $left -le 0 ] || ! timeout $left "${run[@]}" > "$out/$1.log" 2>&1; then
    echo "error: $1 failed, or took longer than LIMIT; see $out/$1.log" >&2
    exit 1
  fi
}
alike=(--bert_config_file="$out/no_dropout.json" --do_predict=true)
CUDA_VISIBLE_DEVICES=-1 train cpu "${alike[@]}"
train device "${alike[@]}" "${flags[@]}"
[ ${#xla[@]} = 0 ] || train xla "${alike[@]}" "${flags[@]}" "${xla[@]}"

often=(--save_checkpoints_steps=10 "${flags[@]}")
train whole "${often[@]}"
prepare resumed "${often[@]}"
"${run[@]}" > "$out/killed.log" 2>&1 &
killed=$!
until [ -e "$out/resumed/model.ckpt-10.index" ]; do
  if ! kill -0 $killed 2> /dev/null || [ "$SECONDS" -gt "$limit" ]; then
    kill -9 $killed 2> /dev/null || true
    echo "error: no checkpoint to be killed after; see $out/killed.log" >&2
    exit 1
  fi
  sleep 0.05
done
kill -9 $killed
wait $killed 2> /dev/null && {
  echo "error: the run ended before it was killed; raise STEPS" >&2
  exit 1
}
train resumed "${often[@]}"

for dtype in float32 bfloat16; do
  train "speed-$dtype" --compute_dtype=$dtype "${flags[@]}"
done
"$python" -m lab.devices.judge "$out" "$device" "$SECONDS"
