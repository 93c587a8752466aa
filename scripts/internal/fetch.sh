#!/usr/bin/env bash
# Fetches files and checks every one's size and SHA-256.
#
#   scripts/internal/fetch.sh URL FOLDER < TABLE
#
# TABLE has a line for each file: its path below URL, size in bytes, SHA-256.
# Safe to run twice: files that are there and right are not fetched again, and
# a file gets its name only when it is whole and right.
set -euo pipefail
if ! command -v curl > /dev/null; then
  echo 'error: curl is not installed, which fetches the files' >&2
  exit 1
fi
url=$1 folder=$2
mkdir -p "$folder"

right() { # path, size, SHA-256
  [ -f "$1" ] && [ "$(wc -c < "$1")" -eq "$2" ] &&
    [ "$(sha256sum < "$1" | cut -d ' ' -f 1)" = "$3" ]
}

while read -r source size sha256; do
  path=$folder/${source##*/}
  if right "$path" "$size" "$sha256"; then
    echo "$path is there already"
    continue
  fi
  partial=$path.part
  echo "fetching $url/$source"
  if ! curl --fail --location --show-error --silent --retry 3 \
    --output "$partial" "$url/$source"; then
    echo "error: cannot fetch $url/$source; try again later" >&2
    exit 1
  fi
  if ! right "$partial" "$size" "$sha256"; then
    echo "error: $url/$source has $(wc -c < "$partial") bytes or another" \
      "content, expected $size bytes with SHA-256 $sha256; the file was" \
      "left as $partial" >&2
    exit 1
  fi
  mv "$partial" "$path"
done
