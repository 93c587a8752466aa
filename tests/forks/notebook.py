"""A notebook: a classifier of a DataFrame, through `run_classifier`."""

import pandas as pd
import tensorflow.compat.v1 as tf

import modeling
import run_classifier
import tokenization
from optimization import trained_variables

tf.disable_v2_behavior()
LENGTH, STEPS = 12, 25


def main(data_dir, bert, output_dir, tuning_method=None):
    table = pd.read_csv(f"{data_dir}/train.tsv", sep="\t")
    labels = sorted(table["label"].unique())
    examples = table.apply(
        lambda row: run_classifier.InputExample(
            guid=None, text_a=row["text"], text_b=None, label=row["label"]
        ),
        axis=1,
    )
    tokenizer = tokenization.FullTokenizer(f"{bert}/vocab.txt")
    features = run_classifier.convert_examples_to_features(
        list(examples), labels, LENGTH, tokenizer
    )
    seen = []
    build = run_classifier.model_fn_builder(
        bert_config=modeling.BertConfig.from_json_file(
            f"{bert}/bert_config.json"
        ),
        num_labels=len(labels),
        init_checkpoint=f"{bert}/bert_model.ckpt",
        learning_rate=1e-2,
        num_train_steps=STEPS,
        num_warmup_steps=2,
        use_tpu=False,
        use_one_hot_embeddings=False,
        tuning_method=tuning_method,
    )

    def model_fn(features, labels, mode, params):
        spec = build(features, labels, mode, params)
        if mode == tf.estimator.ModeKeys.TRAIN:
            seen[:] = [v.op.name for v in trained_variables()]
        return spec

    estimator = tf.estimator.tpu.TPUEstimator(
        use_tpu=False,
        model_fn=model_fn,
        config=tf.estimator.tpu.RunConfig(
            model_dir=output_dir, tf_random_seed=1
        ),
        train_batch_size=8,
        eval_batch_size=8,
    )

    def input_fn(is_training):
        return run_classifier.input_fn_builder(
            features, LENGTH, is_training, drop_remainder=False
        )

    estimator.train(input_fn(True), max_steps=STEPS)
    scores = estimator.evaluate(input_fn(False), steps=len(features) // 8)
    return {"trained": seen, "loss": float(scores["eval_loss"])}
