#!/usr/bin/env bash
# Trains what the README's table of question answering shows: adapters of size
# 2 and 64 against full fine-tuning, on files in SQuAD's layout.
#
#   scripts/readme_squad_results.sh SQUAD_DIR PRETRAINED_BERT OUTPUT_DIR
#
# SQUAD_DIR holds train-v1.1-subset.json and train-v2.0-subset.json, ten articles
# of SQuAD's training files, and xquad-en-v1.1.json, English XQuAD. Of the 2.0
# file two articles are held out for evaluation. The learning rate of each method
# is chosen from those listed here, by F1 after one epoch of SQuAD 1.1.
#
# Safe to interrupt and start again: finished runs are only evaluated, a run that
# was cut off goes on.
set -euo pipefail
squad=$(realpath "$1") bert=$(realpath "$2") out=$(realpath -m "$3")
cd "$(dirname "$0")/.."
python=${PYTHON:-.venv/bin/python}

rates() { case $1 in full) echo "5e-5 1e-4 2e-4" ;; *) echo "3e-4 1e-3" ;; esac; }

train() { # name, method, learning rate, epochs, flags ...
  local name=$1 method=$2 rate=$3 epochs=$4
  shift 4
  "$python" run_squad.py --do_train=true --do_eval=true --do_predict=true \
    --init_checkpoint="$bert" --tuning_method="$method" \
    --learning_rate="$rate" --num_train_epochs="$epochs" \
    --train_batch_size=16 --predict_batch_size=32 \
    --save_checkpoints_steps=200 --output_dir="$out/$name" "$@"
}

version_1=(--train_file="$squad/train-v1.1-subset.json"
  --predict_file="$squad/xquad-en-v1.1.json")
for method in 'houlsby(size=64)' full; do
  for rate in $(rates "$method"); do
    train "rates/$method-$rate" "$method" "$rate" 1 "${version_1[@]}"
  done
done

best() { # method: the learning rate with the best F1 after one epoch
  for rate in $(rates "$1"); do
    score=$(sed -n 's/^eval_f1 = //p' "$out/rates/$1-$rate/eval_results.txt")
    echo "$score $rate"
  done | sort -g | tail -n 1 | cut -d ' ' -f 2
}
adapters=$(best 'houlsby(size=64)') full=$(best full)

for size in 64 2; do
  train "v1.1/houlsby(size=$size)" "houlsby(size=$size)" "$adapters" 3 \
    "${version_1[@]}"
done
train v1.1/full full "$full" 3 "${version_1[@]}"

mkdir -p "$out/v2.0-data"
"$python" - "$squad/train-v2.0-subset.json" "$out/v2.0-data" << 'PYTHON'
import json, sys
source, folder = sys.argv[1:]
with open(source) as file:
    content = json.load(file)
held_out = ("The_Legend_of_Zelda:_Twilight_Princess", "To_Kill_a_Mockingbird")
for name, wanted in (("dev", True), ("train", False)):
    part = [a for a in content["data"] if (a["title"] in held_out) == wanted]
    with open(f"{folder}/{name}.json", "w") as file:
        json.dump({"version": "v2.0", "data": part}, file)
PYTHON
version_2=(--version_2_with_negative=true
  --train_file="$out/v2.0-data/train.json"
  --predict_file="$out/v2.0-data/dev.json")
train 'v2.0/houlsby(size=64)' 'houlsby(size=64)' "$adapters" 3 "${version_2[@]}"

grep -H -E 'exact|f1' "$out"/*/*/eval_results.txt
