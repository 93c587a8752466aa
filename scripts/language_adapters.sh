#!/usr/bin/env bash
# Runs what results/compositions.md reports of language adapters: MAD-X (Pfeiffer et
# al. 2020) and LT-SFT (Ansell et al. 2022) between two languages. Adapters of
# both languages are trained on raw text, one that tags entities on the first
# language's; then it is scored on the second language with either.
#
#   BERT=... FIRST_TEXT=... SECOND_TEXT=... FIRST_NER=... SECOND_NER=... MAP_TAGS=... scripts/language_adapters.sh OUTPUT_DIR [OPTIONS] [-- FLAGS]
#
# FIRST_TEXT and SECOND_TEXT are files of a sentence a line; FIRST_NER and
# SECOND_NER folders of train.conll, dev.conll and test.conll; MAP_TAGS a file of
# the first's entity types as the second's (--map_tags). Safe to interrupt and
# start again at any moment.
source "$(dirname "$0")/internal/grid.sh"
open_grid 'usage: BERT=PRETRAINED_MODEL FIRST_TEXT=FILE SECOND_TEXT=FILE FIRST_NER=FOLDER SECOND_NER=FOLDER MAP_TAGS=FILE scripts/language_adapters.sh OUTPUT_DIR [OPTIONS] [-- FLAGS]' "$@"
out=$output

start() { # name of a grid
  output=$out/$1 runs=$out/$1/runs rows=()
}

if [ "$task" = status ]; then
  for name in languages tagging transfer; do
    [ -f "$out/$name/grid.tsv" ] || refuse "$out has no grid $name; start it first"
    echo "== $name"
    grid_status "$out/$name"
  done
  exit
fi

need BERT 'the pretrained model, for --init_checkpoint' prefix
need FIRST_TEXT 'sentences of the first language' file
need SECOND_TEXT 'sentences of the second language' file
need FIRST_NER 'tagged words of the first language' folder
need SECOND_NER 'tagged words of the second language' folder
need MAP_TAGS 'the types of entities in both, for --map_tags' file
BERT=$(absolute "$BERT") MAP_TAGS=$(realpath "$MAP_TAGS")
FIRST_NER=$(realpath "$FIRST_NER") SECOND_NER=$(realpath "$SECOND_NER")

# A half and a quarter of the hidden size of MiniLM, as published.
MAD_X='mad_x(size=192,inverse_size=96)'
SPARSE='lt_sft(sparsity=0.05)'
library=$out/library

tag() { # name, tuning method, learning rate, epochs, data, flags ...
  add_run "$1" "$python" run_tagger.py --data_dir="$5" \
    --init_checkpoint="$BERT" --library="$library" --tuning_method="$2" \
    --learning_rate="$3" --num_train_epochs="$4" --map_tags="$MAP_TAGS" \
    --compute_dtype=bfloat16 --eval_batch_size=32 --do_train=true --do_eval=true "${@:6}"
}

transfer() { # name, tagging run, flags ...
  add_run "$1" "$python" run_tagger.py --data_dir="$out/data/second" \
    --init_checkpoint="$BERT" --library="$library" \
    --adapter="$out/tagging/runs/$2/adapter" --map_tags="$MAP_TAGS" \
    --compute_dtype=bfloat16 \
    --eval_batch_size=32 --do_eval=true "${@:3}"
}

languages() {
  local language file
  start languages
  for language in first second; do
    file=${language^^}_TEXT
    file=$(realpath "${!file}")
    mlm "$language-mad_x" "$file" "$MAD_X" 1e-3
    mlm "$language-lt_sft" "$file" "$SPARSE" 1e-4
  done
  run_grid
}

mlm() { # name, text, tuning method, learning rate
  add_run "$1" "$python" run_mlm.py --train_file="$2" --init_checkpoint="$BERT" \
    --tuning_method="$3" --learning_rate="$4" --num_train_epochs=2 \
    --compute_dtype=bfloat16 --train_batch_size=32 --do_train=true
}

tagging() {
  start tagging
  # After three epochs at 3e-4 small adapters had tagged little or nothing.
  local small=--adam_bias_correction=true
  tag none-pfeiffer 'pfeiffer(size=48)' 1e-3 10 "$FIRST_NER" "$small"
  tag none-lt_sft "$SPARSE" 1e-4 3 "$FIRST_NER"
  tag first-mad_x "stack('first-mad_x',pfeiffer(size=48))" 1e-3 10 "$FIRST_NER" "$small"
  tag first-lt_sft "stack('first-lt_sft',$SPARSE)" 1e-4 3 "$FIRST_NER"
  # What there is to learn from the second language itself.
  tag second-pfeiffer 'pfeiffer(size=48)' 1e-3 10 "$SECOND_NER" "$small"
  run_grid
}

transfers() {
  start transfer
  local run
  for run in none-pfeiffer none-lt_sft first-mad_x first-lt_sft second-pfeiffer; do
    transfer "$run" "$run"
  done
  for run in mad_x lt_sft; do
    transfer "exchanged-$run" "first-$run" --exchange_part="first-$run=second-$run"
  done
  run_grid
}

# The test set of the second language, in the place of a dev set.
mkdir -p "$out/data/second"
point "$out/data/second/dev.conll" "$SECOND_NER/test.conll"
# What all grids refuse is said before any long work.
(task=grid && languages && tagging && transfers) > /dev/null
languages
if [ "$task" = run ]; then
  for run in "$out"/languages/runs/*; do
    name=$(basename "$run")
    [ ! -d "$library/$name" ] || continue
    adapter_bert library add "$library" "$run" --name="$name"
  done
fi
tagging
transfers
if [ "$task" = run ]; then
  printf '%s\t%s\n' run f1 > "$out/transfer.tsv.new"
  for run in "$out"/transfer/runs/*; do
    f1=$(sed -n 's/^eval_f1 = //p' "$run/eval_results.txt")
    printf '%s\t%s\n' "$(basename "$run")" "$f1" >> "$out/transfer.tsv.new"
  done
  mv "$out/transfer.tsv.new" "$out/transfer.tsv"
  cat "$out/transfer.tsv"
fi
