# A grid of runs, for the scripts that source this file:
#
#   open_grid USAGE "$@"     reads OUTPUT_DIR and options
#   add_run NAME COMMAND...  a run; its folder is $runs/NAME
#   run_grid                 writes OUTPUT_DIR/grid.tsv and does what is asked
#
# grid.tsv has a row for each run: its name, a tab, its command line.
set -euo pipefail
scripts=$(dirname "$(realpath "${BASH_SOURCE[0]}")")
python=${PYTHON:-.venv/bin/python}

# Options of every script that runs a grid.
GRID_OPTIONS='  --jobs N    N runs at a time, each on its share of the cores (default 1)
  --grid      only write OUTPUT_DIR/grid.tsv, with a command line on each row
  --status    show which runs are finished, running, failed and waiting
  -- FLAGS    flags for every run'

open_grid() { # usage, arguments ...
  local usage=$1
  shift
  task=run jobs=1 flags=() output=
  while [ $# -gt 0 ]; do
    case $1 in
      --jobs)
        jobs=${2:-}
        if ! [[ $jobs =~ ^[1-9][0-9]{0,3}$ ]]; then
          echo "error: --jobs ${jobs:-(nothing)}, expected a number from 1" >&2
          exit 1
        fi
        shift
        ;;
      --grid | --status) task=${1#--} ;;
      --)
        shift
        flags=("$@")
        break
        ;;
      -*)
        printf 'error: unknown option %s\n%s\n%s\n' "$1" "$usage" \
          "$GRID_OPTIONS" >&2
        exit 1
        ;;
      *)
        if [ -n "$output" ]; then
          printf 'error: one OUTPUT_DIR is expected, found %s and %s\n' \
            "$output" "$1" >&2
          exit 1
        fi
        output=$1
        ;;
    esac
    shift
  done
  if [ -z "$output" ]; then
    printf '%s\n%s\n' "$usage" "$GRID_OPTIONS" >&2
    exit 1
  fi
  output=$(realpath -m "$output")
  runs=$output/runs
  rows=()
}

need() { # variable, what it is
  if [ -z "${!1:-}" ]; then
    echo "error: the variable $1 is not set: $2" >&2
    exit 1
  fi
}

add_run() { # name, command ...
  local name=$1
  shift
  rows+=("$name"$'\t'"$(printf '%q ' "$@" "--output_dir=$runs/$name" "${flags[@]}")")
}

run_grid() {
  mkdir -p "$output"
  if [ "$task" != status ]; then
    printf '%s\n' "${rows[@]}" > "$output/grid.tsv.new"
    mv "$output/grid.tsv.new" "$output/grid.tsv"
  fi
  case $task in
    grid)
      echo "$output/grid.tsv has ${#rows[@]} runs; with Slurm:"
      echo "sbatch --array=1-${#rows[@]} scripts/sweep.sbatch $output"
      ;;
    status) "$python" "$scripts/grid_status.py" "$output" ;;
    run)
      local failed=0
      seq ${#rows[@]} | JOBS=$jobs xargs -P "$jobs" -n 1 \
        --process-slot-var=SLOT "$scripts/run_row.sh" "$output" || failed=1
      "$python" "$scripts/grid_status.py" "$output"
      return $failed
      ;;
  esac
}
