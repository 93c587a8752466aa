#!/usr/bin/env bash
# Makes a smaller task of one whose files have a header: its first training rows,
# its whole dev set.
#
#   scripts/first_rows.sh TASK_FOLDER NEW_FOLDER ROWS
set -euo pipefail
if [ $# -ne 3 ]; then
  echo 'usage: scripts/first_rows.sh TASK_FOLDER NEW_FOLDER ROWS' >&2
  exit 1
fi
if [ ! -f "$2/train.tsv" ]; then
  mkdir -p "$2"
  cp "$1/dev.tsv" "$2/"
  head -n $(($3 + 1)) "$1/train.tsv" > "$2/train.tsv.new"
  mv "$2/train.tsv.new" "$2/train.tsv"
fi
