#!/usr/bin/env bash
# Runs what docs/reproduction.md reports: the part of the grid of Houlsby et al.
# 2019 that a small BERT and two cores allow, then tables and figures.
#
#   BERT=... GLUE_DIR=... scripts/reproduce.sh OUTPUT_DIR [OPTIONS]
#
# Safe to interrupt and start again at any moment. SPAM and REVIEWS name the SMS
# spam collection (label, text) and rotten tomatoes' training file (label,
# text), without headers; SQUAD_DIR a folder with TRAIN_FILE and PREDICT_FILE.
# What is not set is left out. OPTIONS are those of the sweeps.
set -euo pipefail
scripts=$(dirname "$(realpath "$0")")
python=${PYTHON:-$(dirname "$scripts")/.venv/bin/python}
case $python in */*) python=$(realpath -s "$python") ;; esac
export PYTHON=$python
if [ $# -lt 1 ] || [ -z "${BERT:-}" ] || [ -z "${GLUE_DIR:-}" ]; then
  echo 'usage: BERT=PRETRAINED_MODEL GLUE_DIR=FOLDER_OF_TASKS scripts/reproduce.sh OUTPUT_DIR [OPTIONS]' >&2
  exit 1
fi
out=$(realpath -m "$1")
shift
options=() flags=()
while [ $# -gt 0 ]; do
  if [ "$1" = -- ]; then
    flags=("${@:2}")
    break
  fi
  options+=("$1")
  shift
done
GLUE_DIR=$(realpath "$GLUE_DIR") BERT=$(realpath "$BERT")
export BERT
mkdir -p "$out/data"
failed=0

glue() { # folder of the tasks, name of the sweep, flags of all runs ...
  local folder=$1 name=$2
  shift 2
  GLUE_DIR=$folder "$scripts/sweep_glue.sh" "$out/$name" "${options[@]}" \
    -- --compute_dtype=bfloat16 "$@" "${flags[@]}" || failed=1
}

# The grid, decided before any score was seen.
export METHODS='houlsby full top_layers' SIZES='8 64 256' LAYERS='1 3'
export RATES='1e-4 3e-4' EPOCHS=3 FULL_RATES='5e-5 1e-4' FULL_EPOCHS=3
SEEDS='1 2 3' TASKS='MRPC RTE' glue "$GLUE_DIR" three_seeds

"$scripts/first_rows.sh" "$GLUE_DIR/SST-2" "$out/data/SST-2" 5000
for task in CoLA STS-B WNLI; do ln -sfn "$GLUE_DIR/$task" "$out/data/$task"; done
SEEDS=1 TASKS='CoLA STS-B WNLI SST-2' glue "$out/data" one_seed

for set in "spam ${SPAM:-}" "reviews ${REVIEWS:-}"; do
  name=${set%% *} file=${set#* }
  if [ -n "$file" ]; then
    mkdir -p "$out/data/$name"
    ln -sfn "$(realpath "$file")" "$out/data/$name/train.tsv"
    SEEDS=1 TASKS=$name glue "$out/data" "$name" --task_name=custom \
      --header=false --label_column=0 --text_a_column=1 --dev_share=0.1
  fi
done

if [ -n "${SQUAD_DIR:-}" ]; then
  METHODS='houlsby full' RATES=1e-3 FULL_RATES=5e-5 SEEDS=1 BATCH=16 \
    "$scripts/sweep_squad.sh" "$out/squad" "${options[@]}" \
    -- --compute_dtype=bfloat16 "${flags[@]}" || failed=1
fi

# Initial scales (section 3.6) at one rate; 1e-2 was run above.
METHODS=houlsby SIZES=64 RATES=3e-4 SEEDS=1 TASKS='CoLA' \
  INIT_SCALES='1e-7 1e-4 1e-3 1e-1 1' glue "$out/data" init_scale
METHODS=houlsby SIZES=64 RATES=3e-4 SEEDS=1 TASKS='MRPC' \
  INIT_SCALES='1e-7 1e-4 1e-3 1e-1 1' glue "$GLUE_DIR" init_scale_mrpc

# Adapters taken out of trained models.
for task in MRPC CoLA; do
  run=$out/three_seeds/runs/MRPC
  if [ $task = CoLA ]; then run=$out/one_seed/runs/CoLA; fi
  run=$run/houlsby64-lr3e-4-epochs3-seed1
  if [ -f "$run/done" ]; then
    RUN=$run "$scripts/ablate.sh" "$out/ablation_$task" "${options[@]}" -- \
      --task_name=$task --data_dir="$GLUE_DIR/$task" --eval_batch_size=32 \
      --compute_dtype=bfloat16 "${flags[@]}" || failed=1
  fi
done

case " ${options[*]} " in
  *' --grid '* | *' --status '*) ;;
  *)
    cd "$scripts/.."
    "$python" -m scripts.summarize "$out" --output_dir="$out/summary"
    "$python" -m scripts.plot "$out" --output_dir="$out/figures"
    ;;
esac
exit $failed
