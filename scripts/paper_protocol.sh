#!/usr/bin/env bash
# Compares adapters with full fine-tuning by the protocol of Houlsby et al. 2019
# (sections 3.1 and 3.2) on small tasks. Half of a task's dev rows, the choice
# half, chooses size and learning rate of each method by one seed. The other, the
# report half, scores what was chosen with all seeds.
#
#   BERT=... GLUE_DIR=... scripts/paper_protocol.sh OUTPUT_DIR [OPTIONS] [-- FLAGS]
#
# Safe to interrupt and start again at any moment. Ends with tables, and writes
# OUTPUT_DIR/protocol.json. Every axis is a variable:
source "$(dirname "$0")/internal/grid.sh"
: "${TASKS=RTE MRPC CoLA}"        # of GLUE, with one dev file and with labels
: "${SIZES=8 64}"                 # of adapters
: "${RATES=3e-4 1e-3 3e-3}"       # learning rates of adapters
: "${EPOCHS=20}"
: "${FULL_RATES=2e-5 3e-5 5e-5}"  # of full fine-tuning
: "${FULL_EPOCHS=3}"
: "${SEEDS=1 2 3 4 5}"            # the first of them chooses
: "${HALVES_SEED=1}"              # draws the halves
: "${BATCH=32}"

open_grid 'usage: BERT=PRETRAINED_MODEL GLUE_DIR=FOLDER_OF_TASKS scripts/paper_protocol.sh OUTPUT_DIR [OPTIONS] [-- FLAGS]' "$@"
split_words TASKS
[ ${#words[@]} -gt 0 ] || refuse 'TASKS is empty, expected tasks as RTE'
open_sweeps "${words[@]}"
read -r first others <<< "$SEEDS"
[ -n "$others" ] || refuse "SEEDS is '$SEEDS', expected two seeds or more, since the interval covers them"

failed=0
sweep() { # name, variables of sweep_glue.sh ...
  echo "== $1"
  env METHODS='houlsby full' INIT_SCALES= SIZES="$SIZES" RATES="$RATES" \
    EPOCHS="$EPOCHS" FULL_RATES="$FULL_RATES" FULL_EPOCHS="$FULL_EPOCHS" \
    BATCH="$BATCH" GLUE_DIR="$out/data" "${@:2}" \
    "$project/scripts/sweep_glue.sh" "$out/$1" "${how[@]}" -- \
    --compute_dtype=bfloat16 --do_predict=true --predict_batch_size=32 \
    "${flags[@]}" || failed=1
}

choose() { # options of the sweep ...
  how=("$@")
  sweep choice TASKS="$TASKS" SEEDS="$first"
}

# The chosen settings, as far as they are known, with the other seeds.
repeat() { # options of the sweeps ...
  local found chosen line name glue run
  how=("$@")
  found=$(adapter_bert paper_protocol chosen "$out")
  mapfile -t chosen <<< "$found"
  for line in "${chosen[@]}"; do
    IFS=$'\t' read -r name glue run <<< "$line"
    [[ $run =~ /(houlsby|full)([0-9]*)-lr(.*)-epochs(.*)-seed ]] || continue
    sweep "$name" TASKS="$glue" SEEDS="$others" METHODS="${BASH_REMATCH[1]}" \
      SIZES="${BASH_REMATCH[2]}" RATES="${BASH_REMATCH[3]}" \
      FULL_RATES="${BASH_REMATCH[3]}" EPOCHS="${BASH_REMATCH[4]}" \
      FULL_EPOCHS="${BASH_REMATCH[4]}"
  done
}

for glue in "${words[@]}"; do
  train=$GLUE_DIR/$glue/train.tsv
  need train 'the rows to train on' file
done
for glue in "${words[@]}"; do
  adapter_bert paper_protocol halves "$glue" "$GLUE_DIR/$glue" "$out/data/$glue" "$HALVES_SEED"
  ln -sfn "$GLUE_DIR/$glue/train.tsv" "$out/data/$glue/train.tsv"
done
if [ "$task" = grid ]; then
  choose --grid
  repeat --grid
  exit $failed
fi
# What the grid refuses is said before any long work.
choose --grid > /dev/null
[ $failed = 0 ] || exit 1
choose --jobs "$jobs"
repeat --jobs "$jobs"
adapter_bert paper_protocol summarize "$out"
exit $failed
