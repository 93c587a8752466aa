#!/usr/bin/env bash
# Figure 7 of Houlsby et al. 2019 (appendix B): the best dev score at each
# learning rate, of adapters and full fine-tuning, with and without the
# correction of Adam's bias.
#
#   BERT=... DATA=... scripts/paper/figure_7.sh OUT [--quick] [--preset=NAME] [OPTIONS] [-- FLAGS]
source "$(dirname "$0")/../internal/paper.sh"
open_study figure_7 'paper two_cores quick' "$@"

TASKS='CoLA MRPC RTE STS-B' SIZES='8 64 256' EPOCHS='3 20' FULL_EPOCHS='3 20' SEEDS='1 2 3'
FULL_RATES='2e-5 5e-5 1e-4 3e-4 5e-4 1e-3' RATES=$FULL_RATES
case $preset in
  two_cores) TASKS='MRPC CoLA RTE STS-B' SIZES=64 EPOCHS=3 FULL_EPOCHS=3 RATES+=' 3e-3' ;;
  quick)
    TASKS=RTE SIZES=2 EPOCHS=0.2 FULL_EPOCHS=0.2 SEEDS='1 2' RATES='1e-4 1e-3' FULL_RATES=1e-4
    run_flags+=(--max_seq_length=24)
    ;;
esac

split_words TASKS
tasks=("${words[@]}")
own_flags=("${run_flags[@]}")
for name in "${tasks[@]}"; do
  link "$name" "$DATA/$name"
  run_flags=("${own_flags[@]}" --noadam_bias_correction)
  sweep TASKS="$name"
  run_flags=("${own_flags[@]}" --adam_bias_correction)
  sweep TASKS="$name" VARIANT=bias_correction
done
show_study
