"""What `--init_checkpoint` names, in every layout that can start a run."""

import dataclasses
import os
from typing import Any, Dict, Optional, Tuple

import tensorflow as tf

from added_tokens import TOKENIZER_CONFIG_FILE
from errors import UserError
from storage import files, newest
from tokenization import check_rules
from weights import (
    adapter_artifact,
    archives,
    dev_scores,
    google,
    handles,
    hub_module,
    object_graph,
    run_record,
    training_state,
)
from weights.base import Pretrained, Weights
from weights.google import check_name, open_tensorflow
from weights.hugging_face import (
    HEAD_FIELDS,
    kind_of_head,
    open_safetensors,
    pickle_advice,
)

SAFETENSORS_FILE = "model.safetensors"
GOOGLE_CHECKPOINT = "bert_model.ckpt"
# Beside the first.
CONFIG_FILE = "config.json"
# Beside the second.
BERT_CONFIG_FILE = "bert_config.json"
# Of BERTs for languages or texts whose words no rule of BERT's finds.
FOREIGN_TOKENIZERS = (
    "BertJapaneseTokenizer",
    "BertweetTokenizer",
    "PhobertTokenizer",
)
# Other forms of Hugging Face's weights, which need their own libraries.
FOREIGN = (
    "pytorch_model.bin",
    "model.safetensors.index.json",
    "tf_model.h5",
    "flax_model.msgpack",
)


@dataclasses.dataclass(frozen=True)
class InitCheckpoint(Pretrained):
    """What `--init_checkpoint` names: a BERT, or a training upon one.

    All but `path` is of the BERT.

    Attributes:
        trained: a training checkpoint's own variables, else None.
        run: the content of the run's `run.json`, else None.
    """

    trained: Optional[Weights] = None
    run: Optional[Dict[str, Any]] = None


def open_init_checkpoint(path: str) -> InitCheckpoint:
    """Opens any of the layouts that can start a run.

    Args:
        path: a TensorFlow checkpoint's prefix (Google's of either
            TensorFlow, adapter-bert's or a training checkpoint of this
            project), a `.safetensors` file, a module of TF-Hub or Kaggle, a
            folder with one of these, an archive of such a folder, or a
            module's handle.

    Raises:
        UserError: nothing of the kind is there, or it is damaged, or the base
            of a training checkpoint is.
    """
    model = open_pretrained(path)
    opened, folder = InitCheckpoint(**vars(model)), model.folder
    run_file = os.path.join(folder, run_record.RUN_FILE)
    # Its training may have deleted it by now.
    is_checkpoint = not model.path.endswith(
        (".safetensors", hub_module.MODEL_FILE)
    )
    if not is_checkpoint or not files.exists(run_file):
        return opened
    run = run_record.read_description(run_file, "the run's description")
    advice = (
        "to use what was trained elsewhere, pass "
        f"{os.path.join(folder, 'adapter')} as --adapter beside it"
    )
    try:
        base_path = run_record.place_of_base(folder)
    except UserError as error:
        raise UserError(f"{error}; {advice}") from error
    if files.absolute(base_path) == files.absolute(model.path):
        # A run has written its files beside the model that it started from.
        return opened
    try:
        base = open_pretrained(base_path)
    except UserError as error:
        raise UserError(
            f"{model.path} was trained upon {base_path}, which cannot be "
            f"opened: {error}; if it lies elsewhere now, pass that as "
            f"--init_checkpoint; {advice}"
        ) from error
    return InitCheckpoint(
        **{**vars(base), "path": model.path}, trained=model.weights, run=run
    )


def _find_model(folder: str) -> str:
    """The model of a folder: a pretrained one before a training's.

    Of a training that kept its best step that one, else the newest.
    """
    for name, end in (
        (SAFETENSORS_FILE, ""),
        (GOOGLE_CHECKPOINT, ".index"),
        (hub_module.MODEL_FILE, ""),
    ):
        path = os.path.join(folder, name)
        if files.exists(path + end):
            return path
    newest, _ = training_state.latest_step(folder)
    path = dev_scores.best_checkpoint(folder) or newest
    if path is not None:
        return path
    for name in FOREIGN:
        path = os.path.join(folder, name)
        if files.exists(path):
            return path
    lacks = (
        f"the folder {folder} holds no {SAFETENSORS_FILE}, no "
        f"{GOOGLE_CHECKPOINT} and no {hub_module.MODEL_FILE}; pass "
    )
    if files.exists(os.path.join(folder, adapter_artifact.CONFIG_FILE)):
        raise UserError(
            f"{lacks}the BERT as --init_checkpoint, and this adapter as "
            "--adapter"
        )
    names = tf.io.gfile.listdir(folder)
    # Whole ones first.
    for name in sorted(names, key=lambda n: (not n.endswith(".index"), n)):
        prefix = os.path.join(folder, google.FILE_ENDS.sub("", name))
        if prefix != os.path.join(folder, name):
            if not files.exists(f"{prefix}.index"):
                raise UserError(google.refusal(prefix))
            raise UserError(
                f"{lacks}a checkpoint by what its files begin with, "
                f"--init_checkpoint={prefix}"
            )
    raise UserError(
        f"{lacks}--init_checkpoint with one, or with a checkpoint's prefix"
    )


