#!/usr/bin/env bash
# Fetches SQuAD 1.1 and 2.0 (Rajpurkar et al. 2016, 2018; CC BY-SA 4.0) from
# their official address and checks every file's size and SHA-256.
#
#   scripts/download_squad.sh FOLDER
#
# Safe to run twice: files that are there and right are not fetched again, and
# a file gets its name only when it is whole and right. SQUAD_URL names another
# place that has the same files.
set -euo pipefail
if [ $# -ne 1 ]; then
  echo 'usage: scripts/download_squad.sh FOLDER' >&2
  exit 1
fi
if ! command -v curl > /dev/null; then
  echo 'error: curl is not installed, which fetches the files' >&2
  exit 1
fi
url=${SQUAD_URL:-https://rajpurkar.github.io/SQuAD-explorer/dataset}
folder=$1
mkdir -p "$folder"

right() { # path, size, SHA-256
  [ -f "$1" ] && [ "$(wc -c < "$1")" -eq "$2" ] &&
    [ "$(sha256sum < "$1" | cut -d ' ' -f 1)" = "$3" ]
}

while read -r name size sha256; do
  path=$folder/$name
  if right "$path" "$size" "$sha256"; then
    echo "$path is there already"
    continue
  fi
  partial=$path.part
  echo "fetching $url/$name"
  if ! curl --fail --location --show-error --silent --retry 3 \
    --output "$partial" "$url/$name"; then
    echo "error: cannot fetch $url/$name; try again later" >&2
    exit 1
  fi
  if ! right "$partial" "$size" "$sha256"; then
    echo "error: $url/$name has $(wc -c < "$partial") bytes or another" \
      "content, expected $size bytes with SHA-256 $sha256; the file was" \
      "left as $partial" >&2
    exit 1
  fi
  mv "$partial" "$path"
done << 'FILES'
train-v1.1.json 30288272 3527663986b8295af4f7fcdff1ba1ff3f72d07d61a20f487cb238a6ef92fd955
dev-v1.1.json 4854279 95aa6a52d5d6a735563366753ca50492a658031da74f301ac5238b03966972c9
train-v2.0.json 42123633 68dcfbb971bd3e96d5b46c7177b16c1a4e7d4bdef19fb204502738552dede002
dev-v2.0.json 4370528 80a5225e94905956a6446d296ca1093975c4d3b3260f1d6c8f68bc2ab77182d8
FILES
