"""What lies beside a pretrained model's weights: its sizes and vocabulary."""

import dataclasses
import os
from typing import Any, Mapping, Optional, Tuple

from absl import logging

from added_tokens import ADDED, TOKENIZER_FILE
from bert.config import BertConfig, same_activation
from errors import UserError
from storage import files
from subword_tokenization import SubwordTokenizer
from tokenization import FullTokenizer, TextTokenizer
from weights.base import Base
from weights.sources import InitCheckpoint

VOCABULARY_FILE = "vocab.txt"
CONFIG_FILES = ("bert_config.json", "config.json")
# Some models round the size of their vocabulary up, to multiples of 8 to 1024.
MAX_VOCABULARY_PADDING = 1023


def read_config(opened: Optional[InitCheckpoint], path: str = "") -> BertConfig:
    """Reads the BERT config that is named, or the model's own.

    Its `gelu` is the error function where it, or the weights, are Hugging
    Face's.

    Args:
        opened: the model, or None if there is none.
        path: of the config; "" for what the model's own files say, else the
            one beside the model.

    Raises:
        UserError: there is no config, it cannot be read, or it has another
            number of heads than the model's own files say.
    """
    if not path and opened is None:
        raise UserError("--bert_config_file is missing: the sizes of the BERT")
    if not path and opened.config is not None:
        return opened.config
    path = path or _beside(opened, CONFIG_FILES, "--bert_config_file")
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
    opened: InitCheckpoint,
    config: BertConfig,
    path: str = "",
    do_lower_case: Optional[bool] = None,
) -> TextTokenizer:
    """Reads the vocabulary that is named, or the model's own.

    That of a RoBERTa is a `tokenizer.json`, which says itself what becomes of
    capital letters.

    Args:
        opened: the model.
        config: of the model.
        path: of the vocabulary; "" for the model's own, else the one beside
            the model.
        do_lower_case: whether to lower-case texts; None for what the model's
            own files say, else to do so unless the vocabulary has words with
            capital letters.

    Raises:
        UserError: it cannot be read, or does not fit the model or the letters'
            case.
    """
    if config.is_roberta:
        return _read_subwords(opened, config, path, do_lower_case)
    path = path or find_vocabulary(opened)
    said = ""
    if do_lower_case is None and opened.do_lower_case is not None:
        do_lower_case = opened.do_lower_case
        said = f"{opened.path} has do_lower_case={do_lower_case}, but "
    tokenizer = FullTokenizer(path, do_lower_case is not False)
    if do_lower_case is None and tokenizer.is_cased:
        tokenizer = FullTokenizer(path, False)
    _check_vocabulary(tokenizer, config, said)
    return tokenizer


def _read_subwords(
    opened: InitCheckpoint,
    config: BertConfig,
    path: str,
    do_lower_case: Optional[bool],
) -> SubwordTokenizer:
    """Reads a RoBERTa's `tokenizer.json`; as `read_tokenizer`."""
    try:
        path = path or _beside(opened, (TOKENIZER_FILE,), "--vocab_file")
    except UserError as error:
        raise UserError(
            f"{error}; where transformers are, AutoTokenizer.from_pretrained"
            "(folder).save_pretrained(folder) writes it"
        ) from error
    if do_lower_case:
        raise UserError(
            f"--do_lower_case=true, but {path} says itself what becomes of "
            "capital letters; leave the flag out"
        )
    tokenizer = SubwordTokenizer(path)
    _check_size(tokenizer, config)
    if tokenizer.padding_id + 1 != config.first_position:
        raise UserError(
            f"{path} has <pad> as {tokenizer.padding_id}, but the config says "
            f"pad_token_id {config.first_position - 1}; check --vocab_file"
        )
    return tokenizer


def find_vocabulary(opened: InitCheckpoint) -> str:
    """The path of the model's vocabulary.

    Raises:
        UserError: none lies beside the model.
    """
    return opened.vocab_file or _beside(
        opened, (VOCABULARY_FILE, TOKENIZER_FILE), "--vocab_file"
    )


def _check_vocabulary(
    tokenizer: FullTokenizer, config: BertConfig, said: str
) -> None:
    """Compares the vocabulary with the model and with the letters' case.

    `said` is the start of a message, if the model itself told the case.
    """
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


def _check_size(tokenizer: TextTokenizer, config: BertConfig) -> None:
    """Compares a vocabulary's size with the model's."""
    padding = config.vocab_size - tokenizer.vocab_size
    also = f"; it has {_some_added(tokenizer)}" if tokenizer.added else ""
    if not 0 <= padding <= MAX_VOCABULARY_PADDING:
        raise UserError(
            f"the vocabulary has {tokenizer.vocab_size} entries, but the BERT "
            f"config says {config.vocab_size}; check --vocab_file{also}"
        )
    if padding:
        logging.info(
            "the model has %d entries more than the vocabulary, which no text "
            "uses",
            padding,
        )


def _some_added(tokenizer: TextTokenizer) -> str:
    """How many tokens were added to a vocabulary, and the first of them."""
    named = [a.token.content for a in tokenizer.added[:5]]
    return f"{len(tokenizer.added)} added tokens, as {named}"


def check_length(
    length: int, least: int, config: BertConfig, tokenizer: TextTokenizer
) -> None:
    """Checks that inputs of a length fit a model, and a task into them.

    Args:
        length: `--max_seq_length`.
        least: tokens that the task needs room for upon a BERT.
        config: of the model.
        tokenizer: of the model, which may put more between two texts.

    Raises:
        UserError: they do not.
    """
    if length > config.max_tokens:
        raise UserError(
            f"--max_seq_length is {length}, but the model has only "
            f"{config.max_tokens} positions"
        )
    least += tokenizer.between_count - 1
    if length < least:
        raise UserError(
            f"--max_seq_length is {length}, but the task needs room for "
            f"{least} tokens"
        )


def check_same_model(
    description: Mapping[str, Any],
    source: str,
    base: Base,
    config: BertConfig,
    tokenizer: TextTokenizer,
) -> None:
    """Compares a model with the one that something was trained upon.

    Args:
        description: `run.json` or `adapter_config.json` of what was trained.
        source: where that lies, for messages.
        base: the model.
        config: its sizes.
        tokenizer: its vocabulary.

    Raises:
        UserError: they differ; the message says in what.
    """
    expected = description["base"]["fingerprint"]
    if not base.is_known_as(expected):
        raise UserError(
            f"{source} was trained upon another BERT (fingerprint "
            f"{expected[:12]}) than {base.path} (fingerprint "
            f"{base.fingerprint[:12]})"
        )
    ours, theirs = tokenizer.describe(), description["tokenizer"]
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
        # Descriptions were once written without some.
        before = description["bert_config"].get(name, field.default)
        if name == "hidden_act" and same_activation(before, value):
            continue
        if before != value and not name.endswith("dropout_prob"):
            raise UserError(
                f"{source} was trained with {name} {before!r}, but the BERT "
                f"config says {value!r}; check --bert_config_file"
            )


def _beside(opened: InitCheckpoint, names: Tuple[str, ...], flag: str) -> str:
    """The path of the first of `names` that lies beside a checkpoint."""
    for name in names:
        path = os.path.join(opened.folder, name)
        if files.exists(path):
            return path
    raise UserError(
        f"no {' or '.join(names)} lies beside {opened.path}; pass {flag}"
    )
