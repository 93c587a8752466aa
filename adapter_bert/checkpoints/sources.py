"""The model that `--init_checkpoint` names, in every layout that is read.

Beside the weights lie the sizes and the vocabulary.
"""

import contextlib
import dataclasses
import os
from collections.abc import Iterator, Sequence
from typing import Any, Callable, NamedTuple, Optional

from absl import logging

from adapter_bert import files, folder_lock
from adapter_bert.bert.architectures import ARCHITECTURES
from adapter_bert.bert.config import BertConfig
from adapter_bert.checkpoints import (
    adapter_artifact,
    google,
    hugging_face,
    run_record,
    training_state,
)
from adapter_bert.checkpoints.weights import HUB, POOLER, Pretrained
from adapter_bert.data.added_tokens import (
    TOKENIZER_CONFIG_FILE,
    TOKENIZER_FILE,
    NewToken,
)
from adapter_bert.data.tokenization import FullTokenizer, TextTokenizer
from adapter_bert.data.tokenizer_config import read_rules
from adapter_bert.errors import UserError

SAFETENSORS_FILE = "model.safetensors"
TORCH_FILE = "pytorch_model.bin"
MODULE_FILE = "saved_model.pb"
# Of sentence-transformers.
MODULES_FILE = "modules.json"
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
# Other forms of Hugging Face's weights, which need other libraries.
FOREIGN = (
    "pytorch_model.bin.index.json",
    "model.safetensors.index.json",
    "tf_model.h5",
    "flax_model.msgpack",
)


def open_untrained(path: str) -> Pretrained:
    """Opens what `--init_checkpoint` names; refuses a training."""
    opened = open_init_checkpoint(path)
    if opened.trained is not None:
        raise UserError(
            f"{opened.path} is a training's checkpoint; pass the pretrained "
            f"BERT as --init_checkpoint ({opened.folder}), and the run's "
            "folder adapter/ as --adapter"
        )
    return opened


def open_init_checkpoint(path: str) -> Pretrained:
    """Opens any of the layouts that can start a run.

    Of a training checkpoint the model is the BERT under it, with `trained` and
    `run`.
    """
    model = open_pretrained(path)
    folder = model.folder
    run_file = os.path.join(folder, run_record.RUN_FILE)
    may_be_trained = not _layout_of(model.path).end and not model.weights.hub
    if not may_be_trained or not files.exists(run_file):
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
    for layout in FILES:
        path = layout.find(folder)
        if path is not None:
            return path
    lacks = (
        f"the folder {folder} holds no {SAFETENSORS_FILE}, no "
        f"{GOOGLE_CHECKPOINT} and no {MODULE_FILE}; pass "
    )
    if files.exists(os.path.join(folder, adapter_artifact.CONFIG_FILE)):
        raise UserError(
            f"{lacks}the BERT as --init_checkpoint, and this adapter as "
            "--adapter"
        )
    for name in sorted(files.listed(folder)):
        if name.endswith(".index"):
            prefix = os.path.join(folder, google.FILE_ENDS.sub("", name))
            raise UserError(
                f"{lacks}a checkpoint by what its files begin with, "
                f"--init_checkpoint={prefix}"
            )
    raise UserError(
        f"{lacks}--init_checkpoint with one, or with a checkpoint's prefix"
    )


def open_pretrained(path: str) -> Pretrained:
    """Opens what `open_init_checkpoint` takes, without a training's base."""
    return next(open_it(path) for is_it, open_it in WAYS if is_it(path))


def _is_missing(path: str) -> bool:
    return path.startswith(("http://", "https://")) or not (
        files.exists(path) or files.exists(path + ".index")
    )


def _is_archive(path: str) -> bool:
    ends = path.lower().endswith((".zip", ".tar.gz", ".tgz"))
    return ends and not files.is_folder(path)


def _has_modules(path: str) -> bool:
    modules = os.path.join(path, MODULES_FILE)
    return files.is_folder(path) and files.exists(modules)


def _open_hub(path: str) -> Pretrained:
    from adapter_bert.checkpoints import hugging_face_hub

    path, hub = hugging_face_hub.fetch_model(path)
    model = open_pretrained(path)
    weights = dataclasses.replace(model.weights, hub=hub)
    return dataclasses.replace(model, weights=weights)


