#!/usr/bin/env bash
# Figure 5 of Houlsby et al. 2019: F1 on SQuAD's dev set over trained parameters.
#
#   BERT=... DATA=... scripts/paper/figure_5.sh OUT [--quick] [--preset=NAME] [OPTIONS] [-- FLAGS]
#
# DATA is the folder with TRAIN_FILE and PREDICT_FILE.
source "$(dirname "$0")/../internal/paper.sh"
open_study figure_5 'paper minilm quick' "$@"

METHODS='houlsby full top_layers' SEEDS='1 2 3' SIZES='2 8 64 256' LAYERS='1 2 3 5 7 9 11 12'
RATES='3e-5 1e-4 3e-4 1e-3' EPOCHS='3 10 20' FULL_RATES='3e-5 5e-5 1e-4' FULL_EPOCHS='2 3 5'
: "${TRAIN_FILE=train-v1.1.json}" "${PREDICT_FILE=dev-v1.1.json}"
if [ $preset != paper ]; then
  LAYERS='1 3 5' RATES='3e-4 1e-3' EPOCHS=2 FULL_RATES='5e-5 1e-4' FULL_EPOCHS=2
  # As in Table 1.
  run_flags+=(--adam_bias_correction)
fi
if [ $preset = quick ]; then
  SIZES=2 LAYERS=1 SEEDS='1 2' RATES=1e-3 EPOCHS=0.005 FULL_RATES=5e-5 FULL_EPOCHS=0.005
  run_flags+=(--max_seq_length=24 --max_query_length=10 --doc_stride=8 --max_eval_examples=8)
fi
for name in TRAIN_FILE PREDICT_FILE; do
  file=$DATA/${!name}
  need file "$name in DATA" file
done

link SQuAD "$DATA"
curves SQuAD
show_study
