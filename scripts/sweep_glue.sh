#!/usr/bin/env bash
# Sweeps tuning methods over GLUE: every task x method x size x learning rate x
# number of epochs x seed is one run of run_classifier.py, whose command line is
# printed and can be copied. The default is the grid of Houlsby et al. 2019,
# section 3.2, 90 runs for each task.
#
#   BERT=... GLUE_DIR=... scripts/sweep_glue.sh OUTPUT_DIR [OPTIONS] [-- FLAGS]
#
# Safe to interrupt and start again at any moment. Every axis is a variable:
source "$(dirname "$0")/grid.sh"
: "${TASKS=CoLA SST-2 MRPC STS-B QQP MNLI QNLI RTE}"
: "${METHODS=houlsby}"            # also full, top_layers, pfeiffer, ...
: "${SIZES=8 64 256}"             # of adapters
: "${INIT_SCALES=}"               # of houlsby's adapters; nothing: its own
: "${LAYERS=1 2 3 5 7 9 11 12}"   # k of top_layers
: "${RATES=3e-5 3e-4 3e-3}"       # learning rates
: "${EPOCHS=3 20}"
: "${FULL_RATES=2e-5 3e-5 5e-5}"  # of full and top_layers, which need lower ones
: "${FULL_EPOCHS=3}"
: "${SEEDS=1 2 3 4 5}"
: "${BATCH=32}"

open_grid 'usage: BERT=PRETRAINED_MODEL GLUE_DIR=FOLDER_OF_TASKS scripts/sweep_glue.sh OUTPUT_DIR [OPTIONS] [-- FLAGS]' "$@"
if [ "$task" != status ]; then
  need BERT 'the pretrained model, for --init_checkpoint'
  need GLUE_DIR 'the folder of the tasks, GLUE_DIR/MRPC and so on'
fi

add_runs() { # task, name of the method, its flags ...
  local glue=$1 method=$2 rates=$RATES epochs=$EPOCHS
  shift 2
  case $method in full | top_layers*) rates=$FULL_RATES epochs=$FULL_EPOCHS ;; esac
  for rate in $rates; do
    for epoch in $epochs; do
      for seed in $SEEDS; do
        add_run "$glue/$method-lr$rate-epochs$epoch-seed$seed" \
          "$python" run_classifier.py --task_name="$glue" \
          --data_dir="$GLUE_DIR/$glue" --init_checkpoint="$BERT" \
          --do_train=true --do_eval=true "$@" --learning_rate="$rate" \
          --num_train_epochs="$epoch" --seed="$seed" \
          --train_batch_size="$BATCH" --eval_batch_size=32 \
          --save_checkpoints_steps=500
      done
    done
  done
}

if [ "$task" != status ]; then
  GLUE_DIR=$(realpath "$GLUE_DIR") BERT=$(realpath "$BERT")
  for glue in $TASKS; do
    for method in $METHODS; do
      case $method in
        top_layers)
          for k in $LAYERS; do
            add_runs "$glue" "top_layers$k" --tuning_method="top_layers(k=$k)"
          done
          ;;
        houlsby | pfeiffer | bapna | parallel | adapterdrop | compacter | pals)
          for size in $SIZES; do
            adapters=(--tuning_method="$method" --adapter_size="$size")
            if [ "$method" != houlsby ] || [ -z "$INIT_SCALES" ]; then
              add_runs "$glue" "$method$size" "${adapters[@]}"
              continue
            fi
            for scale in $INIT_SCALES; do
              add_runs "$glue" "$method$size-scale$scale" "${adapters[@]}" \
                --adapter_init_scale="$scale"
            done
          done
          ;;
        *) add_runs "$glue" "$method" --tuning_method="$method" ;;
      esac
    done
  done
fi
run_grid
