#!/usr/bin/env bash
# Sweeps tuning methods over data sets of tagged words: every data set x method x
# size x learning rate x number of epochs x seed is one run of run_tagger.py,
# whose command line is printed and can be copied.
#
#   BERT=... NER_DIR=... TASKS=... scripts/sweep_tagging.sh OUTPUT_DIR [OPTIONS] [-- FLAGS]
#
# TASKS are folders in NER_DIR, each with a train and a dev file; `.` is NER_DIR
# itself, and quotes hold a name with a blank together, as TASKS="wnut17 'my ner'".
# Safe to interrupt and start again at any moment. Every axis is a variable:
source "$(dirname "$0")/internal/grid.sh"
: "${TASKS=.}"
: "${METHODS=houlsby full head}"  # also top_layers, pfeiffer, lora, ...
: "${SIZES=8 64 256}"             # of adapters whose method names none
: "${INIT_SCALES=}"               # of houlsby in SIZES; nothing: its own
: "${LAYERS=1 2 3 5 7 9 11 12}"   # k of top_layers
: "${RATES=1e-4 3e-4 1e-3}"       # learning rates
: "${EPOCHS=5}"
: "${FULL_RATES=2e-5 5e-5 1e-4}"  # of full and top_layers, which need lower ones
: "${FULL_EPOCHS=5}"
: "${SEEDS=1 2 3}"
: "${BATCH=32}"

open_grid 'usage: BERT=PRETRAINED_MODEL NER_DIR=FOLDER_OF_DATA_SETS scripts/sweep_tagging.sh OUTPUT_DIR [OPTIONS] [-- FLAGS]' "$@"
add() { # name, flags ...
  add_run "$name/$1" "$python" run_tagger.py --data_dir="$data" \
    --init_checkpoint="$BERT" --do_train=true --do_eval=true \
    --eval_batch_size=32 "${@:2}"
}

if [ "$task" != status ]; then
  need BERT 'the pretrained model, for --init_checkpoint' prefix
  need NER_DIR 'the folder of the data sets' folder
  NER_DIR=$(absolute "$NER_DIR") BERT=$(absolute "$BERT")
  names=/
  split_words TASKS
  for folder in "${words[@]}"; do
    data=$NER_DIR/$folder
    need data "the data set's train and dev file" folder
    data=$(absolute "$data") name=$(basename "$data")
    [[ $names != *"/$name/"* ]] ||
      refuse "TASKS has two folders called $name, and runs are called by it; rename one, or sweep each into its own OUTPUT_DIR"
    names+=$name/
    add_tunings add
  done
fi
run_grid
