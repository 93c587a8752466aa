# A table or figure of the paper, for the scripts of scripts/paper/:
#
#   open_study NAME PRESETS "$@"   reads OUT, --preset and the options of grids
#   prepare TASK...          divides the rows of tasks into OUT/data
#   sweep VARIABLES...       runs a part of the grid, as scripts/sweep_glue.sh
#                            names its axes; adds rows to OUT/NAME.json
#   repeat VARIABLES...      further seeds of what has the best dev score
#   show_study               prints the table, draws the figure
#
# Rows that OUT/NAME.json holds are not run again: copy it from results/paper to
# go on where they end.
source "$(dirname "${BASH_SOURCE[0]}")/grid.sh"

open_study() { # name, its presets between blanks, arguments ...
  local words=() presets=$2
  study=$1 preset=paper
  shift 2
  while [ $# -gt 0 ]; do
    case $1 in
      --quick) preset=quick ;;
      --preset=*) preset=${1#*=} ;;
      --) break ;;
      *) words+=("$1") ;;
    esac
    shift
  done
  [[ " $presets " == *" $preset "* ]] || refuse "--preset=$preset, expected one of: $presets"
  open_grid "usage: BERT=PRETRAINED_MODEL DATA=FOLDER_OF_TASKS scripts/paper/$study.sh OUT [--quick] [--preset=NAME] [OPTIONS] [-- FLAGS]
  --preset=NAME  one of: $presets" "${words[@]}" "$@"
  results=$output/$study.json failed=0
  commit=$(git -C "$project" describe --always --abbrev=40 --dirty 2> /dev/null) || commit=unknown
  if [ "$task" = status ]; then
    grid_status "$output"
    exit
  fi
  need BERT 'the pretrained model, for --init_checkpoint' prefix
  need DATA 'the folder of the tasks, DATA/MRPC and so on' folder
  BERT=$(absolute "$BERT") DATA=$(absolute "$DATA")
  # Before any long work.
  adapter_bert paper missing "$results" "$commit" < /dev/null > /dev/null
}

prepare() { # task, its folder or file
  adapter_bert paper divide "$1" "$2" "$output/data/$1" 1
}

# TASK_NAME is custom for tables that are no tasks of GLUE.
add_paper_run() { # name, flags ...
  add_run "$glue${VARIANT:+~$VARIANT}/$1" "$python" run_classifier.py \
    --task_name="${TASK_NAME:-$glue}" --data_dir="$output/data/$glue" \
    --init_checkpoint="$BERT" --do_train=true --do_eval=true \
    --eval_batch_size=32 --predict_batch_size=32 --compute_dtype=bfloat16 \
    "${run_flags[@]}" "${@:2}"
}

run_flags=(--do_predict=true)

sweep() { # VARIABLE=VALUE ...
  local METHODS='houlsby full' INIT_SCALES='' LAYERS='' BATCH=32 TASK_NAME='' VARIANT='' glue words missing
  local "$@"
  rows=()
  split_words TASKS
  for glue in "${words[@]}"; do add_tunings add_paper_run; done
  missing=$(printf '%s\n' "${rows[@]%%$'\t'*}" | adapter_bert paper missing "$results" "$commit")
  mapfile -t rows < <(printf '%s\n' "${rows[@]}" | awk -F '\t' -v names="$missing" \
    'BEGIN { split(names, list, "\n"); for (i in list) wanted[list[i]] } $1 in wanted')
  [ ${#rows[@]} -gt 0 ] || return 0
  run_grid || failed=1
  [ "$task" = grid ] || collect
}

collect() {
  adapter_bert paper collect "$results" "$output" "$commit"
}

repeat() { # task=TASK method=METHOD ... -- VARIABLE=VALUE of the sweep ...
  local wanted=() setting
  while [ "$1" != -- ]; do wanted+=("$1") && shift; done
  mapfile -t setting < <(adapter_bert paper best "$results" "${wanted[@]}")
  # A grid that is only written has no scores yet.
  [ ${#setting[@]} = 0 ] || sweep "${setting[@]}" "${@:2}"
}

show_study() {
  [ "$task" = grid ] || adapter_bert paper show "$study" "$results"
  exit $failed
}
