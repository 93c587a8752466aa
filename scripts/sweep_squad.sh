#!/usr/bin/env bash
# Sweeps adapter sizes and full fine-tuning over SQuAD: every method x size x
# learning rate x number of epochs x seed is one run of run_squad.py, whose
# command line is printed and can be copied. Rates and epochs are those of
# Houlsby et al. 2019, section 3.5.
#
#   BERT=... SQUAD_DIR=... scripts/sweep_squad.sh OUTPUT_DIR [OPTIONS] [-- FLAGS]
#
# Safe to interrupt and start again at any moment. Every axis is a variable:
source "$(dirname "$0")/internal/grid.sh"
: "${METHODS=houlsby full}"
: "${SIZES=8 64 256}"               # of adapters whose method names none
: "${INIT_SCALES=}"                 # of houlsby in SIZES; nothing: its own
: "${LAYERS=1 2 3 5 7 9 11 12}"     # k of top_layers
: "${RATES=3e-5 1e-4 3e-4 1e-3}"    # learning rates
: "${EPOCHS=3 10 20}"
: "${FULL_RATES=3e-5 5e-5 1e-4}"    # of full and top_layers
: "${FULL_EPOCHS=2 3 5}"
: "${SEEDS=1 2 3}"
: "${BATCH=32}"
: "${TRAIN_FILE=train-v1.1.json}"   # in SQUAD_DIR
: "${PREDICT_FILE=dev-v1.1.json}"

open_grid 'usage: BERT=PRETRAINED_MODEL SQUAD_DIR=FOLDER scripts/sweep_squad.sh OUTPUT_DIR [OPTIONS] [-- FLAGS]' "$@"
add() { # name, flags ...
  add_run "squad/$1" "$python" run_squad.py \
    --train_file="$SQUAD_DIR/$TRAIN_FILE" \
    --predict_file="$SQUAD_DIR/$PREDICT_FILE" --init_checkpoint="$BERT" \
    --do_train=true --do_predict=true --do_eval=true --predict_batch_size=32 \
    "${@:2}"
}

if [ "$task" != status ]; then
  need BERT 'the pretrained model, for --init_checkpoint' prefix
  need SQUAD_DIR "the folder of $TRAIN_FILE and $PREDICT_FILE" folder
  train_file=$SQUAD_DIR/$TRAIN_FILE predict_file=$SQUAD_DIR/$PREDICT_FILE
  need train_file 'TRAIN_FILE in SQUAD_DIR' file
  need predict_file 'PREDICT_FILE in SQUAD_DIR' file
  SQUAD_DIR=$(absolute "$SQUAD_DIR") BERT=$(absolute "$BERT")
  add_tunings add
fi
run_grid
