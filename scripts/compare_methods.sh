#!/usr/bin/env bash
# Trains every tuning method on four GLUE tasks:
#
#   BERT=... GLUE_DIR=... scripts/compare_methods.sh OUTPUT_DIR [OPTIONS] [-- FLAGS]
#
# Safe to interrupt and start again at any moment. These two show the results:
#
#   .venv/bin/adapter-bert summarize OUTPUT_DIR --output_dir=OUT
#   .venv/bin/adapter-bert plot OUTPUT_DIR --output_dir=OUT
#
# results/methods.md has the table `methods` and the figure `per_task`.
source "$(dirname "$0")/internal/grid.sh"
open_grid 'usage: BERT=PRETRAINED_MODEL GLUE_DIR=FOLDER_OF_TASKS scripts/compare_methods.sh OUTPUT_DIR [OPTIONS] [-- FLAGS]' "$@"

# Methods and peak learning rates; results/methods.md tells how these were found.
METHODS='
houlsby(size=8)                              3e-4
houlsby(size=64)                             3e-4
houlsby(size=256)                            3e-4
pfeiffer(size=64)                            3e-4
bapna(size=64)                               3e-4
parallel(size=64)                            3e-4
adapterdrop(first=2,size=64)                 3e-4
compacter(size=24,n=4)                       3e-3
mad_x(size=64,inverse_size=96)               3e-4
pals(size=96,heads=6)                        3e-4
lora(rank=8,alpha=16.0)                      5e-4
dora(rank=8,alpha=16.0)                      5e-4
vera(rank=256)                               2e-2
adalora(init_rank=12,rank=8,alpha=16.0)      1e-2
prefix(length=30)                            1e-4
prompt(length=10)                            3e-3
loreft(rank=4,prefix=3,suffix=3)             1e-3
union(prefix(length=30),parallel(size=64))   1e-4
union(lora(rank=8,gating=true),prefix(length=10,gating=true),pfeiffer(size=24,gating=true)) 5e-4
ia3                                          3e-3
bitfit                                       1e-3
layernorm                                    1e-3
diff_pruning(sparsity=0.005,gate_rate=1000)  1e-4
lt_sft(sparsity=0.01)                        1e-4
top_layers(k=1)                              1e-4
full                                         1e-4
head                                         1e-3
compacter(size=24,n=4)                       1e-3
parallel(size=64)                            1e-4
prefix(length=30)                            3e-5
lt_sft(sparsity=0.01)                        3e-5
full                                         3e-5
head                                         3e-3
'

add_task() { # task, its folder, epochs
  local method rate data=$2
  need data "the task's train and dev file" folder
  while read -r method rate; do
    [ -n "$method" ] || continue
    add_run "$1/${method//[^a-z0-9_.]/-}-lr$rate" "$python" run_classifier.py \
      --task_name="$1" --data_dir="$2" --init_checkpoint="$BERT" \
      --tuning_method="$method" --learning_rate="$rate" \
      --num_train_epochs="$3" --compute_dtype=bfloat16 \
      --save_checkpoints_steps=200 --do_train=true --do_eval=true
  done <<< "$METHODS"
}

if [ "$task" != status ]; then
  need BERT 'the pretrained model, for --init_checkpoint' prefix
  [[ ${GLUE_DIR:-} != *://* ]] || refuse "GLUE_DIR is $GLUE_DIR, expected a folder of this machine, since a part of SST-2 is cut off"
  need GLUE_DIR 'the folder of MRPC, RTE, CoLA and SST-2' folder
  GLUE_DIR=$(absolute "$GLUE_DIR") BERT=$(absolute "$BERT")
  data=$GLUE_DIR/SST-2
  need data "the task's train and dev file" folder
  add_task MRPC "$GLUE_DIR/MRPC" 4
  add_task RTE "$GLUE_DIR/RTE" 2
  add_task CoLA "$GLUE_DIR/CoLA" 4
  "$internal/cut_training_set.sh" "$data" "$output/data/SST-2" 4000
  add_task SST-2 "$output/data/SST-2" 2
fi
run_grid
