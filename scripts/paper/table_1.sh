#!/usr/bin/env bash
# Table 1 of Houlsby et al. 2019: adapters and full fine-tuning on GLUE.
#
#   BERT=... DATA=... scripts/paper/table_1.sh OUT [--quick] [--preset=NAME] [OPTIONS] [-- FLAGS]
#
# Half of a task's dev rows choose size, rate and epochs by the first seed; the
# other half is reported with all seeds. (The paper chooses on dev and reports
# the server's scores of test.) Safe to interrupt and start again.
source "$(dirname "$0")/../internal/paper.sh"
open_study table_1 'paper two_cores quick' "$@"

case $preset in
  paper)
    TASKS='CoLA SST-2 MRPC STS-B QQP QNLI RTE' SIZES='8 64 256' SEEDS='1 2 3 4 5'
    RATES='3e-5 3e-4 3e-3' EPOCHS='3 20' FULL_RATES='2e-5 3e-5 5e-5' FULL_EPOCHS=3
    ;;
  two_cores)
    TASKS='RTE MRPC CoLA STS-B' SIZES='8 64' SEEDS='1 2 3'
    RATES='3e-4 1e-3' EPOCHS=5 FULL_RATES='2e-5 3e-5 5e-5' FULL_EPOCHS=3
    # Without it adapters of size 64 may learn nothing at 1e-3.
    run_flags+=(--adam_bias_correction)
    ;;
  quick)
    TASKS=RTE SIZES='2 4' SEEDS='1 2' RATES=1e-3 EPOCHS=0.2 FULL_RATES=5e-5 FULL_EPOCHS=0.2
    run_flags+=(--max_seq_length=24)
    ;;
esac

split_words TASKS
tasks=("${words[@]}")
for name in "${tasks[@]}"; do prepare "$name" "$DATA/$name"; done
read -r first others <<< "$SEEDS"
for name in "${tasks[@]}"; do
  sweep TASKS="$name" SEEDS="$first"
  if [ $preset = two_cores ]; then
    # One more rate where the highest is the best, then the largest size.
    for size in $SIZES; do
      best=$(adapter_bert paper best "$results" task="$name" method=houlsby size="$size")
      if [[ $best == *$'\t'RATES=1e-3$'\t'* ]]; then
        sweep TASKS="$name" SEEDS="$first" METHODS=houlsby SIZES="$size" RATES=3e-3
      fi
    done
    repeat task="$name" method=houlsby size=64 -- SIZES=256 SEEDS="$first"
  fi
  for wanted in method=houlsby method=full 'method=houlsby size=64'; do
    # Two words, or one.
    # shellcheck disable=SC2086
    repeat task="$name" $wanted -- SEEDS="$others"
  done
done
show_study
