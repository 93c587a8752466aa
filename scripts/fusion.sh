#!/usr/bin/env bash
# Runs what results/compositions.md reports of AdapterFusion (Pfeiffer et al. 2021):
# adapters of seven tasks, a library of them, fusions of all of them for two of
# the tasks, and the figure of what these attend to.
#
#   BERT=... GLUE_DIR=... SPAM=... REVIEWS=... scripts/fusion.sh OUTPUT_DIR [OPTIONS] [-- FLAGS]
#
# Safe to interrupt and start again at any moment. SPAM and REVIEWS name the SMS
# spam collection and rotten tomatoes' training file (label, text), without
# headers.
source "$(dirname "$0")/internal/grid.sh"
open_grid 'usage: BERT=PRETRAINED_MODEL GLUE_DIR=FOLDER_OF_TASKS SPAM=FILE REVIEWS=FILE scripts/fusion.sh OUTPUT_DIR [OPTIONS] [-- FLAGS]' "$@"
open_sweeps MRPC RTE CoLA STS-B SST-2
need SPAM 'a file of label, tab, text' file
need REVIEWS 'a file of label, tab, text' file

sweep() { # name, tasks, epochs, rates, seeds, method, flags of all runs ...
  TASKS=$2 EPOCHS=$3 RATES=$4 SEEDS=$5 METHODS=$6 SIZES=48 BATCH=32 \
    INIT_SCALES='' GLUE_DIR=$out/data \
    "$project/scripts/sweep_glue.sh" "$out/$1" "${how[@]}" \
    -- --compute_dtype=bfloat16 "${@:7}" "${flags[@]}"
}

own() { # name
  sweep "$1" "$1" 3 1e-3 1 pfeiffer --task_name=custom --header=false \
    --label_column=0 --text_a_column=1 --dev_share=0.1
}

adapters() { # options of the sweeps ...
  how=("$@")
  # Of MRPC and RTE these were the better of 3e-4 and 1e-3 after five epochs.
  sweep mrpc MRPC 5 1e-3 '1 2 3' pfeiffer
  sweep rte RTE 5 3e-4 '1 2 3' pfeiffer
  # At 1e-3 these two had learned nothing after three epochs.
  sweep cola 'CoLA STS-B' 5 3e-4 1 pfeiffer
  sweep sst2 SST-2 3 1e-3 1 pfeiffer
  own spam
  own reviews
}

library=$out/library
fusions() { # options of the sweep ...
  how=("$@")
  # The rate that Pfeiffer et al. 2021 found best (section 4.1).
  sweep fusion 'MRPC RTE' 5 5e-5 '1 2 3' \
    'fusion(mrpc,rte,cola,stsb,sst2,spam,reviews)' --library="$library"
}

mkdir -p "$out/data/spam" "$out/data/reviews"
for name in MRPC RTE CoLA STS-B; do point "$out/data/$name" "$GLUE_DIR/$name"; done
point "$out/data/spam/train.tsv" "$SPAM"
point "$out/data/reviews/train.tsv" "$REVIEWS"
"$internal/cut_training_set.sh" "$GLUE_DIR/SST-2" "$out/data/SST-2" 5000

if [ "$task" = grid ]; then
  adapters --grid
  fusions --grid
  exit
fi
# All grids first, so that what they refuse is said before any long work.
adapters --grid > /dev/null
fusions --grid > /dev/null
adapters --jobs "$jobs"
for run in "$out"/*/runs/*/pfeiffer48-*-seed1; do
  name=$(basename "$(dirname "$run")")
  name=${name,,} name=${name//-/}
  [ ! -d "$library/$name" ] || continue
  adapter_bert library add "$library" "$run" --name="$name"
done
fusions --jobs "$jobs"
cd "$project"
adapter_bert summarize "$out" --output_dir="$out/summary"
adapter_bert plot_fusion "$out" --output_dir="$out/figures"
