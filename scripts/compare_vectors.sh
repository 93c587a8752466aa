#!/usr/bin/env bash
# Trains vectors of texts by some tuning methods, and scores BERT alone:
#
#   BERT=... GLUE_DIR=... SQUAD_DIR=... scripts/compare_vectors.sh OUTPUT_DIR [OPTIONS] [-- FLAGS]
#
# Safe to interrupt and start again at any moment. This shows the results:
#
#   .venv/bin/adapter-bert summarize OUTPUT_DIR --output_dir=OUT
#
# No table has BERT alone, which is no training: its scores are in
# OUTPUT_DIR/runs/TASK/frozen/eval_results.json. Every axis is a variable:
source "$(dirname "$0")/internal/grid.sh"
: "${TASKS=STS-B MRPC SQuAD}"       # also QQP, QNLI
: "${METHODS=houlsby(size=64) lora(rank=8) full}"
: "${EPOCHS=1}"
: "${SEEDS=1}"
: "${BATCH=32}"
: "${LENGTH=128}"                   # of a text, in tokens
: "${TRAIN_FILE=train-v1.1.json}"   # in SQUAD_DIR
: "${DEV_FILE=dev-v1.1.json}"

open_grid 'usage: BERT=PRETRAINED_MODEL GLUE_DIR=FOLDER_OF_TASKS SQUAD_DIR=FOLDER scripts/compare_vectors.sh OUTPUT_DIR [OPTIONS] [-- FLAGS]' "$@"
add() { # name, flags ...
  add_run "$name/$1" "$python" run_vectors.py --task_name="$name" \
    --data_dir="$data" --init_checkpoint="$BERT" --max_seq_length="$LENGTH" \
    --do_eval=true --eval_batch_size=32 "${@:2}"
}

if [ "$task" != status ]; then
  need BERT 'the pretrained model, for --init_checkpoint' prefix
  BERT=$(absolute "$BERT")
  split_words TASKS
  for name in "${words[@]}"; do
    if [ "$name" = SQuAD ]; then
      need SQUAD_DIR "the folder of $TRAIN_FILE and $DEV_FILE" folder
      train=$SQUAD_DIR/$TRAIN_FILE dev=$SQUAD_DIR/$DEV_FILE
      need train 'TRAIN_FILE in SQUAD_DIR' file
      need dev 'DEV_FILE in SQUAD_DIR' file
      # Tables call a task as its folder.
      data=$output/data/SQuAD
      mkdir -p "$data"
      point "$data/train.json" "$train"
      point "$data/dev.json" "$dev"
    else
      need GLUE_DIR 'the folder of the tasks, GLUE_DIR/MRPC and so on' folder
      data=$(absolute "$GLUE_DIR")/$name
      need data "the task's train and dev file" folder
    fi
    add frozen --tuning_method=head
    for method in $METHODS; do
      for seed in $SEEDS; do
        add "$method-seed$seed" --tuning_method="$method" \
          --do_train=true --train_batch_size="$BATCH" \
          --num_train_epochs="$EPOCHS" --seed="$seed"
      done
    done
  done
fi
run_grid
