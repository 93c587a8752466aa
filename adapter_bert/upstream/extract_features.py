"""Names of google-research/bert's `extract_features.py`: hidden states."""

import dataclasses
import importlib
import json
import re
from typing import Optional

import tensorflow as tf

from adapter_bert.upstream import modeling, records

# Decimals of the numbers in a file.
DECIMALS = 6


@dataclasses.dataclass(eq=False, repr=False)
class InputExample:
    """Holds a line: one text or two."""

    unique_id: int
    text_a: str
    text_b: Optional[str]


@dataclasses.dataclass(eq=False, repr=False)
class InputFeatures:
    """Holds a line's tokens, without padding, and `seq_length` numbers each.

    `input_mask` is 1 for tokens, `input_type_ids` are 1 for the second text.
    """

    unique_id: int
    tokens: list[str]
    input_ids: list[int]
    input_mask: list[int]
    input_type_ids: list[int]


def read_examples(input_file):
    """Reads a text a line; ` ||| ` stands between two."""
    with tf.io.gfile.GFile(input_file, "r") as file:
        return examples_of(file)


def examples_of(lines):
    """Makes the examples of lines, as `read_examples` reads them."""
    examples = []
    for number, line in enumerate(lines):
        text = line.strip()
        pair = re.fullmatch(r"(.*) \|\|\| (.*)", text)
        texts = pair.groups() if pair else (text, None)
        examples.append(InputExample(number, *texts))
    return examples


def convert_examples_to_features(examples, seq_length, tokenizer):
    """Makes the features of each line, cut and padded to `seq_length`."""
    features = []
    for example in examples:
        tokens, rows = records.make_row(
            tokenizer,
            tokenizer.tokenize(example.text_a),
            tokenizer.tokenize(example.text_b) if example.text_b else None,
            seq_length,
        )
        features.append(InputFeatures(example.unique_id, tokens, *rows))
    return features


def input_fn_builder(features, seq_length):
    """Makes an `input_fn` over features in memory."""
    del seq_length
    return records.memory_input_fn(
        {
            "unique_ids": [f.unique_id for f in features],
            "input_ids": [f.input_ids for f in features],
            "input_mask": [f.input_mask for f in features],
            "input_type_ids": [f.input_type_ids for f in features],
        },
        False,
        False,
    )


def model_fn_builder(
    bert_config,
    init_checkpoint,
    layer_indexes,
    use_tpu,
    use_one_hot_embeddings,
    tuning_method=None,
):
    """Makes a `model_fn` for prediction: `layer_output_<n>`, float32 [B, T, D].

    Arguments are those of `modeling.BertModel`; `layer_indexes` count from 0 or
    from the last.
    """

    def model_fn(features, labels, mode, params):
        """Raises ValueError in another mode than prediction."""
        del labels, params
        if mode != modeling.ModeKeys.PREDICT:
            raise ValueError(f"the mode is {mode}, expected PREDICT")
        model = modeling.BertModel(
            bert_config,
            False,
            features["input_ids"],
            features["input_mask"],
            features["input_type_ids"],
            use_one_hot_embeddings,
            tuning_method=tuning_method,
        )
        layers = model.get_all_encoder_layers()
        outputs = {
            f"layer_output_{n}": layers[index]
            for n, index in enumerate(layer_indexes)
        }
        outputs["unique_id"] = features["unique_ids"]
        return modeling.make_spec(
            mode, init_checkpoint, [use_tpu], predictions=outputs
        )

    return model_fn


def json_line(
    feature,
    layer_indexes,
    outputs,
):
    """Gives a line of hidden states, float32 [T, D] for each layer."""
    tokens = [
        {
            "token": token,
            "layers": [
                {
                    "index": index,
                    "values": [
                        round(float(x), DECIMALS) for x in output[place]
                    ],
                }
                for index, output in zip(layer_indexes, outputs)
            ],
        }
        for place, token in enumerate(feature.tokens)
    ]
    # `linex` is how the published program writes it.
    return json.dumps({"linex_index": feature.unique_id, "features": tokens})


_truncate_seq_pair = records.truncate_pair


def main(_=None):
    """Runs the program by the command line's flags; raises SystemExit."""
    # The program stands above this room.
    importlib.import_module("adapter_bert.commands").run("extract_features")
