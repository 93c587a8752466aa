#!/usr/bin/env bash
# Takes the trained adapters of each span of layers out of a run and evaluates
# it again, without training (Houlsby et al. 2019, section 3.6):
#
#   RUN=... scripts/ablate.sh OUTPUT_DIR [OPTIONS] -- FLAGS
#
# RUN is the run's folder; BERT is its BERT, if that lies elsewhere by now. FLAGS
# are those of its evaluation, as --task_name and --data_dir.
# `.venv/bin/adapter-bert plot OUTPUT_DIR --output_dir=OUT` draws the result. A
# BERT of L layers has L (L + 1) / 2 + 1 evaluations.
# PROGRAM=run_squad.py is for question answering, PROGRAM=run_tagger.py for
# tagging.
source "$(dirname "$0")/internal/grid.sh"
: "${PROGRAM=run_classifier.py}"
open_grid 'usage: RUN=FOLDER scripts/ablate.sh OUTPUT_DIR [OPTIONS] -- FLAGS OF THE EVALUATION' "$@"
if [ "$task" != status ]; then
  need RUN 'the output folder of a training'
  RUN=$(realpath "$RUN")
  bert=${BERT:+$(absolute "$BERT")}
  cd "$project"
  # Where the BERT lies, then a line for each artifact: its name.
  printed=$(adapter_bert ablate "$RUN" "$output" ${bert:+"$bert"})
  base=$(head -n 1 <<< "$printed")
  names=$(tail -n +2 <<< "$printed")
  for name in $names; do
    add_run "$name" "$python" "$PROGRAM" --init_checkpoint="$base" \
      --adapter="$output/adapters/$name" --do_eval=true
  done
fi
run_grid
