#!/usr/bin/env bash
# Runs one row of a grid, unless it is finished, and notes how it ended.
#
#   scripts/internal/run_grid_row.sh OUTPUT_DIR ROW      (rows from 1)
#
# In the run's folder: `lock` is held while it runs, `command` is its command
# line, `flags` what of that tells runs apart, `log.txt` gets what it prints,
# `attempts.tsv` a line for each start and end, `done` or `failed` tells the end.
# Killed at any moment, the run goes on from its last checkpoint when its row is
# run again. With SLOT, JOBS and GPUS set, as by run_grid, it gets the SLOTth of
# JOBS equal shares of this machine's cores and GPUs. GRID_FILE is a file to read in
# the place of OUTPUT_DIR/grid.tsv.
set -euo pipefail
refuse() { # message
  printf 'error: %s\n' "$1" >&2
  exit 1
}
row=${2:-}
[[ $row =~ ^[1-9][0-9]*$ ]] ||
  refuse "the row is '$row', expected a number from 1; Slurm needs --array"
output=$(realpath "$1")
line=$(sed -n "${row}p" "${GRID_FILE:-$output/grid.tsv}")
[ -n "$line" ] || refuse "$output/grid.tsv has no row $row"
IFS=$'\t' read -r name command flags <<< "$line"
run=$output/runs/$name
mkdir -p "$run"
cd "$(dirname "$(realpath "$0")")/../.."

share=
if [ -n "${SLOT:-}" ] && [ "${JOBS:-1}" -gt 1 ] && command -v taskset > /dev/null; then
  # The numbers of the cores that this process may use.
  mapfile -t mine < <(taskset -cp $$ | sed 's/.*: //' | tr ',' '\n' |
    awk -F- '{ for (i = $1; i <= (NF > 1 ? $2 : $1); i++) print i }')
  cores=$((${#mine[@]} / JOBS))
  if [ "$cores" -ge 1 ]; then
    share="taskset -c $(IFS=, && echo "${mine[*]:SLOT*cores:cores}")"
  fi
fi
if [ -n "${SLOT:-}" ] && [ -n "${GPUS:-}" ]; then
  read -ra mine <<< "$GPUS"
  each=$((${#mine[@]} / ${JOBS:-1}))
  CUDA_VISIBLE_DEVICES=$(IFS=, && echo "${mine[*]:SLOT*each:each}")
  export CUDA_VISIBLE_DEVICES
fi

# The program inherits the lock: it is held as long as either of both lives.
exec 9> "$run/lock"
held=0
flock -n -E 75 9 || held=$?
if [ $held -eq 75 ]; then
  echo "[$row] $name: runs already elsewhere, waiting for it"
  flock 9
elif [ $held -ne 0 ]; then
  refuse "$run/lock cannot be locked; choose an OUTPUT_DIR whose disk has locks"
fi
if [ -f "$run/done" ] && [ -f "$run/flags" ] && [ "$(< "$run/flags")" != "$flags" ]; then
  echo "[$row] $name: finished by another command; choose another OUTPUT_DIR, or, if only paths have changed, delete $run/flags" >&2
  exit 1
fi
if [ -f "$run/done" ]; then
  # On a full disk another write would empty it.
  [ -f "$run/flags" ] || echo "$flags" > "$run/flags"
  echo "[$row] $name: finished already"
  exit 0
fi
rm -f "$run/failed"
echo "$command" > "$run/command"
echo "$flags" > "$run/flags"
printf '[%s] %s\n%s\n' "$row" "$name" "$command"
note() { printf '%s\t%s\t%s\t%s\n' "$(date +%s.%N)" "$1" "$(hostname)" $$ >> "$run/attempts.tsv"; }
touch "$run/log.txt"
before=$(wc -c < "$run/log.txt")
note start
began=$(date +%s)
status=0
eval "$share $command" >> "$run/log.txt" 2>&1 < /dev/null || status=$?
note "end $status"
case $status in
  0)
    echo "$(($(date +%s) - began)) seconds" > "$run/done.new"
    # A loss of power takes neither, nor what tells whose run it is.
    sync "$run/flags" "$run/done.new"
    mv "$run/done.new" "$run/done"
    echo "[$row] $name: finished"
    exit 0
    ;;
  # Interrupted from the keyboard, or told to end: no failure of the run's own.
  130 | 143) exit 1 ;;
  137) echo 'killed by signal 9; was there too little memory?' > "$run/failed" ;;
  *)
    # Of this attempt; its last line may be a notice of TensorFlow's.
    printed=$(tail -c +$((before + 1)) "$run/log.txt")
    reason=$(grep '^error: ' <<< "$printed" || tail -n 1 <<< "$printed")
    tail -n 1 <<< "$reason" > "$run/failed"
    ;;
esac
echo "[$row] $name: failed: $(cat "$run/failed") (see $run/log.txt)" >&2
exit 1
