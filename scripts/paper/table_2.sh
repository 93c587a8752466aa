#!/usr/bin/env bash
# Table 2 of Houlsby et al. 2019: further classification tasks, with no BERT,
# full fine-tuning, the top layers alone ("variable") and adapters.
#
#   BERT=... DATA=... scripts/paper/table_2.sh OUT [--quick] [--preset=NAME] [OPTIONS] [-- FLAGS]
#
# DATA has a folder with train.tsv, dev.tsv and test.tsv for each task, columns
# `text` and `label`, or sms_spam.tsv, label and text, to be cut 80/10/10. The
# first seed and the dev rows choose; the test rows are reported with all seeds.
source "$(dirname "$0")/../internal/paper.sh"
open_study table_2 'paper two_cores minilm quick' "$@"

RATES='1e-5 3e-5 1e-4 3e-3' FULL_RATES='1e-5 3e-5 1e-4 3e-3' SEEDS='1 2 3 4 5'
SIZES='2 4 8 16 32 64' LAYERS='1 2 3 5 7 9 11 12' EPOCHS='20 50 100' FULL_EPOCHS='20 50 100'
TASKS='corporate_messaging global_warming political_bias primary_emotions disasters sms_spam emotion'
if [ $preset != paper ]; then
  RATES='3e-4 1e-3' FULL_RATES='3e-5 1e-4' SIZES='4 64' LAYERS='1 3 6 9' SEEDS='1 2 3'
  # As in Table 1.
  run_flags+=(--adam_bias_correction)
fi
case $preset in
  two_cores) TASKS=${TASKS% *} ;;
  minilm) TASKS=emotion LAYERS='1 2 3 5' ;;
  quick)
    TASKS=primary_emotions SIZES=4 RATES=1e-3 FULL_RATES=1e-4 LAYERS=1 SEEDS='1 2'
    run_flags+=(--max_seq_length=16)
    ;;
esac

epochs_of() { # task; such that a run on two cores takes at most 8 minutes
  case $preset:$1 in
    two_cores:primary_emotions | two_cores:corporate_messaging) echo 6 ;;
    two_cores:global_warming) echo 4 ;;
    two_cores:disasters | two_cores:sms_spam) echo 2 ;;
    two_cores:*) echo 3 ;;
    minilm:*) echo 2 ;;
    quick:*) echo 0.2 ;;
    *) echo "$EPOCHS" ;;
  esac
}

split_words TASKS
tasks=("${words[@]}")
for name in "${tasks[@]}"; do
  folder=$DATA/$name
  [ -d "$folder" ] || folder+=.tsv
  prepare "$name" "$folder"
done
read -r first others <<< "$SEEDS"
for name in "${tasks[@]}"; do
  EPOCHS=$(epochs_of "$name") FULL_EPOCHS=$EPOCHS
  if [ "$task" = run ] && ! grep -qsF "\"$name/no BERT\"" "$results"; then
    adapter_bert baseline --task_name=custom \
      --eval_file="$output/data/$name/report.tsv" --train_file="$output/data/$name/train.tsv" \
      --output_dir="$output/no_bert/$name"
    collect
  fi
  sweep TASK_NAME=custom TASKS="$name" SEEDS="$first" METHODS='houlsby full top_layers'
  for method in houlsby full top_layers; do
    repeat task="$name" method=$method -- TASK_NAME=custom SEEDS="$others"
  done
done
show_study
