"""The model that `--init_checkpoint` names, in every layout that is read.

Beside the weights lie the sizes and the vocabulary.
"""

import dataclasses
import os
from typing import Any, Dict, Mapping, Optional, Sequence, Tuple

import tensorflow as tf
from absl import logging

from adapter_bert import files, folder_lock
from adapter_bert.bert.config import BertConfig, same_activation
from adapter_bert.checkpoints import (
    adapter_artifact,
    dev_scores,
    google,
    hub_module,
    hugging_face_hub,
    published_models,
    run_record,
    sentence_transformers,
    training_state,
)
from adapter_bert.checkpoints.google import check_name, open_tensorflow
from adapter_bert.checkpoints.hugging_face import (
    HEAD_FIELDS,
    kind_of_head,
    open_safetensors,
    open_torch,
)
from adapter_bert.checkpoints.weights import Base, Pretrained, Weights
from adapter_bert.data.added_tokens import (
    ADDED,
    NEW,
    TOKENIZER_CONFIG_FILE,
    TOKENIZER_FILE,
    NewToken,
)
from adapter_bert.data.huggingface_tokenizer import (
    SubwordTokenizer,
    UnigramTokenizer,
    is_unigram,
)
from adapter_bert.data.tokenization import (
    FullTokenizer,
    TextTokenizer,
    check_rules,
)
from adapter_bert.errors import UserError

SAFETENSORS_FILE = "model.safetensors"
TORCH_FILE = "pytorch_model.bin"
GOOGLE_CHECKPOINT = "bert_model.ckpt"
VOCABULARY_FILE = "vocab.txt"
# Of `spiece.model` and `sentencepiece.bpe.model`.
PIECES_END = ".model"
HOW_TO_CONVERT = (
    "where transformers are, AutoTokenizer.from_pretrained(folder)"
    f".save_pretrained(folder) writes {TOKENIZER_FILE}"
)
# Google's, and Hugging Face's.
CONFIG_FILES = BERT_CONFIG_FILE, CONFIG_FILE = "bert_config.json", "config.json"
ALBERT_CONFIG_FILE = "albert_config.json"
# Some models round their vocabulary up to a multiple of 8 to 1024.
MAX_VOCABULARY_PADDING = 1023
# Tokenizers that find words by programs of their own.
FOREIGN_TOKENIZERS = (
    "BertJapaneseTokenizer",
    "BertweetTokenizer",
    "PhobertTokenizer",
)
# Other forms of Hugging Face's weights, which need other libraries.
FOREIGN = (
    "pytorch_model.bin.index.json",
    "model.safetensors.index.json",
    "tf_model.h5",
    "flax_model.msgpack",
)


def open_init_checkpoint(path: str) -> Pretrained:
    """Opens any of the layouts that can start a run.

    These are a TensorFlow checkpoint's prefix (Google's of either TensorFlow,
    adapter-bert's or a training checkpoint of this project), a `.safetensors`
    file, a `pytorch_model.bin`, a module of TF-Hub or Kaggle, a folder with one
    of these or of sentence-transformers, an archive of such a folder, a
    module's handle, or a repository of Hugging Face's hub (`hf:ORG/NAME`). Of a
    training checkpoint the model is the BERT under it, with `trained` and
    `run`. Raises UserError if nothing of the kind is there, or it or a
    training's BERT is damaged.
    """
    model = open_pretrained(path)
    folder = model.folder
    run_file = os.path.join(folder, run_record.RUN_FILE)
    is_pretrained = model.path.endswith(
        (".safetensors", TORCH_FILE, hub_module.MODEL_FILE)
    )
    if is_pretrained or model.weights.hub or not files.exists(run_file):
        return model
    run = run_record.read_description(run_file, "the run's description")
    advice = (
        "to use what was trained elsewhere, pass "
        f"{os.path.join(folder, 'adapter')} as --adapter next to it"
    )
    try:
        base_path = run_record.place_of_base(folder)
    except UserError as error:
        raise UserError(f"{error}; {advice}") from error
    if files.absolute(base_path) == files.absolute(model.path):
        # The run has written its files next to its BERT.
        return model
    try:
        base = open_pretrained(base_path)
    except UserError as error:
        raise UserError(
            f"{model.path} was trained on {base_path}, which cannot be "
            f"opened: {error}; if it lies elsewhere now, pass that as "
            f"--init_checkpoint; {advice}"
        ) from error
    return dataclasses.replace(
        base, path=model.path, trained=model.weights, run=run
    )


