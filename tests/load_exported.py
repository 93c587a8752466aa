"""Asks an exported model, in a process that has nothing of this project.

python load_exported.py FOLDER < columns.json

It loads the model as TensorFlow 2 does and as version 1 did, and prints the
answers of both, a list of rows each.
"""

import json
import sys

import tensorflow as tf


def rows(columns):
    """Arrays by name as a list of rows."""
    lists = {name: values.tolist() for name, values in columns.items()}

    def tell(value):
        if isinstance(value, list):
            return [tell(x) for x in value]
        return value.decode() if isinstance(value, bytes) else value

    count = len(lists["kind"])
    return [
        {name: tell(values[row]) for name, values in lists.items()}
        for row in range(count)
    ]


def main():
    folder, columns = sys.argv[1], json.load(sys.stdin)
    signature = tf.saved_model.load(folder).signatures["serving_default"]
    outputs = signature(**{k: tf.constant(v) for k, v in columns.items()})
    new = rows({name: value.numpy() for name, value in outputs.items()})

    v1 = tf.compat.v1
    with v1.Graph().as_default(), v1.Session() as session:
        loaded = v1.saved_model.loader.load(session, ["serve"], folder)
        signature = loaded.signature_def["serving_default"]
        old = session.run(
            {name: x.name for name, x in signature.outputs.items()},
            {signature.inputs[k].name: v for k, v in columns.items()},
        )
    print(json.dumps([new, rows(old)]))


if __name__ == "__main__":
    main()
