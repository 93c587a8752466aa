#!/usr/bin/env bash
# Runs what docs/reproduction.md reports: the part of the grid of Houlsby et al.
# 2019 that a small BERT and two cores allow, then tables and figures.
#
#   BERT=... GLUE_DIR=... scripts/reproduce.sh OUTPUT_DIR [OPTIONS] [-- FLAGS]
#
# Safe to interrupt and start again at any moment. SPAM and REVIEWS name the SMS
# spam collection (label, text) and rotten tomatoes' training file (label,
# text), without headers; SQUAD_DIR a folder with TRAIN_FILE and PREDICT_FILE.
# What is not set is left out.
source "$(dirname "$0")/internal/grid.sh"
open_grid 'usage: BERT=PRETRAINED_MODEL GLUE_DIR=FOLDER_OF_TASKS scripts/reproduce.sh OUTPUT_DIR [OPTIONS] [-- FLAGS]' "$@"
open_sweeps MRPC RTE CoLA STS-B WNLI SST-2
for name in SPAM REVIEWS; do
  [ -z "${!name:-}" ] || need "$name" 'a file of label, tab, text' file
done

failed=0
sweep() { # name, script, flags of all runs ...
  local name=$1 script=$2
  shift 2
  echo "== $name"
  "$project/scripts/$script" "$out/$name" "${how[@]}" \
    -- --compute_dtype=bfloat16 "$@" "${flags[@]}" || failed=1
}

glue() { # folder of the tasks, name of the sweep, flags of all runs ...
  GLUE_DIR=$1 sweep "$2" sweep_glue.sh "${@:3}"
}

# The grid, decided before any score was seen.
export METHODS='houlsby full top_layers' SIZES='8 64 256' LAYERS='1 3'
export RATES='1e-4 3e-4' EPOCHS=3 FULL_RATES='5e-5 1e-4' FULL_EPOCHS=3
export INIT_SCALES=
sweeps() { # options of the sweeps ...
  local set name file
  how=("$@")
  SEEDS='1 2 3' TASKS='MRPC RTE' glue "$GLUE_DIR" three_seeds

  for name in CoLA STS-B WNLI; do ln -sfn "$GLUE_DIR/$name" "$out/data/$name"; done
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
      sweep squad sweep_squad.sh
  fi

  # Initial scales (section 3.6) at one rate; 1e-2 was run above.
  METHODS=houlsby SIZES=64 RATES=3e-4 SEEDS=1 TASKS=CoLA \
    INIT_SCALES='1e-7 1e-4 1e-3 1e-1 1' glue "$out/data" init_scale
  METHODS=houlsby SIZES=64 RATES=3e-4 SEEDS=1 TASKS=MRPC \
    INIT_SCALES='1e-7 1e-4 1e-3 1e-1 1' glue "$GLUE_DIR" init_scale_mrpc
}

"$internal/cut_training_set.sh" "$GLUE_DIR/SST-2" "$out/data/SST-2" 5000
if [ "$task" = grid ]; then
  sweeps --grid
else
  # All grids first, so that what they refuse is said before any long work.
  sweeps --grid > /dev/null
  [ $failed = 0 ] || exit 1
  sweeps --jobs "$jobs"
fi

# Adapters taken out of trained models.
for name in MRPC CoLA; do
  run=$out/three_seeds/runs/MRPC
  if [ $name = CoLA ]; then run=$out/one_seed/runs/CoLA; fi
  run=$run/houlsby64-lr3e-4-epochs3-seed1
  if [ -f "$run/done" ]; then
    RUN=$run sweep "ablation_$name" ablate.sh --task_name=$name \
      --data_dir="$GLUE_DIR/$name" --eval_batch_size=32
  fi
done

if [ "$task" = run ]; then
  cd "$project"
  adapter_bert summarize "$out" --output_dir="$out/summary"
  adapter_bert plot "$out" --output_dir="$out/figures"
fi
exit $failed