def _find_model(folder: str) -> str:
    """The model of a folder: a pretrained one before a training's.

    The best step of a training that kept it, else the newest.
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
    for name in (TORCH_FILE, *FOREIGN):
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
    """Opens what `open_init_checkpoint` takes, without the base of a training.

    Raises UserError if nothing of the kind is there, or it is damaged.
    """
    if not path:
        raise UserError("--init_checkpoint is empty; expected a path")
    if hugging_face_hub.is_named(path):
        path, hub = hugging_face_hub.fetch_model(path)
        opened = open_pretrained(path)
        weights = dataclasses.replace(opened.weights, hub=hub)
        return dataclasses.replace(opened, weights=weights)
    path = published_models.resolve(path)
    if published_models.is_archive(path):
        path = published_models.unpack(path)
    if not files.is_folder(path):
        return _open_file(path)
    if sentence_transformers.is_folder(path):
        try:
            place, pooled = sentence_transformers.read(path)
        except UserError as error:
            raise UserError(
                f"{error}; to take the BERT without its vectors, pass its "
                f"{SAFETENSORS_FILE}"
            ) from error
        opened = _open_file(_find_model(place))
        return dataclasses.replace(opened, pooled=pooled)
    # A training that goes on there may delete a checkpoint.
    return folder_lock.read_beside_writer(lambda: _find_model(path), _open_file)


def _open_file(path: str) -> Pretrained:
    """As `open_pretrained`, of a file or a prefix of files."""
    folder, name = os.path.split(path)
    if name in FOREIGN and files.exists(path):
        raise UserError(
            f"--init_checkpoint {path} cannot be read here, expected "
            f"{SAFETENSORS_FILE} in one piece; write it where Hugging Face's "
            "transformers are, as docs/checkpoints.md says"
        )
    if name == hub_module.MODEL_FILE:
        return hub_module.open_module(path)
    if path.endswith(".safetensors"):
        return _open_hugging_face(path, folder, open_safetensors(path))
    if name == TORCH_FILE and files.exists(path):
        return _open_hugging_face(path, folder, open_torch(path))
    check_name(path, "--init_checkpoint")
    if not files.exists(path + ".index"):
        raise UserError(google.refusal(path))
    weights = open_tensorflow(path)
    if hub_module.GRAPH in weights.shapes:
        # The form of tensorflow/models.
        weights, config, _ = hub_module.open_objects(path, path)
        heads = config.num_attention_heads if config else None
        return Pretrained(path, folder, weights, num_attention_heads=heads)
    # A merged BERT's head is described here.
    config = {}
    place = os.path.join(folder, BERT_CONFIG_FILE)
    if files.exists(place):
        config = files.read_object(place, "the BERT config", {})
    return Pretrained(path, folder, weights, **_head(config))


def _open_hugging_face(path: str, folder: str, weights: Weights) -> Pretrained:
    """A file's weights with their config and the tokenizer's."""
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
    """Values of `Pretrained` that a config says of a head."""
    labels, named = (), config.get("id2label")
    if isinstance(named, dict):
        numbers = range(len(named))
        labels = tuple(str(named.get(str(i), "")) for i in numbers)
        # transformers writes these for labels without names.
        if not all(labels) or labels == tuple(f"LABEL_{i}" for i in numbers):
            labels = ()
    if not labels and not kind_of_head(config):
        return {}
    head = {key: config[key] for key in HEAD_FIELDS if key in config}
    return {"labels": labels, "head": head}


def read_config(opened: Optional[Pretrained], path: str = "") -> BertConfig:
    """Reads the BERT config at a path, or the model's own or near it.

    Its `gelu` is the error function if the weights are Hugging Face's. Raises
    UserError if there is no config, it cannot be read, or it has another number
    of heads than the model's own files say.
    """
    if not path and opened is None:
        raise UserError("--bert_config_file is missing: the sizes of the BERT")
    if not path and opened.config is not None:
        return opened.config
    names = *CONFIG_FILES, ALBERT_CONFIG_FILE
    path = path or _beside(opened, names, "--bert_config_file")
    config = BertConfig.from_json_file(path)
    heads = opened and (opened.config or opened).num_attention_heads
    # The other sizes are compared with the variables.
    if heads and heads != config.num_attention_heads:
        what = "leave out" if opened.config else "pass the model's own as"
        raise UserError(
            f"{path} says {config.num_attention_heads} attention heads, but "
            f"{opened.path} has {heads}; {what} --bert_config_file"
        )
    if opened is not None and config.hidden_act == "gelu":
        config = dataclasses.replace(config, hidden_act=opened.weights.gelu)
    return config


def read_tokenizer(
    opened: Pretrained,
    config: BertConfig,
    path: str = "",
    do_lower_case: Optional[bool] = None,
    new_tokens: Sequence[NewToken] = (),
) -> TextTokenizer:
    """Reads the vocabulary at `path`, or the model's own, or its neighbour.

    A RoBERTa has `tokenizer.json`, which says whether texts are lower-cased.
    None for `do_lower_case` stands for what the model's own files say, or to
    lower-case unless the vocabulary has words with capital letters. A task's
    `new_tokens` follow the vocabulary's. Raises UserError if the vocabulary
    cannot be read, or does not fit the model, the letters' case or new tokens.
    """
    if path.endswith(PIECES_END):
        raise UserError(
            f"{path} is a model of SentencePiece, which is not read; expected "
            f"{TOKENIZER_FILE}; {HOW_TO_CONVERT}"
        )
    if config.is_roberta:
        return _read_subwords(opened, config, path, do_lower_case, new_tokens)
    path = path or find_vocabulary(opened)
    if is_unigram(path):
        return _read_subwords(opened, config, path, do_lower_case, new_tokens)
    said = ""
    if do_lower_case is None and opened.do_lower_case is not None:
        do_lower_case = opened.do_lower_case
        said = f"{opened.path} has do_lower_case={do_lower_case}, but "
    lower = do_lower_case is not False
    tokenizer = FullTokenizer(path, lower, new_tokens)
    if do_lower_case is None and tokenizer.is_cased:
        tokenizer = FullTokenizer(path, False, new_tokens)
    _check_size(tokenizer, config)
    if tokenizer.do_lower_case and tokenizer.is_cased:
        raise UserError(
            f"{said}the vocabulary has words with capital letters, which texts "
            "in lower case never use; pass --do_lower_case=false"
        )
    if not tokenizer.do_lower_case and tokenizer.is_uncased:
        raise UserError(
            f"{said}the vocabulary has no words with capital letters, so each "
            "such word of a text would be unknown; pass --do_lower_case=true"
        )
    return tokenizer


def _read_subwords(
    opened: Pretrained,
    config: BertConfig,
    path: str,
    do_lower_case: Optional[bool],
    new_tokens: Sequence[NewToken],
) -> SubwordTokenizer:
    """As `read_tokenizer`, for a RoBERTa or an ALBERT."""
    path = path or _beside(opened, (TOKENIZER_FILE,), "--vocab_file")
    if do_lower_case:
        raise UserError(
            f"--do_lower_case=true, but {path} says itself what becomes of "
            "capital letters; leave the flag out"
        )
    kind = SubwordTokenizer if config.is_roberta else UnigramTokenizer
    tokenizer = kind(path, new_tokens)
    _check_size(tokenizer, config)
    if config.is_roberta and tokenizer.padding_id + 1 != config.first_position:
        raise UserError(
            f"{path} has <pad> as {tokenizer.padding_id}, but the config says "
            f"pad_token_id {config.first_position - 1}; check --vocab_file"
        )
    return tokenizer


def find_vocabulary(opened: Pretrained) -> str:
    """The path of the model's vocabulary, or UserError if there is none."""
    return opened.vocab_file or _beside(
        opened, (VOCABULARY_FILE, TOKENIZER_FILE), "--vocab_file"
    )