def _open_published(path: str) -> Pretrained:
    from adapter_bert.checkpoints import published_models

    place = published_models.resolve(path)
    if place == path:
        raise UserError(google.refusal(path))
    return open_pretrained(place)


def _open_archive(path: str) -> Pretrained:
    from adapter_bert.checkpoints import published_models

    return open_pretrained(published_models.unpack(path))


def _open_vectors(path: str) -> Pretrained:
    place, modules = path, os.path.join(path, MODULES_FILE)
    # Most models are in the folder itself.
    if b'"path": ""' not in files.read_bytes(modules, "the modules"):
        from adapter_bert.checkpoints import sentence_transformers

        with _naming_the_model():
            place = os.path.join(path, *sentence_transformers.places(path)[:1])
    model = _open_file(_find_model(place))
    if hugging_face.kind_of_head(model.head) == hugging_face.RERANK:
        return model

    def read_pooled() -> Any:
        from adapter_bert.checkpoints import sentence_transformers

        with _naming_the_model():
            _, pooled = sentence_transformers.read(path)
        width = read_config(model).hidden_size
        sentence_transformers.check_width(path, pooled, width)
        return pooled

    return dataclasses.replace(model, read_pooled=read_pooled)


@contextlib.contextmanager
def _naming_the_model() -> Iterator[None]:
    try:
        yield
    except UserError as error:
        raise UserError(
            f"{error}; to take the BERT without its vectors, pass its "
            f"{SAFETENSORS_FILE}"
        ) from error


def _open_folder(path: str) -> Pretrained:
    # A training that goes on there may delete a checkpoint.
    return folder_lock.read_beside_writer(lambda: _find_model(path), _open_file)


def _refuse_foreign(path: str) -> Pretrained:
    raise UserError(
        f"--init_checkpoint {path} cannot be read here, expected "
        f"{SAFETENSORS_FILE} in one piece; write it where Hugging Face's "
        "transformers are, as docs/checkpoints.md says"
    )


def _open_module(path: str) -> Pretrained:
    from adapter_bert.checkpoints import hub_module

    return hub_module.open_module(path)


def _open_hugging_face(path: str) -> Pretrained:
    is_torch = path.endswith(TORCH_FILE)
    read = (
        hugging_face.open_torch if is_torch else hugging_face.open_safetensors
    )
    weights, folder = read(path), os.path.dirname(path)
    config = _read_near(folder, CONFIG_FILE)
    whole = _read_near(folder, "config_sentence_transformers.json")
    if whole.get("model_type") == "CrossEncoder":
        config[hugging_face.CROSS_ENCODER] = whole
    # A tokenizer that is none of BERT's is refused before all else.
    read_rules(folder, {}, folder)
    model = ARCHITECTURES.get(str(config.get("model_type")))
    kind = hugging_face.kind_of_head(config)
    if kind == hugging_face.MULTIPLE_CHOICE and model:
        from adapter_bert.checkpoints import hugging_face_heads

        if model.choices[0] == hugging_face_heads.pooler_of(model):
            weights = hugging_face_heads.with_pooler_as_layer(weights)
    return Pretrained(path, folder, weights, **_head(config))


def _open_checkpoint(path: str) -> Pretrained:
    google.check_name(path, "--init_checkpoint")
    if not files.exists(path + ".index"):
        raise UserError(google.refusal(path))
    weights, folder = google.open_tensorflow(path), os.path.dirname(path)
    if google.OBJECT_GRAPH in weights.shapes:
        # The form of tensorflow/models.
        from adapter_bert.checkpoints import hub_module

        weights, config, _ = hub_module.open_objects(path, path)
        heads = config.num_attention_heads if config else None
        return Pretrained(path, folder, weights, num_attention_heads=heads)
    # A merged BERT's head is described here.
    config = _read_near(folder, BERT_CONFIG_FILE)
    return Pretrained(path, folder, weights, **_head(config))


def longest_input(opened: Pretrained) -> Optional[int]:
    """Reads the tokens of the longest input that a tokenizer's files tell."""
    described = _read_near(opened.folder or "", TOKENIZER_CONFIG_FILE)
    length = described.get("model_max_length")
    return length if type(length) is int and length > 0 else None


def _read_near(folder: str, name: str) -> dict[str, Any]:
    path = os.path.join(folder, name)
    return files.read_optional(path, "a description of a model", {})


