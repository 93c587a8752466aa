#!/usr/bin/env bash
# Figure 6 of Houlsby et al. 2019: what is lost without the trained adapters of each
# span of layers (left, middle), and scores by the deviation of first values (right).
#
#   BERT=... DATA=... scripts/paper/figure_6.sh OUT [--quick] [--preset=NAME] [OPTIONS] [-- FLAGS]
source "$(dirname "$0")/../internal/paper.sh"
open_study figure_6 'paper minilm quick' "$@"

METHODS=houlsby SIZES=64 SEEDS='1 2 3' TASKS='MNLI CoLA' INIT_SCALES='1e-7 1e-6 1e-5 1e-4 1e-3 1e-2 1e-1 1'
RATES='3e-5 3e-4 3e-3' EPOCHS='3 20'
if [ $preset != paper ]; then
  TASKS=SST-2 RATES=1e-3 EPOCHS=3 INIT_SCALES='1e-5 1e-4 1e-3 1e-2 1e-1 1'
  # As in Table 1.
  run_flags+=(--adam_bias_correction)
fi
if [ $preset = quick ]; then
  TASKS=RTE SIZES=2 SEEDS='1 2' EPOCHS=0.1 INIT_SCALES='1e-2 1'
  run_flags+=(--max_seq_length=24 --max_eval_examples=16)
fi

split_words TASKS
tasks=("${words[@]}")
curves_of_tasks
[ "$task" = run ] || show_study
# Of each seed of the best setting, unless its run is in another OUT.
[ $preset != quick ] || SEEDS=1
for name in "${tasks[@]}"; do
  IFS=$'\t' read -ra setting < <(adapter_bert paper best "$results" task="$name" scale=1e-2) || continue
  declare "${setting[@]}"
  for seed in $SEEDS; do
    run=$name/houlsby$SIZES-scale1e-2-lr$RATES-epochs$EPOCHS-seed$seed
    [ -f "$runs/$run/done" ] || continue
    RUN=$runs/$run "$project/scripts/ablate.sh" "$output/ablation/$run" --jobs "$jobs" \
      -- --task_name="$name" --data_dir="$output/data/$name" --eval_batch_size=32 \
      "${run_flags[@]}" "${flags[@]}" || failed=1
  done
done
show_study
