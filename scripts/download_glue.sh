#!/usr/bin/env bash
# Fetches GLUE (Wang et al. 2019) from its official addresses, checks every
# file, and puts each task into a folder of its own, as run_classifier.py reads
# it:
#
#   scripts/download_glue.sh FOLDER
#
# Safe to run twice: tasks that are there are left alone. About 380 MB are
# fetched; MNLI is 310 of them. The sums are Hugging Face's `datasets`,
# which checks the same files. GLUE_URL names another place that has them.
#
# MRPC is put together from SentEval's copy and GLUE's list of dev pairs. The
# labels of the diagnostic set (AX) are not fetched: put diagnostic-full.tsv
# from https://gluebenchmark.com/diagnostics into AX/ to be able to evaluate it.
set -euo pipefail
if [ $# -ne 1 ] || [[ $1 == -* ]]; then
  echo 'usage: scripts/download_glue.sh FOLDER' >&2
  exit 1
fi
url=${GLUE_URL:-https://dl.fbaipublicfiles.com} folder=$1
internal=$(dirname "$(realpath "$0")")/internal
python=${PYTHON:-python3}
fetched=$folder/.glue-download
mkdir -p "$fetched"

# Task (its folder within its archive), then what fetch.sh wants.
while read -r task file; do
  if [ -d "$folder/$task" ]; then
    # MRPC has three lines.
    [ "$task" = "${last:-}" ] || echo "$folder/$task is there already"
    last=$task
    continue
  fi
  new=$folder/$task.part
  rm -rf "$new"
  mkdir "$new"
  case $task in
    MRPC)
      # Three files in a row.
      read -r _ second
      read -r _ third
      printf '%s\n' "$file" "$second" "$third" |
        "$internal/fetch.sh" "$url" "$fetched"
      PYTHONPATH=$internal/../.. "$python" -m adapter_bert make_mrpc "$fetched" "$new"
      ;;
    AX)
      "$internal/fetch.sh" "$url" "$fetched" <<< "$file"
      cp "$fetched/AX.tsv" "$new/diagnostic.tsv"
      ;;
    *)
      "$internal/fetch.sh" "$url" "$fetched" <<< "$file"
      archive=${file%% *}
      "$python" -m zipfile -e "$fetched/${archive##*/}" "$new"
      find "$new" -type f -exec sync {} +
      mv "$new/$task" "$folder/$task"
      rm -r "$new"
      continue
      ;;
  esac
  find "$new" -type f -exec sync {} +
  mv "$new" "$folder/$task"
done << 'FILES'
CoLA glue/data/CoLA.zip 376971 f212fcd832b8f7b435fb991f101abf89f96b933ab400603bf198960dfc32cbff
SST-2 glue/data/SST-2.zip 7439277 d67e16fb55739c1b32cdce9877596db1c127dc322d93c082281f64057c16deaa
MRPC senteval/senteval_data/msr_paraphrase_train.txt 1047044 60a9b09084528f0673eedee2b69cb941920f0b8cd0eeccefc464a98768457f89
MRPC senteval/senteval_data/msr_paraphrase_test.txt 441275 a04e271090879aaba6423d65b94950c089298587d9c084bf9cd7439bd785f784
MRPC glue/data/mrpc_dev_ids.tsv 6222 971d7767d81b997fd9060ade0ec23c4fc31cbb226a55d1bd4a1bac474eb81dc7
STS-B glue/data/STS-B.zip 802872 e60a6393de5a8b5b9bac5020a1554b54e3691f9d600b775bd131e613ac179c85
QQP glue/data/QQP-clean.zip 41696084 40e7c862c04eb26ee04b67fd900e76c45c6ba8e6d8fab4f8f1f8072a1a3fbae0
MNLI glue/data/MNLI.zip 312783507 e7c1d896d26ed6caf700110645df426cc2d8ebf02a5ab743d5a5c68ac1c83633
QNLI glue/data/QNLIv2.zip 10627589 e634e78627a29adaecd4f955359b22bf5e70f2cbd93b493f2d624138a0c0e5f5
RTE glue/data/RTE.zip 697150 6bf86de103ecd335f3441bd43574d23fef87ecc695977a63b82d5efb206556ee
WNLI glue/data/WNLI.zip 28999 ae0e8e4d16f4d46d4a0a566ec7ecceccfd3fbfaa4a7a4b4e02848c0f2561ac46
AX glue/data/AX.tsv 222257 0e13510b1bb14436ff7e2ee82338f0efb0133ecf2e73507a697dc210db3f05fd
FILES
rm -r "$fetched"
