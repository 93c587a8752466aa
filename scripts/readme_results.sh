#!/usr/bin/env bash
# Trains what the README's table of results shows: adapters of size 64 against
# full fine-tuning on MRPC, CoLA, RTE and a part of SST-2.
#
#   scripts/readme_results.sh GLUE_DIR PRETRAINED_BERT OUTPUT_DIR
#
# Safe to interrupt and start again: finished runs are only evaluated, a run
# that was cut off goes on. The learning rate of each method is chosen, on the
# dev set with seed 1, from the two that are listed here. RTE and SST-2 take
# the rates chosen on MRPC.
set -euo pipefail
glue=$(realpath "$1") bert=$(realpath "$2") out=$(realpath -m "$3")
cd "$(dirname "$0")/.."
python=${PYTHON:-.venv/bin/python}

rates() { case $1 in houlsby) echo "3e-4 1e-3" ;; full) echo "5e-5 2e-4" ;; esac; }

train() { # data folder, task, epochs, method, learning rate, seed
  "$python" run_classifier.py --task_name="$2" --data_dir="$1" \
    --init_checkpoint="$bert" --do_train=true --do_eval=true \
    --tuning_method="$4" --learning_rate="$5" --num_train_epochs="$3" \
    --save_checkpoints_steps=200 --seed="$6" --length_pool_batches=50 \
    --output_dir="$out/$2/$4-$5-seed$6"
}

best() { # task, method, score: the learning rate of the best run with seed 1
  for rate in $(rates "$2"); do
    score=$(sed -n "s/^eval_$3 = //p" "$out/$1/$2-$rate-seed1/eval_results.txt")
    echo "$score $rate"
  done | sort -g | tail -n 1 | cut -d ' ' -f 2
}

for method in houlsby full; do
  for rate in $(rates $method); do
    train "$glue/MRPC" mrpc 4 $method "$rate" 1
  done
done
for method in houlsby full; do
  for rate in $(rates $method); do
    train "$glue/CoLA" cola 3 $method "$rate" 1
  done
done
mkdir -p "$out/sst-2-data"
head -n 10001 "$glue/SST-2/train.tsv" > "$out/sst-2-data/train.tsv"
cp "$glue/SST-2/dev.tsv" "$out/sst-2-data/dev.tsv"
for method in houlsby full; do
  rate=$(best mrpc $method accuracy)
  train "$out/sst-2-data" sst-2 2 $method "$rate" 1
  train "$glue/RTE" rte 3 $method "$rate" 1
done
for seed in 2 3; do
  for method in houlsby full; do
    train "$glue/MRPC" mrpc 4 $method "$(best mrpc $method accuracy)" $seed
  done
done

printf 'run\taccuracy or Matthews\tF1\n'
for results in "$out"/*/*/eval_results.txt; do
  score() { sed -n "s/^eval_$1 = //p" "$results"; }
  main=$(score matthews_correlation)
  run=${results#"$out"/}
  printf '%s\t%s\t%s\n' "${run%/eval_results.txt}" "${main:-$(score accuracy)}" "$(score f1)"
done