def _check_size(tokenizer: TextTokenizer, config: BertConfig) -> None:
    """Compares a vocabulary's size with the model's."""
    size = tokenizer.vocab_size - len(tokenizer.new_tokens)
    padding = config.vocab_size - size
    also = f"; it has {_some_added(tokenizer)}" if tokenizer.added else ""
    if not 0 <= padding <= MAX_VOCABULARY_PADDING:
        raise UserError(
            f"the vocabulary has {size} entries, but the BERT "
            f"config says {config.vocab_size}; check --vocab_file{also}"
        )
    if padding and tokenizer.new_tokens:
        raise UserError(
            f"the model has {padding} entries more than the vocabulary, whose "
            "place new tokens would take; --new_tokens needs as many of both"
        )
    if padding:
        logging.info(
            "the model has %d entries more than the vocabulary, which no text "
            "uses",
            padding,
        )


def _some_added(tokenizer: TextTokenizer) -> str:
    """The count of a vocabulary's added tokens, and the first of them."""
    named = [a.token.content for a in tokenizer.added[:5]]
    return f"{len(tokenizer.added)} added tokens, as {named}"


def check_length(
    length: int,
    least: int,
    config: BertConfig,
    tokenizer: TextTokenizer,
    setting: str = "--max_seq_length",
) -> None:
    """Checks the value of a setting, an input's length in tokens.

    The task needs `least` tokens with a BERT's tokenizer; others may put more
    between two texts. Raises UserError if the length is too large or too small.
    """
    if length > config.max_tokens:
        raise UserError(
            f"{setting} is {length}, but the model has only "
            f"{config.max_tokens} positions"
        )
    least += tokenizer.between_count - 1
    if length < least:
        raise UserError(
            f"{setting} is {length}, but the task needs room for {least} tokens"
        )