def _newest_step(folder: str) -> Optional[str]:
    newest, _ = training_state.latest_step(folder)
    from adapter_bert.checkpoints import dev_scores

    # The best step of a training that kept it, else the newest.
    return dev_scores.best_checkpoint(folder) or newest


def named(name: str, end: str = "") -> Callable[[str], Optional[str]]:
    """Gives what finds a file of a name, or a prefix of one with an end."""

    def find(folder: str) -> Optional[str]:
        path = os.path.join(folder, name)
        return path if files.exists(path + end) else None

    return find


class Layout(NamedTuple):
    """Says where a model lies in a folder, and what opens it.

    Attributes:
        find: folder -> path of such a model, or None.
        end: of the paths of such models; "" for a checkpoint's prefix, which
            may be a training's.
        open: reads the model at a path.
    """

    find: Callable[[str], Optional[str]]
    end: str
    open: Callable[[str], Pretrained]


# In a folder the first counts, of a path the longest ending.
FILES: tuple[Layout, ...] = (
    Layout(named(SAFETENSORS_FILE), ".safetensors", _open_hugging_face),
    Layout(named(GOOGLE_CHECKPOINT, ".index"), "", _open_checkpoint),
    Layout(named(MODULE_FILE), MODULE_FILE, _open_module),
    Layout(_newest_step, "", _open_checkpoint),
    Layout(named(TORCH_FILE), TORCH_FILE, _open_hugging_face),
    *(Layout(named(name), name, _refuse_foreign) for name in FOREIGN),
)


def _layout_of(path: str) -> Layout:
    layouts = [layout for layout in FILES if path.endswith(layout.end)]
    return max(layouts, key=lambda layout: len(layout.end))


def _open_file(path: str) -> Pretrained:
    return _layout_of(path).open(path)


# Other paths that lead to a model: is it one, and what opens it.
WAYS: tuple[tuple[Callable[[str], bool], Callable[[str], Pretrained]], ...] = (
    (lambda path: path.startswith(HUB), _open_hub),
    (_is_missing, _open_published),
    (_is_archive, _open_archive),
    (_has_modules, _open_vectors),
    (files.is_folder, _open_folder),
    (lambda path: True, _open_file),
)


def _head(config: dict[str, Any]) -> dict[str, Any]:
    labels, named = (), config.get("id2label")
    if isinstance(named, dict):
        numbers = range(len(named))
        labels = tuple(str(named.get(str(i), "")) for i in numbers)
        # transformers writes these for labels without names.
        if not all(labels) or labels == tuple(f"LABEL_{i}" for i in numbers):
            labels = ()
    if not labels and "For" not in str(config.get("architectures")):
        return {}
    head = {
        key: config[key] for key in hugging_face.HEAD_FIELDS if key in config
    }
    if activation := hugging_face.activation_of_scores(config):
        head[hugging_face.CROSS_ENCODER] = {"activation_fn": activation}
    return {"labels": labels, "head": head}


def read_config(opened: Optional[Pretrained], path: str = "") -> BertConfig:
    """Reads the BERT config at a path, or the model's own or near it.

    Its `gelu` is the error function if the weights are Hugging Face's.
    """
    if not path and opened is None:
        raise UserError("--bert_config_file is missing: the sizes of the BERT")
    if not path and opened.config is not None:
        return _without_missing_pooler(opened.config, opened)
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
    return _without_missing_pooler(config, opened)


def _without_missing_pooler(
    config: BertConfig, opened: Optional[Pretrained]
) -> BertConfig:
    if opened is None or not config.has_pooler:
        return config
    has_pooler = any(name.startswith(POOLER) for name in opened.weights.shapes)
    return dataclasses.replace(config, pooler=has_pooler)


