#!/usr/bin/env bash
# Figure 1 of Houlsby et al. 2019: points against full fine-tuning over trained
# parameters, percentiles over the tasks of GLUE, of adapters and top layers.
#
#   BERT=... DATA=... scripts/paper/figure_1.sh OUT [--quick] [--preset=NAME] [OPTIONS] [-- FLAGS]
source "$(dirname "$0")/../internal/paper.sh"
open_study figure_1 'paper minilm quick' "$@"

METHODS='houlsby top_layers full' SEEDS='1 2 3 4 5' RATES='3e-5 3e-4 3e-3' EPOCHS='3 20'
FULL_RATES='2e-5 3e-5 5e-5' FULL_EPOCHS=3 SIZES='2 4 8 16 32 64 128 256' LAYERS='1 2 3 5 7 9 11 12'
TASKS='CoLA SST-2 MRPC STS-B QQP MNLI QNLI RTE'
if [ $preset != paper ]; then
  TASKS='RTE MRPC CoLA STS-B' SIZES='2 8 64 256' LAYERS='1 2 3 5' SEEDS='1 2 3'
  RATES='3e-4 1e-3' EPOCHS=3 FULL_RATES='5e-5 1e-4'
  # As in Table 1.
  run_flags+=(--adam_bias_correction)
fi
if [ $preset = quick ]; then
  TASKS=RTE SIZES=2 LAYERS=1 SEEDS='1 2' RATES=1e-3 EPOCHS=0.2 FULL_RATES=5e-5 FULL_EPOCHS=0.2
  run_flags+=(--max_seq_length=24)
fi

curves_of_tasks
show_study
