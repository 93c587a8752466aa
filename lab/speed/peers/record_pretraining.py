"""Records the rows that google-research/bert makes for pretraining.

    .venv/bin/python lab/speed/peers/record_pretraining.py \
        FOLDER_OF_BERT tests/golden/pretraining.json.gz

FOLDER_OF_BERT is a checkout of google-research/bert. Imports nothing of this
project. The text is a part of data/short_articles, the vocabulary is made of
its letters and its most frequent words.
"""

import collections
import gzip
import json
import pathlib
import random
import sys
import tempfile

import tensorflow as tf

DOCUMENTS = 8
CASES = [
    # length, masked tokens at most, copies, short rows, masked, whole words
    (5, 20, 1, 0.5, 0.15, False),
    (24, 3, 2, 0.1, 0.15, False),
    (64, 20, 2, 0.3, 0.15, True),
    (128, 20, 1, 0.0, 0.5, False),
]


def main(folder: str, output: str) -> None:
    """Writes text, vocabulary, and the rows of each case."""
    # BERT's code is for TensorFlow 1.
    sys.modules["tensorflow"] = tf.compat.v1
    sys.path.insert(0, folder)
    import create_pretraining_data as upstream
    import tokenization

    upstream.FLAGS(["record"])
    articles = json.loads(
        pathlib.Path("data/short_articles/dev.json").read_text()
    )["data"]
    documents = [
        "\n".join(
            f"{sentence}."
            for paragraph in article["paragraphs"]
            for sentence in paragraph["context"].rstrip(".").split(". ")
        )
        for article in articles[:DOCUMENTS]
    ]
    # One document is empty.
    text = "\n\n".join([*documents, "", "  A last line, with spaces.  "])
    words = collections.Counter(text.lower().split()).most_common(60)
    letters = sorted(set(text.lower()) - set(" \n"))
    vocabulary = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *letters]
    vocabulary += [f"##{letter}" for letter in letters if letter.isalnum()]
    vocabulary += [w for w, _ in words if w.isalpha() and len(w) > 1]
    recorded = []
    with tempfile.TemporaryDirectory() as place:
        raw, vocab = pathlib.Path(place, "raw"), pathlib.Path(place, "vocab")
        raw.write_text(text)
        vocab.write_text("\n".join(vocabulary) + "\n")
        tokenizer = tokenization.FullTokenizer(str(vocab))
        for seed, case in enumerate(CASES):
            length, most, copies, short, masked, whole = case
            upstream.FLAGS.do_whole_word_mask = whole
            instances = upstream.create_training_instances(
                [str(raw)],
                tokenizer,
                length,
                copies,
                short,
                masked,
                most,
                random.Random(seed),
            )
            recorded.append(
                {
                    "max_seq_length": length,
                    "max_predictions_per_seq": most,
                    "dupe_factor": copies,
                    "short_seq_prob": short,
                    "masked_lm_prob": masked,
                    "do_whole_word_mask": whole,
                    "random_seed": seed,
                    "instances": [
                        [
                            " ".join(row.tokens),
                            sum(row.segment_ids),
                            row.masked_lm_positions,
                            " ".join(row.masked_lm_labels),
                            row.is_random_next,
                        ]
                        for row in instances
                    ],
                }
            )
    content = json.dumps(
        {"text": text, "vocabulary": vocabulary, "cases": recorded}
    )
    packed = gzip.compress(content.encode(), mtime=0)
    pathlib.Path(output).write_bytes(packed)


if __name__ == "__main__":
    main(*sys.argv[1:])