def check_same_model(
    description: Mapping[str, Any],
    source: str,
    base: Base,
    config: BertConfig,
    tokenizer: TextTokenizer,
) -> None:
    """Compares a model with the one on which something was trained.

    The description is `run.json` or `adapter_config.json` at `source`. Raises
    UserError if they differ; the message says in what.
    """
    expected = description["base"]["fingerprint"]
    if base.fingerprint != expected:
        hub = description["base"].get("hub")
        raise UserError(
            f"{source} was trained on another BERT (fingerprint "
            f"{expected[:12]}) than {base.path} (fingerprint "
            f"{base.fingerprint[:12]})"
            + (f"; pass --init_checkpoint={hub}" if hub else "")
        )
    ours, theirs = tokenizer.describe(), description["tokenizer"]
    if NEW not in theirs:
        # What was trained without a task's own tokens does not depend on them.
        ours.pop(NEW, None)
    if ADDED in ours and theirs == {
        k: v for k, v in ours.items() if k != ADDED
    }:
        logging.warning(
            "%s was trained when tokens that are added to a vocabulary were "
            "not read: %s; texts that hold one give other answers now",
            source,
            _some_added(tokenizer),
        )
    elif theirs != ours:
        raise UserError(
            f"{source} was trained with another vocabulary or another "
            "--do_lower_case; pass those of its base"
        )
    for field in dataclasses.fields(config):
        name, value = field.name, getattr(config, field.name)
        # Older descriptions lack some.
        before = description["bert_config"].get(name, field.default)
        if name == "hidden_act" and same_activation(before, value):
            continue
        if before != value and not name.endswith("dropout_prob"):
            raise UserError(
                f"{source} was trained with {name} {before!r}, but the BERT "
                f"config says {value!r}; check --bert_config_file"
            )


def _beside(opened: Pretrained, names: Tuple[str, ...], flag: str) -> str:
    """The path of the first of `names` that lies next to a checkpoint."""
    for name in names:
        path = os.path.join(opened.folder, name)
        if files.exists(path):
            return path
    fault = f"no {' or '.join(names)} lies next to {opened.path}; pass {flag}"
    if TOKENIZER_FILE in names:
        fault += f"; {HOW_TO_CONVERT}"
    raise UserError(fault)
