#!/usr/bin/env bash
# Makes a smaller task of one whose files have a header: its first training rows,
# its whole dev set. One that is there already has to be the same, for runs may
# have used it.
#
#   scripts/internal/cut_training_set.sh TASK_FOLDER NEW_FOLDER ROWS
set -euo pipefail
if [ $# -ne 3 ]; then
  echo 'usage: scripts/internal/cut_training_set.sh TASK_FOLDER NEW_FOLDER ROWS' >&2
  exit 1
fi
mkdir -p "$2"
new=$(mktemp -d "$2/new.XXXXXX")
trap 'rm -rf "$new"' EXIT
cp "$1/dev.tsv" "$new/"
head -n $(($3 + 1)) "$1/train.tsv" > "$new/train.tsv"
if [ ! -f "$2/train.tsv" ]; then
  # train.tsv comes last: where it is, both are whole, and on the disk.
  sync "$new/dev.tsv" "$new/train.tsv"
  mv "$new/dev.tsv" "$2/dev.tsv"
  mv "$new/train.tsv" "$2/train.tsv"
  exit
fi
for name in train dev; do
  if ! cmp -s "$new/$name.tsv" "$2/$name.tsv"; then
    echo "error: $2/$name.tsv is there, but $1 gives another with its first $3 training rows; choose another OUTPUT_DIR" >&2
    exit 1
  fi
done
