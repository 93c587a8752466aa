# A grid of runs, for the scripts that source this file:
#
#   open_grid USAGE "$@"     reads OUTPUT_DIR and options
#   add_run NAME COMMAND...  a run; its folder is $runs/NAME
#   add_tunings ADD          calls ADD NAME FLAGS... for every tuning of the axes
#   run_grid                 writes OUTPUT_DIR/grid.tsv and does what is asked
#   grid_status OUTPUT_DIR   shows the states of a grid's runs
#   open_sweeps TASK...      for several sweeps of GLUE's tasks: sets `out`, looks
#                            for BERT and the tasks, or shows the sweeps' states
#
#   absolute PATH            the path from the root
#   point LINK PATH          makes a link, unless it leads elsewhere already
#   split_words VARIABLE     its words as the array `words`; quotes hold one together
#   need VARIABLE WHAT [file|folder|prefix]   refuses if it is not set, or there
#                            is no such file or folder, or none that begins so
#
# grid.tsv has a row for each run, between tabs its name, its command line, and
# what of that tells runs apart: all but where the interpreter and OUTPUT_DIR are.
set -euo pipefail
if ((BASH_VERSINFO[0] * 100 + BASH_VERSINFO[1] < 404)); then
  echo "error: bash 4.4 or newer is needed, found $BASH_VERSION" >&2
  exit 1