def read_tokenizer(
    opened: Optional[Pretrained],
    config: Optional[BertConfig],
    path: str = "",
    do_lower_case: Optional[bool] = None,
    new_tokens: Sequence[NewToken] = (),
    is_case_said: bool = True,
) -> TextTokenizer:
    """Reads the vocabulary at `path`, or the model's own, or its neighbour.

    The rules are those of the files next to the vocabulary, else next to the
    model.

    Args:
        opened: the model; None to take the vocabulary at `path` alone.
        config: of the model, or None.
        path: of the vocabulary, or "".
        do_lower_case: None for what those files say, else to lower-case unless
            the vocabulary has words with capital letters.
        new_tokens: a task's own, which follow the vocabulary's.
        is_case_said: whether the files' word on the case counts.
    """
    if path.endswith(PIECES_END):
        raise UserError(
            f"{path} is a model of SentencePiece, which is not read; expected "
            f"{TOKENIZER_FILE}; {HOW_TO_CONVERT}"
        )
    path = path or find_vocabulary(opened)
    folder, name = os.path.split(path)
    kind = None
    if name.endswith(".json"):
        from adapter_bert.data.huggingface_tokenizer import kind_of_file

        kind = kind_of_file(path)
    else:
        name = TOKENIZER_FILE
    if kind is not None and do_lower_case:
        raise UserError(
            f"--do_lower_case=true, but {path} says itself what becomes of "
            "capital letters; leave the flag out"
        )
    described = {} if kind else _read_near(folder, name)
    rules = read_rules(folder, described, opened.folder if opened else folder)
    if config is not None and config.type_vocab_size < 2:
        # Of such a model the config says it all.
        rules = dataclasses.replace(rules, has_segments=True)
    if kind is not None:
        return _checked(kind(path, new_tokens, rules), config)
    contrary, more = "", (new_tokens, rules, described)
    if do_lower_case is None and is_case_said:
        do_lower_case = rules.do_lower_case
        if do_lower_case is None and opened is not None:
            do_lower_case = opened.do_lower_case
        if do_lower_case is not None:
            where = opened.path if opened else path
            contrary = f"{where} has do_lower_case={do_lower_case}, but "
    tokenizer = FullTokenizer(path, do_lower_case is not False, *more)
    if do_lower_case is None and tokenizer.is_cased:
        tokenizer = FullTokenizer(path, False, *more)
    _checked(tokenizer, config)
    if tokenizer.do_lower_case and tokenizer.is_cased:
        raise UserError(
            f"{contrary}the vocabulary has words with capital letters, which "
            "texts in lower case never use; pass --do_lower_case=false"
        )
    if not tokenizer.do_lower_case and tokenizer.is_uncased:
        raise UserError(
            f"{contrary}the vocabulary has no words with capital letters, so "
            "each such word would be unknown; pass --do_lower_case=true"
        )
    return tokenizer


def find_vocabulary(opened: Pretrained) -> str:
    """Finds the path of the model's vocabulary."""
    return opened.vocab_file or _beside(
        opened, (VOCABULARY_FILE, TOKENIZER_FILE), "--vocab_file"
    )


def _checked(
    tokenizer: TextTokenizer, config: Optional[BertConfig]
) -> TextTokenizer:
    if config is None:
        return tokenizer
    if config.type_vocab_size == 1 and tokenizer.second_segment:
        tokenizer.second_segment = 0
        logging.log_first_n(
            logging.INFO,
            "the model has one vector of segments: both texts of a pair get it",
            1,
        )
    size = tokenizer.vocab_size - len(tokenizer.new_tokens)
    padding = config.vocab_size - size
    some = [one.token.content for one in tokenizer.added[:5]]
    also = (
        f"; it has {len(tokenizer.added)} added tokens, as {some}"
        if some
        else ""
    )
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
    name = tokenizer.special["pad_token"]
    place = tokenizer.vocabulary.get(name, 0)
    if config.first_position not in (0, place + 1):
        raise UserError(
            f"the vocabulary has {name} as {place}, but the config says "
            f"pad_token_id {config.first_position - 1}; check --vocab_file"
        )
    return tokenizer


def check_length(
    length: int,
    least: int,
    config: BertConfig,
    tokenizer: TextTokenizer,
    setting: str = "--max_seq_length",
) -> None:
    """Checks the value of a setting, an input's length in tokens.

    The task needs `least` tokens with a BERT's tokenizer; others may put more
    between two texts.
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


def _beside(opened: Pretrained, names: tuple[str, ...], flag: str) -> str:
    for name in names:
        path = os.path.join(opened.folder, name)
        if files.exists(path):
            return path
    fault = f"no {' or '.join(names)} lies next to {opened.path}; pass {flag}"
    if TOKENIZER_FILE in names:
        fault += f"; {HOW_TO_CONVERT}"
    raise UserError(fault)
