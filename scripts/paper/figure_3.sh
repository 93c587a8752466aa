#!/usr/bin/env bash
# Figure 3 of Houlsby et al. 2019: as Figure 1, of GLUE and of Table 2's tasks.
#
#   BERT=... DATA=... scripts/paper/figure_3.sh OUT [--quick] [--preset=NAME] [OPTIONS] [-- FLAGS]
#
# DATA has folders as for table_1.sh and table_2.sh, side by side.
source "$(dirname "$0")/../internal/paper.sh"
open_study figure_3 'paper minilm quick' "$@"

METHODS='houlsby top_layers full' SEEDS='1 2 3 4 5' LAYERS='1 2 3 5 7 9 11 12'
TASKS='CoLA SST-2 MRPC STS-B QQP MNLI QNLI RTE' SIZES='2 4 8 16 32 64 128 256'
RATES='3e-5 3e-4 3e-3' EPOCHS='3 20' FULL_RATES='2e-5 3e-5 5e-5' FULL_EPOCHS=3
OTHERS='corporate_messaging global_warming political_bias primary_emotions disasters sms_spam emotion'
OTHER_RATES='1e-5 3e-5 1e-4 3e-3' OTHER_EPOCHS='20 50 100'
if [ $preset != paper ]; then
  TASKS='RTE MRPC CoLA STS-B' SIZES='2 8 64 256' LAYERS='1 2 3 5' SEEDS='1 2 3'
  RATES='3e-4 1e-3' EPOCHS=3 FULL_RATES='5e-5 1e-4'
  OTHERS=${OTHERS% *} OTHER_RATES= OTHER_EPOCHS=3
  # As in Table 1.
  run_flags+=(--adam_bias_correction)
fi
if [ $preset = quick ]; then
  TASKS=RTE OTHERS=primary_emotions SIZES=2 LAYERS=1 SEEDS='1 2' RATES=1e-3 FULL_RATES=5e-5
  EPOCHS=0.1 FULL_EPOCHS=0.1 OTHER_EPOCHS=0.1
  run_flags+=(--max_seq_length=24)
fi

curves_of_tasks
RATES=${OTHER_RATES:-$RATES} FULL_RATES=${OTHER_RATES:-$FULL_RATES}
EPOCHS=$OTHER_EPOCHS FULL_EPOCHS=$OTHER_EPOCHS TASK_NAME=custom
split_words OTHERS
for name in "${words[@]}"; do
  folder=$DATA/$name
  [ -d "$folder" ] || folder+=.tsv
  prepare "$name" "$folder"
  curves "$name"
done
show_study