fi
internal=$(dirname "$(realpath "${BASH_SOURCE[0]}")")
project=$(realpath "$internal/../..")
python=${PYTHON:-$project/.venv/bin/python}
# Rows are run in the project's folder.
case $python in */*) python=$(realpath -sm "$python") ;; esac

# Options of every script that runs a grid.
GRID_OPTIONS='  --jobs N    N runs at a time, each on its share of the cores (default 1)
  --grid      only write OUTPUT_DIR/grid.tsv, with a command line on each row
  --status    show which runs are finished, running, failed and waiting
  -- FLAGS    flags for every run'

# Flags of a row that those after -- may replace, for all runs alike. The others
# tell runs apart.
REPLACEABLE=' --task_name --init_checkpoint --eval_batch_size --predict_batch_size --save_checkpoints_steps --compute_dtype --do_predict --nodo_predict '

adapter_bert() { # arguments of adapter-bert ...
  PYTHONPATH=$project "$python" -m adapter_bert "$@"
}

refuse() { # message
  printf 'error: %s\n' "$1" >&2
  exit 1
}

open_grid() { # usage, arguments ...
  local usage=$1
  shift
  task=run jobs=1 flags=() output=
  while [ $# -gt 0 ]; do
    case $1 in
      --jobs)
        jobs=${2:-}
        if ! [[ $jobs =~ ^[1-9][0-9]{0,3}$ ]]; then
          refuse "--jobs ${jobs:-(nothing)}, expected a number from 1"
        fi
        shift
        ;;
      --grid | --status) task=${1#--} ;;
      --)
        shift
        flags=("$@")
        for flag in "$@"; do
          [ "$flag" != -- ] || refuse 'two -- were given, one is expected before the flags of every run'
        done
        break
        ;;
      -*)
        printf 'error: unknown option %s\n%s\n%s\n' "$1" "$usage" \
          "$GRID_OPTIONS" >&2
        exit 1
        ;;
      *)
        [ -z "$output" ] || refuse "one OUTPUT_DIR is expected, found $output and $1"
        output=$1
        ;;
    esac
    shift
  done
  if [ -z "$output" ]; then
    printf '%s\n%s\n' "$usage" "$GRID_OPTIONS" >&2
    exit 1
  fi
  command -v "$python" > /dev/null || refuse "there is no interpreter $python; run \`make setup\`, or set PYTHON"
  [[ $output != *://* ]] || refuse "OUTPUT_DIR is $output, expected a folder of this machine; copy it to a bucket afterwards"
  output=$(realpath -m "$output")
  [[ $output != *[\\*?[]* ]] || refuse "OUTPUT_DIR is $output; TensorFlow finds no checkpoint under a name with * ? [ or \\, choose another"
  runs=$output/runs
  rows=()
}

open_sweeps() { # tasks ...
  local grid name data
  export PYTHON=$python
  out=$output
  if [ "$task" = status ]; then
    for grid in "$out"/*/grid.tsv; do
      [ -f "$grid" ] || refuse "$out holds no sweep; start it first"
      echo "== $(basename "$(dirname "$grid")")"
      grid_status "$(dirname "$grid")"
    done
    exit
  fi
  need BERT 'the pretrained model, for --init_checkpoint' prefix
  need GLUE_DIR 'the folder of the tasks, GLUE_DIR/MRPC and so on' folder
  [[ $GLUE_DIR != *://* ]] || refuse "GLUE_DIR is $GLUE_DIR, expected a folder of this machine, since its tasks are linked to"
  GLUE_DIR=$(realpath "$GLUE_DIR")
  BERT=$(absolute "$BERT")
  export BERT
  for name in "$@"; do
    data=$GLUE_DIR/$name
    need data "the task's train and dev file" folder
  done
}

is_elsewhere() { # path: is it one of a cloud, a handle of Kaggle's, a name?
  local found
  case $1 in
    *://* | hf:*) ;;
    minilm | mpnet) [ ! -e "$1" ] ;;
    [!/.]*/*/[tT]ensor[fF]low[12]/* | [!/.]*/*/[tT]ransformers/*)
      found=("$1"*)
      [ ! -e "${found[0]}" ]
      ;;
    *) return 1 ;;
  esac
}

absolute() { # path
  if is_elsewhere "$1"; then echo "$1"; else realpath -s "$1"; fi
}

need() { # variable, what it is, `file`, `folder` or `prefix` of files
  local found
  [ -n "${!1:-}" ] || refuse "the variable $1 is not set: $2"
  case ${3:-}:${!1} in
    *://*) ;; # is looked for by the runs
    file:*) [ -f "${!1}" ] || refuse "$1 is ${!1}, where there is no file: $2" ;;
    folder:*) [ -d "${!1}" ] || refuse "$1 is ${!1}, where there is no folder: $2" ;;
    prefix:*)
      ! is_elsewhere "${!1}" || return 0
      found=("${!1}"*)
      [ -e "${found[0]}" ] || refuse "$1 is ${!1}, where there is nothing: $2"
      ;;
  esac
}

point() { # link, what it leads to
  [[ $2 != *://* ]] || refuse "$2 is remote, expected a path of this machine"
  [ ! -e "$1" ] || [ "$1" -ef "$2" ] ||
    refuse "$1 is there and is not $2; earlier runs may have read it, so choose another OUTPUT_DIR, or delete it if the same data have moved"
  ln -sfT "$(realpath -m "$2")" "$1"
}

split_words() { # variable
  local found
  # Not by the shell, which would take a name for a pattern of files.
  found=$(xargs -rn 1 printf '%s\n' <<< "${!1}" 2> /dev/null) ||
    refuse "$1 is ${!1}, expected names with blanks between them, in quotes where a name holds one, as $1=\"MRPC 'my task'\""
  words=()
  [ -z "$found" ] || mapfile -t words <<< "$found"
}

add_run() { # name, command ...
  local name=$1 same command own flag given
  shift
  own=" ${*%%=*} --output_dir " own=${own// --no/ --}
  for flag in "${flags[@]%%=*}"; do
    [[ $flag == -* ]] || continue
    flag=${flag#-} flag=--${flag#-}
    [ "$flag" != --flagfile ] || refuse "--flagfile is given after --; write its flags there"
    given=$flag
    # Its other name, and what replaces it.
    case $flag in --epochs | --num_train_steps) flag=--num_train_epochs ;; esac
    if [[ $REPLACEABLE != *" $flag "* && $own == *" ${flag/#--no/--} "* ]]; then
      refuse "$given is given after --, but each run has its own; the script says by which variable it is chosen, if any"
    fi
  done
  command=$(printf '%q ' "$@" "--output_dir=$runs/$name" "${flags[@]}")
  same=("${@:2}" "${flags[@]}")
  same=$(LC_ALL=C printf '%q ' "${same[@]//"$output"/OUTPUT_DIR}")
  rows+=("$name"$'\t'"$command"$'\t'"$same")
}

add_tunings() { # function that takes a name and flags
  local method size k scale opened closed
  for method in $METHODS; do
    opened=${method//[^(]/} closed=${method//[^)]/}
    if [ ${#opened} -ne ${#closed} ]; then
      refuse "METHODS has '$method'; write a method with its arguments without spaces, as 'lora(rank=8,alpha=16.0)'"
    fi
    case $method in
      top_layers)
        for k in $LAYERS; do
          _add_schedules "$1" "top_layers$k" "--tuning_method=top_layers(k=$k)"
        done
        ;;
      *size=* | *sizes=* | *\([0-9]*) _add_schedules "$1" "$method" --tuning_method="$method" ;;
      houlsby* | pfeiffer* | bapna* | parallel* | adapterdrop* | compacter*)
        for size in $SIZES; do
          local adapters=(--tuning_method="$method" --adapter_size="$size")
          if [[ $method != houlsby* ]] || [ -z "${INIT_SCALES:-}" ]; then
            _add_schedules "$1" "$method$size" "${adapters[@]}"
            continue
          fi
          for scale in $INIT_SCALES; do
            _add_schedules "$1" "$method$size-scale$scale" "${adapters[@]}" \
              --adapter_init_scale="$scale"
          done
        done
        ;;
      *) _add_schedules "$1" "$method" --tuning_method="$method" ;;
    esac
  done
}

_add_schedules() { # function, name of the method, its flags ...
  local add=$1 method=$2 rates=$RATES epochs=$EPOCHS rate epoch seed
  shift 2
  case $method in full | top_layers*) rates=$FULL_RATES epochs=$FULL_EPOCHS ;; esac
  for rate in $rates; do
    for epoch in $epochs; do
      for seed in $SEEDS; do
        "$add" "$method-lr$rate-epochs$epoch-seed$seed" "$@" \
          --learning_rate="$rate" --num_train_epochs="$epoch" --seed="$seed" \
          --train_batch_size="$BATCH" --save_checkpoints_steps=500
      done
    done
  done
}

grid_status() { # arguments of adapter-bert grid_status ...
  adapter_bert grid_status "$@"
}

# Rows are numbers into the file, so it must not change under those who count;
# of a job array that is still queued nothing can be seen here.
_write_grid() {
  local new alive=0
  mkdir -p "$output"
  new=$(mktemp "$output/grid.XXXXXX")
  # `set -e` is off where a caller has `||`.
  printf '%s\n' "${rows[@]}" > "$new" || { rm -f "$new"; exit 1; }
  if [ -f "$output/grid.tsv" ] && ! cmp -s "$new" "$output/grid.tsv"; then
    grid_status "$output" --is_running || alive=$?
    if [ $alive -ne 3 ]; then rm "$new"; fi
    case $alive in
      0) refuse "another grid is running in $output; wait for it, or choose another OUTPUT_DIR" ;;
      3) ;;
      *) refuse "$python cannot tell whether another grid is running in $output; see above" ;;
    esac
  fi
  chmod 644 "$new"
  sync "$new"
  # Another driver may replace the file.
  exec 8< "$new" || exit 1
  mv "$new" "$output/grid.tsv"
}

# The GPUs that this process may use, between spaces.
_gpus() {
  local found
  if [ -n "${CUDA_VISIBLE_DEVICES+set}" ]; then
    found=${CUDA_VISIBLE_DEVICES//,/ }
    [ "$found" = -1 ] || echo "$found"
  elif command -v nvidia-smi > /dev/null; then
    # It fails where there is no driver.
    found=$(nvidia-smi --query-gpu=index --format=csv,noheader 2> /dev/null) || return 0
    paste -sd ' ' <<< "$found"
  fi
}

run_grid() {
  if [ "$task" = status ]; then
    grid_status "$output"
    return
  fi
  [ ${#rows[@]} -gt 0 ] || refuse 'the grid has no run; is one of its axes empty?'
  local failed=0 gpus=
  if [ "$task" = run ]; then gpus=$(_gpus); fi
  if [ -n "$gpus" ] && [ "$jobs" -gt "$(wc -w <<< "$gpus")" ]; then
    refuse "--jobs $jobs, but there are only the GPUs $gpus, and TensorFlow takes all memory of one; lower --jobs, or set CUDA_VISIBLE_DEVICES=-1 to use none"
  fi
  _write_grid
  if [ "$task" = grid ]; then
    echo "$output/grid.tsv has ${#rows[@]} runs; with Slurm:"
    # Slurm's arrays usually end below 1001.
    local before left offset
    for ((before = 0; before < ${#rows[@]}; before += 1000)); do
      left=$((${#rows[@]} - before)) offset=
      if [ $before -gt 0 ]; then offset=" $before"; fi
      echo "sbatch --array=1-$((left < 1000 ? left : 1000)) scripts/sweep.sbatch $(printf %q "$output")$offset"
    done
    return
  fi
  seq ${#rows[@]} | JOBS=$jobs GPUS=$gpus GRID_FILE=/dev/fd/8 xargs -P "$jobs" -n 1 \
    --process-slot-var=SLOT "$internal/run_grid_row.sh" "$output" || failed=1
  grid_status "$output"
  return $failed
}
