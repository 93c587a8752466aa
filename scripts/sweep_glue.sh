#!/usr/bin/env bash
# Sweeps tuning methods over GLUE: every task x method x size x learning rate x
# number of epochs x seed is one run of run_classifier.py, whose command line is
# printed and can be copied. The default is the grid of Houlsby et al. 2019,
# section 3.2, 90 runs for each task.
#
#   BERT=... GLUE_DIR=... scripts/sweep_glue.sh OUTPUT_DIR [OPTIONS] [-- FLAGS]
#
# Safe to interrupt and start again at any moment. Every axis is a variable:
source "$(dirname "$0")/internal/grid.sh"
: "${TASKS=CoLA SST-2 MRPC STS-B QQP MNLI QNLI RTE}"  # a name with a blank in quotes: "MRPC 'my task'"
: "${METHODS=houlsby}"            # also full, top_layers, pfeiffer, lora, ...
: "${SIZES=8 64 256}"             # of adapters whose method names none
: "${INIT_SCALES=}"               # of houlsby in SIZES; nothing: its own
: "${LAYERS=1 2 3 5 7 9 11 12}"   # k of top_layers
: "${RATES=3e-5 3e-4 3e-3}"       # learning rates
: "${EPOCHS=3 20}"
: "${FULL_RATES=2e-5 3e-5 5e-5}"  # of full and top_layers, which need lower ones
: "${FULL_EPOCHS=3}"
: "${SEEDS=1 2 3 4 5}"
: "${BATCH=32}"

open_grid 'usage: BERT=PRETRAINED_MODEL GLUE_DIR=FOLDER_OF_TASKS scripts/sweep_glue.sh OUTPUT_DIR [OPTIONS] [-- FLAGS]' "$@"
add() { # name, flags ...
  add_run "$glue/$1" "$python" run_classifier.py --task_name="$glue" \
    --data_dir="$data" --init_checkpoint="$BERT" --do_train=true \
    --do_eval=true --eval_batch_size=32 "${@:2}"
}

if [ "$task" != status ]; then
  need BERT 'the pretrained model, for --init_checkpoint' prefix
  need GLUE_DIR 'the folder of the tasks, GLUE_DIR/MRPC and so on' folder
  GLUE_DIR=$(absolute "$GLUE_DIR") BERT=$(absolute "$BERT")
  split_words TASKS
  for glue in "${words[@]}"; do
    data=$GLUE_DIR/$glue
    need data "the task's train and dev file" folder
    add_tunings add
  done
fi
run_grid
