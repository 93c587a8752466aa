#!/usr/bin/env bash
# Fetches one of Google's BERTs (Devlin et al. 2019, Turc et al. 2019;
# Apache-2.0) from its official address, checks it, and unpacks it:
#
#   scripts/download_bert.sh --list
#   scripts/download_bert.sh NAME FOLDER
#
# FOLDER/NAME is what --init_checkpoint takes then. Safe to run twice: what is
# there is left alone, and a download that was cut off goes on. So are two runs
# at once. BERT_URL names another place that has the same archives.
#
# Every archive has the checksums of its files, which are compared. For the
# seven BERTs of 2018 the sum of the weights is here too, as NVIDIA's
# DeepLearningExamples have it.
set -euo pipefail
url=${BERT_URL:-https://storage.googleapis.com/bert_models}
project=$(dirname "$(realpath "$0")")/..
python=${PYTHON:-python3}

models() { # date, name, SHA-256 of bert_model.ckpt.data-00000-of-00001
  cat << 'MODELS'
2018_10_18 uncased_L-12_H-768_A-12 58580dc5e0bf0ae0d2efd51d0e8272b2f808857f0a43a88aaf7549da6d7a8a84
2018_10_18 uncased_L-24_H-1024_A-16 bc6b3363e3be458c99ecf64b7f472d2b7c67534fd8f564c0556a678f90f4eea1
2018_10_18 cased_L-12_H-768_A-12 734d5a1b68bf98d4e9cb6b6692725d00842a1937af73902e51776905d8f760ea
2018_10_18 cased_L-24_H-1024_A-16 6ff33640f40d472f7a16af0c17b1179ca9dcc0373155fb05335b6a4dd1657ef0
2018_11_03 multilingual_L-12_H-768_A-12 3cd83912ebeb0efe2abf35c9f1d5a515d8e80295e61c49b75c8853f756658429
2018_11_03 chinese_L-12_H-768_A-12 756699356b78ad0ef1ca9ba6528297bcb3dd1aef5feadd31f4775d7c7fc989ba
2018_11_23 multi_cased_L-12_H-768_A-12 55b8a2df41f69c60c5180e50a7c31b7cdf6238909390c4ddf05fbc0d37aa1ac5
2019_05_30 wwm_uncased_L-24_H-1024_A-16 -
2019_05_30 wwm_cased_L-24_H-1024_A-16 -
MODELS
  # The small ones. The largest is BERT-Base, pretrained again; by its name
  # alone the one of 2018 is meant.
  local layers size
  for layers in 2 4 6 8 10 12; do
    for size in 128 256 512 768; do
      echo "2020_02_20 uncased_L-${layers}_H-${size}_A-$((size / 64)) -"
    done
  done
}

if [ $# -eq 1 ] && [ "$1" = --list ]; then
  models | awk 'seen[$2]++ { print $1 "/" $2; next } { print $2 }'
  exit
fi
if [ $# -ne 2 ]; then
  echo 'usage: scripts/download_bert.sh NAME FOLDER (or --list)' >&2
  exit 1
fi
name=$1 folder=$2/$1
row=$(models | awk -v name="$name" \
  '(name == $2 || name == $1 "/" $2) && !found++')
if [ -z "$row" ]; then
  echo "error: there is no BERT called $name;" \
    'scripts/download_bert.sh --list prints their names' >&2
  exit 1
fi
read -r date name sha256 <<< "$row"
if [ -d "$folder" ]; then
  echo "$folder is there already"
  exit
fi
if ! command -v curl > /dev/null; then
  echo 'error: curl is not installed, which fetches the files' >&2
  exit 1
fi
address=$url/$date/$name.zip archive=$folder.download
mkdir -p "$(dirname "$folder")"
# Of two runs at once the second finds the folder. The lock is this shell's, and
# stays behind if there is no folder then: who waits for it holds the same file.
exec 9> "$folder.lock"
"$python" -c '
import fcntl
try:
    fcntl.flock(9, fcntl.LOCK_EX | fcntl.LOCK_NB)
except BlockingIOError:
    print("another run is fetching it; waiting", flush=True)
    fcntl.flock(9, fcntl.LOCK_EX)'
if [ -d "$folder" ]; then
  echo "$folder is there now"
  exit
fi
# One that is there was fetched, but could not be unpacked, as on a full disk.
if [ ! -f "$archive" ]; then
  echo "fetching $address"
  if ! curl --fail --location --show-error --silent --retry 3 \
    --continue-at - --output "$archive.part" "$address"; then
    echo "error: cannot fetch $address; run this again to go on, or delete" \
      "$archive.part to begin anew" >&2
    exit 1
  fi
  mv "$archive.part" "$archive"
fi
PYTHONPATH=$project "$python" -m adapter_bert unpack_bert "$archive" "$folder" "$sha256"
rm "$archive" "$folder.lock"
echo "--init_checkpoint=$folder"
