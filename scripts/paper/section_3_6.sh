#!/usr/bin/env bash
# Section 3.6 of Houlsby et al. 2019: scores of each size of adapters, and of other
# adapters than the paper's.
#
#   BERT=... DATA=... scripts/paper/section_3_6.sh OUT [--quick] [--preset=NAME] [OPTIONS] [-- FLAGS]
source "$(dirname "$0")/../internal/paper.sh"
open_study section_3_6 'paper minilm quick' "$@"

METHODS=houlsby SIZES='8 64 256' SEEDS='1 2 3 4 5' RATES='3e-5 3e-4 3e-3' EPOCHS='3 20'
TASKS='CoLA SST-2 MRPC STS-B QQP MNLI QNLI RTE' VARIED=$TASKS
# Those that the paper names and this program has.
VARIANTS='houlsby(size=64,layer_norm=True) houlsby(size=64,depth=2)'
VARIANTS+=' houlsby(size=64,nonlinearity=tanh) houlsby(size=64,sites=attention) parallel(size=64)'
if [ $preset != paper ]; then
  TASKS='MRPC CoLA RTE STS-B SST-2' VARIED='MRPC CoLA RTE' SIZES=8 SEEDS='1 2 3' RATES='3e-4 1e-3' EPOCHS=3
  # As in Table 1.
  run_flags+=(--adam_bias_correction)
fi
if [ $preset = quick ]; then
  TASKS=RTE VARIED=RTE SIZES=2 SEEDS='1 2' RATES=1e-3 EPOCHS=0.2 VARIANTS='houlsby(size=2,depth=2)'
  run_flags+=(--max_seq_length=24)
fi

split_words TASKS
for name in "${words[@]}"; do
  sizes=$SIZES others=
  if [[ " $VARIED " == *" $name "* ]]; then others=$VARIANTS; fi
  # What the variants are compared with.
  if [ $preset = minilm ] && [ -n "$others" ]; then sizes+=' 64'; fi
  link "$name" "$DATA/$name"
  curves "$name" METHODS="houlsby $others" SIZES="$sizes"
done
show_study
