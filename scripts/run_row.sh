#!/usr/bin/env bash
# Runs one row of a grid, unless it is finished, and notes how it ended.
#
#   scripts/run_row.sh OUTPUT_DIR ROW      (rows from 1)
#
# In the run's folder: `lock` is held while it runs, `log.txt` gets what it
# prints, `attempts.tsv` a line for each start and end, `done` or `failed` tells
# the end. Killed at any moment, the run goes on from its last checkpoint when
# its row is run again. With SLOT and JOBS set, as by run_grid, it gets the
# SLOTth of JOBS equal shares of this machine's cores.
set -euo pipefail
output=$(realpath "$1") row=$2
line=$(sed -n "${row}p" "$output/grid.tsv")
if [ -z "$line" ]; then
  echo "error: $output/grid.tsv has no row $row" >&2
  exit 1
fi
name=${line%%$'\t'*} command=${line#*$'\t'}
run=$output/runs/$name
mkdir -p "$run"
cd "$(dirname "$(realpath "$0")")/.."

share=()
if [ -n "${SLOT:-}" ] && [ "${JOBS:-1}" -gt 1 ] && command -v taskset > /dev/null; then
  cores=$(($(nproc) / JOBS))
  if [ "$cores" -ge 1 ]; then
    # The numbers of the cores that this process may use.
    mapfile -t mine < <(taskset -cp $$ | sed 's/.*: //' | tr ',' '\n' |
      awk -F- '{ for (i = $1; i <= (NF > 1 ? $2 : $1); i++) print i }')
    share=(taskset -c "$(IFS=, && echo "${mine[*]:SLOT*cores:cores}")")
  fi
fi

# The program inherits the lock: it is held as long as either of both lives.
exec 9> "$run/lock"
if ! flock -n 9; then
  echo "[$row] $name: runs already elsewhere, waiting for it"
  flock 9
fi
if [ -f "$run/done" ]; then
  echo "[$row] $name: finished already"
  exit 0
fi
rm -f "$run/failed"
printf '[%s] %s\n%s\n' "$row" "$name" "$command"
note() { printf '%s\t%s\t%s\t%s\n' "$(date +%s.%N)" "$1" "$(hostname)" $$ >> "$run/attempts.tsv"; }
note start
began=$(date +%s)
status=0
eval "${share[*]} $command" >> "$run/log.txt" 2>&1 < /dev/null || status=$?
note "end $status"
if [ $status -ne 0 ]; then
  # TensorFlow's own notices aside.
  { grep '^error: ' "$run/log.txt" || tail -n 1 "$run/log.txt"; } | tail -n 1 > "$run/failed"
  echo "[$row] $name: failed: $(cat "$run/failed") (see $run/log.txt)" >&2
  exit 1
fi
echo "$(($(date +%s) - began)) seconds" > "$run/done.new"
mv "$run/done.new" "$run/done"
echo "[$row] $name: finished"
