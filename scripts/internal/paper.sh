# A table or figure of the paper, for the scripts of scripts/paper/:
#
#   open_study NAME PRESETS "$@"   reads OUT, --preset and the options of grids
#   prepare TASK FOLDER      divides the rows of a task into OUT/data
#   link TASK FOLDER         a task whose dev rows choose and are shown; the preset
#                            minilm has the first 5,000 rows of SST-2
#   sweep VARIABLES...       runs a part of the grid, as scripts/sweep_glue.sh
#                            names its axes; adds rows to OUT/NAME.json
#   repeat WANTED... -- VARIABLES...
#                            further seeds of what has the best dev score; with
#                            `each` of each method and size
#   curves TASK VARIABLES... the first seed of all, then the others of each
#                            method's and size's best
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
  results=$output/$study.json failed=0 run_flags=() grid=()
  # Not every processor is fast in bfloat16.
  [ "$preset" != quick ] || run_flags=(--compute_dtype=float32)
  METHODS='houlsby full' INIT_SCALES='' LAYERS='' BATCH=32 TASK_NAME='' VARIANT=''
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
  begun="--preset=$preset${flags[*]:+ ${flags[*]}} of commit $commit"
  [ ! -s "$output/begun" ] || [ "$(< "$output/begun")" = "$begun" ] ||
    refuse "$output was begun with $(< "$output/begun"), expected $begun; choose another OUT"
  collected=
}

prepare() { # task, its folder or file
  adapter_bert paper divide "$1" "$2" "$output/data/$1" 1
}

link() { # task, its folder or file
  if [ "$preset:$1" = minilm:SST-2 ]; then
    "$internal/cut_training_set.sh" "$2" "$output/data/$1" 5000
  else
    mkdir -p "$output/data"
    point "$output/data/$1" "$2"
  fi
}

# TASK_NAME is custom for tables that are no tasks of GLUE.
add_paper_run() { # name, flags ...
  local data=$output/data/$glue name=$glue${VARIANT:+~$VARIANT}/$1 predict=false
  shift
  if [ "$glue" = SQuAD ]; then
    add_run "$name" "$python" run_squad.py --train_file="$data/$TRAIN_FILE" \
      --predict_file="$data/$PREDICT_FILE" --init_checkpoint="$BERT" \
      --do_train=true --do_eval=true --predict_batch_size=32 \
      --compute_dtype=bfloat16 "${run_flags[@]}" "$@"
    return
  fi
  # Rows to report are predicted.
  [ ! -e "$data/report.tsv" ] || predict=true
  add_run "$name" "$python" run_classifier.py \
    --task_name="${TASK_NAME:-$glue}" --data_dir="$data" \
    --init_checkpoint="$BERT" --do_train=true --do_eval=true \
    --eval_batch_size=32 --predict_batch_size=32 --compute_dtype=bfloat16 \
    --do_predict=$predict "${run_flags[@]}" "$@"
}

add_rows() { # VARIABLE=VALUE ...
  local METHODS=$METHODS INIT_SCALES=$INIT_SCALES LAYERS=$LAYERS BATCH=$BATCH TASK_NAME=$TASK_NAME VARIANT=$VARIANT
  local glue words
  local "$@"
  split_words TASKS
  for glue in "${words[@]}"; do add_tunings add_paper_run; done
}

run_rows() {
  local missing
  [ ${#rows[@]} -gt 0 ] || return 0
  # What was finished when the last start was interrupted, or elsewhere.
  [ -n "$collected" ] || [ ! -d "$runs" ] || collect
  collected=1
  missing=$(printf '%s\n' "${rows[@]%%$'\t'*}" | adapter_bert paper missing "$results" "$commit")
  mapfile -t rows < <(printf '%s\n' "${rows[@]}" | awk -F '\t' -v names="$missing" \
    'BEGIN { split(names, list, "\n"); for (i in list) wanted[list[i]] } $1 in wanted')
  grid+=("${rows[@]}")
  [ ${#rows[@]} -gt 0 ] || return 0
  [ -s "$output/begun" ] || echo "$begun" > "$output/begun"
  [ "$task" = run ] || return 0
  run_grid || failed=1
  collect
}

sweep() { # VARIABLE=VALUE ...
  rows=()
  add_rows "$@"
  run_rows
}

collect() {
  adapter_bert paper collect "$results" "$output" "$commit"
}

repeat() { # task=TASK method=METHOD ... -- VARIABLE=VALUE of the sweep ...
  local wanted=() line setting settings
  while [ "$1" != -- ]; do wanted+=("$1") && shift; done
  # A grid that is only written has no scores yet.
  mapfile -t settings < <(adapter_bert paper best "$results" "${wanted[@]}")
  rows=()
  for line in "${settings[@]}"; do
    IFS=$'\t' read -ra setting <<< "$line"
    add_rows "${setting[@]}" "${@:2}"
  done
  run_rows
}

curves() { # task, VARIABLE=VALUE of its sweeps ...
  local first others
  read -r first others <<< "$SEEDS"
  sweep TASKS="$1" SEEDS="$first" "${@:2}"
  repeat each task="$1" -- SEEDS="$others"
}

curves_of_tasks() {
  split_words TASKS
  for name in "${words[@]}"; do
    link "$name" "$DATA/$name"
    curves "$name"
  done
}

show_study() {
  local shown=0
  if [ "$task" = grid ]; then
    [ ${#grid[@]} -gt 0 ] || refuse 'no run is missing; start this without --grid'
    # Several parts may ask for the same run.
    mapfile -t rows < <(printf '%s\n' "${grid[@]}" | awk '!seen[$0]++')
    run_grid
    echo 'When they are finished, start this again: --grid lists what is missing then.'
    exit
  fi
  adapter_bert paper show "$study" "$results" || shown=$?
  [ $failed = 0 ] || refuse "something failed, see above; what is shown lacks it. Start this again to go on"
  exit $shown
}
