"""Cross-encoders of sentence-transformers, in each form of their files."""

import shutil

import numpy as np
from conftest import read_json, write_json
from safetensors.numpy import load_file, save_file

from adapter_bert.tasks.reranking import LINEAR, SIGMOID, TORCH

OLD = "sbert_ce_default_activation_function"
# Name -> activation, fields of config.json, whether version 5.7 has saved it.
FORMS = {
    "version 4": (
        LINEAR,
        {"sentence_transformers": {"activation_fn": TORCH[LINEAR]}},
        False,
    ),
    "version 3": (SIGMOID, {OLD: TORCH[SIGMOID]}, False),
    "version 3 without": (LINEAR, {OLD: TORCH[LINEAR]}, False),
    "version 5": (LINEAR, {}, True),
    "transformers": (SIGMOID, {}, False),
}


def make(bert, folder, form):
    """Writes one with the tiny BERT's weights and a random head."""
    activation, fields, is_saved_whole = FORMS[form]
    shutil.copytree(bert, folder)
    config = {**read_json(folder / "config.json"), "model_type": "bert"}
    config["architectures"] = ["BertForSequenceClassification"]
    config["id2label"] = {"0": "LABEL_0"}
    write_json(folder / "config.json", {**config, **fields})
    tensors = load_file(folder / "model.safetensors")
    tensors = {f"bert.{name}": value for name, value in tensors.items()}
    rng = np.random.default_rng(0)
    tensors["classifier.weight"] = rng.normal(size=(1, 16)).astype("float32")
    tensors["classifier.bias"] = np.float32([0.25])
    save_file(tensors, folder / "model.safetensors", {"format": "pt"})
    about = {"tokenizer_class": "BertTokenizer", "model_max_length": 24}
    write_json(
        folder / "tokenizer_config.json", {**about, "do_lower_case": True}
    )
    if is_saved_whole:
        module = "sentence_transformers.base.modules.transformer.Transformer"
        write_json(
            folder / "modules.json",
            [{"idx": 0, "name": "0", "path": "", "type": module}],
        )
        write_json(
            folder / "config_sentence_transformers.json",
            {
                "activation_fn": TORCH[activation],
                "model_type": "CrossEncoder",
                "prompts": {},
            },
        )
        write_json(
            folder / "sentence_bert_config.json",
            {
                "transformer_task": "sequence-classification",
                "modality_config": {
                    "text": {
                        "method": "forward",
                        "method_output_name": "logits",
                    }
                },
                "module_output_name": "scores",
            },
        )
    return folder
