"""What is read of others: each reader, with an input that it takes."""

import dataclasses
import gzip
import hashlib
import io
import json
import pathlib
import tarfile
import zipfile
from typing import Any, Callable, Dict, Mapping, Tuple, Type

import numpy as np
import safetensors.numpy

import exchange
from errors import UserError
from methods.parsing import parse
from modeling import BertConfig
from serving import rest
from tasks.custom import custom_task
from tasks.restored import restore_task
from tasks.squad_data import read_questions
from tasks.tagging_files import Columns, read_map, read_sentences
from tokenization import FullTokenizer, read_vocabulary
from weights import adapter_artifact, archives, dev_scores, run_record
from weights.hugging_face import open_safetensors

GOLDEN = pathlib.Path(__file__).parent.parent / "tests" / "golden" / "exchange"
FEW_WORDS = "[PAD] [UNK] [CLS] [SEP] [MASK] the cat ##s sat".split()


@dataclasses.dataclass(frozen=True)
class Reader:
    """What reads one kind of input.

    Attributes:
        files: the files of a folder that it takes, by name.
        changed: the name of the one that is changed.
        read: takes the folder.
        raises: what it says of inputs that it does not take.
    """

    files: Mapping[str, bytes]
    changed: str
    read: Callable[[pathlib.Path], Any]
    raises: Tuple[Type[Exception], ...] = (UserError,)


def _json(value: Any) -> bytes:
    return json.dumps(value).encode()


def _one(
    name: str, content: bytes, read: Callable[[str], Any], **more: Any
) -> Reader:
    """A reader of a single file's path."""
    return Reader({name: content}, name, lambda f: read(str(f / name)), **more)


def _table(name: str, content: str, task: Any) -> Reader:
    """The training file of a task."""
    return Reader(
        {name: content.encode()},
        name,
        lambda folder: task.read(str(folder), ["train"]),
    )


def _tensors(values: Mapping[str, np.ndarray]) -> bytes:
    return safetensors.numpy.save(dict(values))


def _read_all(path: str) -> None:
    weights = open_safetensors(path, True)
    for name in weights.shapes:
        weights.read(name)


def _folder(path: pathlib.Path) -> Dict[str, bytes]:
    return {file.name: file.read_bytes() for file in path.iterdir()}


def _foreign(case: str, changed: str) -> Reader:
    """An adapter of another program's."""
    content = json.loads((GOLDEN / "bert" / "config.json").read_text())
    names = BertConfig.__dataclass_fields__
    config = BertConfig(**{k: v for k, v in content.items() if k in names})
    return Reader(
        _folder(GOLDEN / case),
        changed,
        lambda folder: exchange.read(str(folder), config),
    )


def _artifact() -> Reader:
    """An adapter: its description, with the hash that its weights have."""
    scratch: Dict[str, Any] = {
        "method": "houlsby(size=2)",
        "task": {"name": "custom", "labels": ["bad", "good"], "pairs": False},
        "task_settings": {"columns": ["text"], "label_column": "label"},
        "base": {"name": "bert", "fingerprint": "0" * 64},
        "bert_config": dataclasses.asdict(BertConfig(vocab_size=9)),
        "tokenizer": {"do_lower_case": True},
        "versions": run_record.versions(),
    }
    values = {"output_bias": np.zeros(2, np.float32)}
    content = _tensors(values)

    scratch["sha256"] = hashlib.sha256(content).hexdigest()

    def read(folder: pathlib.Path) -> None:
        found = adapter_artifact.read(str(folder))
        parse(found.config["method"])
        path = str(folder / adapter_artifact.CONFIG_FILE)
        run_record.bert_config(found.config, path)
        settings = found.config.get("task_settings", {})
        restore_task(found.config["task"], settings, path)

    name = adapter_artifact.CONFIG_FILE
    return Reader(
        {name: _json(scratch), adapter_artifact.WEIGHTS_FILE: content},
        name,
        read,
    )


