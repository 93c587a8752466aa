#!/usr/bin/env bash
# Fetches SQuAD 1.1 and 2.0 (Rajpurkar et al. 2016, 2018; CC BY-SA 4.0) from
# their official address and checks every file.
#
#   scripts/download_squad.sh FOLDER
#
# Safe to run twice. SQUAD_URL names another place that has the same files.
set -euo pipefail
if [ $# -ne 1 ] || [[ $1 == -* ]]; then
  echo 'usage: scripts/download_squad.sh FOLDER' >&2
  exit 1
fi
url=${SQUAD_URL:-https://rajpurkar.github.io/SQuAD-explorer/dataset}
"$(dirname "$(realpath "$0")")"/internal/fetch.sh "$url" "$1" << 'FILES'
train-v1.1.json 30288272 3527663986b8295af4f7fcdff1ba1ff3f72d07d61a20f487cb238a6ef92fd955
dev-v1.1.json 4854279 95aa6a52d5d6a735563366753ca50492a658031da74f301ac5238b03966972c9
train-v2.0.json 42123633 68dcfbb971bd3e96d5b46c7177b16c1a4e7d4bdef19fb204502738552dede002
dev-v2.0.json 4370528 80a5225e94905956a6446d296ca1093975c4d3b3260f1d6c8f68bc2ab77182d8
FILES