def open_pretrained(path: str) -> Pretrained:
    """Opens what `open_init_checkpoint` takes, as it is.

    Raises:
        UserError: nothing of the kind is there, or it is damaged.
    """
    if not path:
        raise UserError("--init_checkpoint is empty; expected a path")
    path = handles.resolve(path)
    if archives.is_archive(path):
        path = archives.unpack(path)
    if not files.is_folder(path):
        return _open_file(path)
    # A training that goes on there may delete it meanwhile.
    return newest.read_newest(lambda: _find_model(path), _open_file)


def _open_file(path: str) -> Pretrained:
    """As `open_pretrained`, of a file or a prefix of files."""
    folder, name = os.path.split(path)
    if name in FOREIGN and files.exists(path):
        _refuse(path)
    if name == hub_module.MODEL_FILE:
        return hub_module.open_module(path)
    if path.endswith(".safetensors"):
        return _open_hugging_face(path, folder)
    check_name(path, "--init_checkpoint")
    if not files.exists(path + ".index"):
        raise UserError(google.refusal(path))
    weights = open_tensorflow(path)
    if object_graph.GRAPH in weights.shapes:
        # As tensorflow/models publish theirs.
        weights, config, _ = object_graph.open_objects(path, path)
        heads = config.num_attention_heads if config else None
        return Pretrained(path, folder, weights, num_attention_heads=heads)
    # Where a merged BERT has it.
    config = {}
    place = os.path.join(folder, BERT_CONFIG_FILE)
    if files.exists(place):
        config = files.read_object(place, "the BERT config", {})
    return Pretrained(path, folder, weights, **_head(config))


def _open_hugging_face(path: str, folder: str) -> Pretrained:
    """Opens a safetensors file, and reads what lies beside it.

    Raises:
        UserError: a file is damaged; or texts are prepared as cannot be done
            here.
    """
    weights = open_safetensors(path, translate=True)
    found = []
    for name in (CONFIG_FILE, TOKENIZER_CONFIG_FILE):
        place, described = os.path.join(folder, name), {}
        if files.exists(place):
            described = files.read_object(
                place, "a description of a model", {"do_lower_case?": bool}
            )
        foreign = described.get("tokenizer_class")
        if foreign in FOREIGN_TOKENIZERS:
            raise UserError(
                f"{place}: {foreign} cuts texts into words by a program of its "
                "own, which cannot be done here; expected a tokenizer of BERT, "
                "RoBERTa or XLM-R"
            )
        found.append(described)
    config, tokenizer = found
    lower = tokenizer.get("do_lower_case")
    check_rules(
        os.path.join(folder, TOKENIZER_CONFIG_FILE),
        lower,
        tokenizer.get("strip_accents"),
        tokenizer.get("tokenize_chinese_chars"),
    )
    return Pretrained(
        path, folder, weights, do_lower_case=lower, **_head(config)
    )


def _head(config: Dict[str, Any]) -> Dict[str, Any]:
    """What a config says of a head: values of `Pretrained`."""
    labels = _labels(config.get("id2label"))
    if not labels and not kind_of_head(config):
        return {}
    head = {key: config[key] for key in HEAD_FIELDS if key in config}
    return {"labels": labels, "head": head}


def _labels(named: Any) -> Tuple[str, ...]:
    """The labels of a head's outputs, of `id2label` of a config; or none.

    `LABEL_0` and so on, which transformers writes where nobody has named any,
    are no names.
    """
    if not isinstance(named, dict):
        return ()
    labels = tuple(str(named.get(str(i), "")) for i in range(len(named)))
    unnamed = tuple(f"LABEL_{i}" for i in range(len(named)))
    return labels if all(labels) and labels != unnamed else ()


def _refuse(path: str) -> None:
    """Says how to make a file that can be read of one that cannot."""
    folder, name = os.path.split(path)
    whole = os.path.join(folder, SAFETENSORS_FILE)
    if name == "pytorch_model.bin":
        raise UserError(pickle_advice(path, whole))
    raise UserError(
        f"--init_checkpoint {path} cannot be read here, expected "
        f"{SAFETENSORS_FILE} in one piece; write it where Hugging Face's "
        "transformers are, as docs/checkpoints.md says"
    )