def _zip() -> bytes:
    content = io.BytesIO()
    with zipfile.ZipFile(content, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("bert/vocab.txt", "\n".join(FEW_WORDS))
        archive.writestr("bert/bert_config.json", "{}")
    return content.getvalue()


def _tar() -> bytes:
    content = io.BytesIO()
    with tarfile.open(fileobj=content, mode="w") as archive:
        info = tarfile.TarInfo("assets/vocab.txt")
        info.size = 9
        archive.addfile(info, io.BytesIO(b"[PAD]\nthe"))
    return gzip.compress(content.getvalue(), mtime=0)


def _unpack(name: str, content: bytes) -> Reader:
    """Archives unpack beside themselves, in a folder that goes with them."""

    def read(folder: pathlib.Path) -> None:
        inside = set(folder.parent.iterdir())
        archives.unpack(str(folder / name))
        assert set(folder.parent.iterdir()) == inside, "written elsewhere"

    return Reader({name: content}, name, read)


def _tokenize(folder: pathlib.Path) -> None:
    """Any text, cut by a tokenizer that is made once."""
    if not hasattr(_tokenize, "tokenizer"):
        path = folder / "vocab.txt"
        _tokenize.tokenizer = FullTokenizer(str(path))  # type: ignore
    text = (folder / "text").read_bytes().decode("utf-8", "replace")
    _tokenize.tokenizer.encode_ids([text])  # type: ignore


def _parse_method(folder: pathlib.Path) -> None:
    parse((folder / "text").read_bytes().decode("utf-8", "replace"))


def _post(folder: pathlib.Path) -> None:
    rest.read_rows((folder / "body").read_bytes(), 100)


def readers() -> Dict[str, Reader]:
    """Every reader by its name."""
    words = "\n".join(FEW_WORDS).encode()
    table = "id\ttext\tlabel\n1\ta cat sat\tgood\n2\tthe dog\tbad\n"
    rows = [{"text": "a cat", "label": "good"}, {"text": "b", "label": "bad"}]
    lines = "".join(json.dumps(row) + "\n" for row in rows)
    conll = "EU\tB-ORG\nrejects\tO\n\nPeter\tB-PER\n"
    tags = {"tokens": ["Peter", "sleeps"], "tags": ["B-PER", "O"]}
    answer = {"text": "cat", "answer_start": 2}
    question = {"id": "1", "question": "what ?", "answers": [answer]}
    squad = {
        "version": "1.1",
        "data": [
            {"title": "t", "paragraphs": [{"context": "a cat", "qas": []}]},
            {
                "title": "u",
                "paragraphs": [{"context": "a cat", "qas": [question]}],
            },
        ],
    }
    config = dataclasses.asdict(BertConfig(vocab_size=9))
    scores = {"keep_best": "f1", "scores": {"10": {"f1": 0.5}}}
    asked = {"text": {"b64": "YQ=="}, "text_b": "c", "task": "d"}
    body = {"instances": [{"text": "a", "task": "b"}, asked]}
    columns = {"inputs": {"text": ["a", "b"], "task": ["c", "d"]}}
    record = {
        "base": {"path": "bert", "name": "bert", "fingerprint": "0" * 64},
        "method": "houlsby(size=2)",
        "task": {"name": "custom"},
        "bert_config": config,
        "tokenizer": {"do_lower_case": True},
        "versions": run_record.versions(),
    }
    tensors = {
        "bert.pooler.dense.weight": np.ones((2, 2), np.float32),
        "bert.embeddings.LayerNorm.bias": np.ones(2, np.float32),
    }
    custom, sets = custom_task(), custom_task(multi_label=True)
    texts = custom_task(regression=True)
    adapterhub = "adapterhub/houlsby_7"
    refused = (rest.Refused,)
    return {
        "tsv": _table("train.tsv", table, custom),
        "csv": _table("train.csv", table.replace("\t", ","), custom),
        "jsonl": _table("train.jsonl", lines, custom),
        "label sets": _table("train.csv", 'text,label\na,"x,y"\nb,\n', sets),
        "numbers": _table("train.tsv", "text\tlabel\na\t1.5\nb\t-2\n", texts),
        "conll": _one("train.conll", conll.encode(), read_sentences),
        "tags jsonl": _one("train.jsonl", _json(tags), read_sentences),
        "tag columns": _one(
            "train.conll",
            conll.encode(),
            lambda path: read_sentences(path, Columns("0", "1"), True, True),
        ),
        "map of tags": _one("map.tsv", b"person\tPER\nother\tO\n", read_map),
        "squad": _one(
            "a.json", _json(squad), lambda path: read_questions(path, False)
        ),
        "squad 2": _one(
            "a.json", _json(squad), lambda path: read_questions(path, True)
        ),
        "bert config": _one(
            "config.json", _json(config), BertConfig.from_json_file
        ),
        "vocabulary": _one("vocab.txt", words, read_vocabulary),
        "text": Reader(
            {
                "vocab.txt": words,
                "text": "the CATS, sat! \u00e9\u4e2d".encode(),
            },
            "text",
            _tokenize,
        ),
        "method": Reader(
            {"text": b"stack({'a': houlsby(size=8)}, lora(rank=4, alpha=2.0))"},
            "text",
            _parse_method,
        ),
        "run.json": Reader(
            {"run.json": _json(record)},
            "run.json",
            lambda folder: run_record.place_of_base(str(folder)),
        ),
        "dev scores": Reader(
            {dev_scores.SCORES_FILE: _json(scores)},
            dev_scores.SCORES_FILE,
            lambda folder: dev_scores.read(str(folder)),
        ),
        "adapter": _artifact(),
        "safetensors": _one("a.safetensors", _tensors(tensors), _read_all),
        "adapterhub": _foreign(adapterhub, "adapter_config.json"),
        "adapterhub head": _foreign(adapterhub, "head_config.json"),
        "adapterhub weights": _foreign(adapterhub, "adapter.safetensors"),
        "peft": _foreign("peft/lora_7", "adapter_config.json"),
        "peft patterns": _foreign("peft/lora_patterns", "adapter_config.json"),
        "peft weights": _foreign("peft/lora_7", "adapter_model.safetensors"),
        "zip": _unpack("bert.zip", _zip()),
        "tar.gz": _unpack("bert.tar.gz", _tar()),
        "rest": Reader({"body": _json(body)}, "body", _post, refused),
        "rest columns": Reader(
            {"body": _json(columns)}, "body", _post, refused
        ),
    }
