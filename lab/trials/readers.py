"""What is read of others: each reader, with an input that it takes."""

import dataclasses
import hashlib
import json
import pathlib
import shutil
from typing import Any, Callable, Dict, Mapping, Tuple, Type

import numpy as np
import safetensors.numpy

from adapter_bert.bert.encoder import BertConfig
from adapter_bert.checkpoints import (
    adapter_artifact,
    dev_scores,
    exchange,
    run_record,
    training_state,
)
from adapter_bert.data.tokenization import FullTokenizer, read_vocabulary
from adapter_bert.errors import UserError
from adapter_bert.methods.registry import parse
from adapter_bert.serving import bulk, library, rest, row_stream
from adapter_bert.tasks.custom import custom_task
from adapter_bert.tasks.restored import restore_task
from adapter_bert.tasks.squad_data import read_questions
from adapter_bert.tasks.tagging_files import Columns, read_map, read_sentences
from lab.trials.bundles import write_bundle

GOLDEN = pathlib.Path(__file__).parents[2] / "tests" / "golden" / "exchange"
FEW_WORDS = "[PAD] [UNK] [CLS] [SEP] [MASK] the cat ##s sat".split()
# The smallest that has all of an encoder's kinds of variables.
SMALL = BertConfig(
    vocab_size=len(FEW_WORDS),
    hidden_size=4,
    num_hidden_layers=1,
    num_attention_heads=2,
    intermediate_size=8,
    max_position_embeddings=8,
)


@dataclasses.dataclass(frozen=True)
class Reader:
    """What reads one kind of input.

    Attributes:
        files: the files of a folder that it takes, by name.
        changed: the name of the one that is changed.
        read: takes the folder.
        raises: what it says of inputs that it does not take.
        grows: whether some of its inputs are large.
    """

    files: Mapping[str, bytes]
    changed: str
    read: Callable[[pathlib.Path], Any]
    raises: Tuple[Type[BaseException], ...] = (UserError,)
    grows: bool = True


def as_json(value: Any) -> bytes:
    """A value as JSON."""
    return json.dumps(value).encode()


def of_file(
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


def as_tensors(values: Mapping[str, np.ndarray]) -> bytes:
    """A safetensors file."""
    return safetensors.numpy.save(dict(values))


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
    content = as_tensors(values)

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
        {name: as_json(scratch), adapter_artifact.WEIGHTS_FILE: content},
        name,
        read,
    )


def _weights(described: Reader) -> Reader:
    """A head, whose hash is made right, and all of it is checked."""
    name = adapter_artifact.WEIGHTS_FILE
    sizes = dataclasses.asdict(SMALL)
    whole = {
        **json.loads(described.files[adapter_artifact.CONFIG_FILE]),
        "method": "head",
        "bert_config": sizes,
    }
    values = {
        "output_weights": np.ones((2, SMALL.hidden_size), np.float32),
        "output_bias": np.zeros(2, np.float32),
    }

    def read(folder: pathlib.Path) -> None:
        content = (folder / name).read_bytes()
        config = {**whole, "sha256": hashlib.sha256(content).hexdigest()}
        path = folder / adapter_artifact.CONFIG_FILE
        path.write_bytes(as_json(config))
        library.check(str(folder))

    files = {**described.files, name: as_tensors(values)}
    return Reader(files, name, read)


def _entry(described: Reader) -> Reader:
    """A library of one adapter, whose entry is changed."""

    def read(folder: pathlib.Path) -> None:
        shelf = folder / "shelf"
        (shelf / "a").mkdir(parents=True, exist_ok=True)
        for file in folder.iterdir():
            if file.is_file():
                shutil.copy(file, shelf / "a")
        try:
            library.AdapterLibrary(str(shelf)).entry("a")
        finally:
            shutil.rmtree(shelf)

    entry = {"added": "2024-01-01T00:00:00+00:00", "scores": {"f1": 0.5}}
    files = {**described.files, library.ENTRY_FILE: as_json(entry)}
    return Reader(files, library.ENTRY_FILE, read)


def _questions(folder: pathlib.Path) -> None:
    """A line of a large input, which is refused in what is answered."""
    tasks = {"one": {"texts": [1], "columns": ["text"]}}
    for name in ("a.jsonl", "a.txt"):
        content = (folder / "line").read_bytes()
        for found in bulk.questions(name, content, tasks, ["one"]):
            if isinstance(found, bulk.Refusal):
                bulk.refusal_line(found)


def _rows(name: str, content: str) -> Reader:
    """What `adapter-bert predict` reads."""
    return of_file(
        name,
        content.encode(),
        lambda path: list(
            row_stream.file_rows(path, [["text", "text_b"]], lambda _: None)
        ),
    )


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


def text_readers() -> Dict[str, Reader]:
    """Readers of data, descriptions, adapters and requests, by name."""
    words = "\n".join(FEW_WORDS).encode()
    vocabulary = {word: number for number, word in enumerate(FEW_WORDS)}
    pieces = as_json(
        {
            "model": {"type": "WordPiece", "vocab": vocabulary},
            "normalizer": {"type": "BertNormalizer", "lowercase": True},
        }
    )
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
    adapter = _artifact()
    saved = write_bundle({"global_step": np.int64(3)})
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
        "conll": of_file("train.conll", conll.encode(), read_sentences),
        "tags jsonl": of_file("train.jsonl", as_json(tags), read_sentences),
        "tag columns": of_file(
            "train.conll",
            conll.encode(),
            lambda path: read_sentences(path, Columns("0", "1"), True, True),
        ),
        "map of tags": of_file("map.tsv", b"person\tPER\nother\tO\n", read_map),
        "squad": of_file(
            "a.json", as_json(squad), lambda path: read_questions(path, False)
        ),
        "squad 2": of_file(
            "a.json", as_json(squad), lambda path: read_questions(path, True)
        ),
        "bert config": of_file(
            "config.json", as_json(config), BertConfig.from_json_file
        ),
        "vocabulary": of_file("vocab.txt", words, read_vocabulary),
        "vocabulary in JSON": of_file(
            "tokenizer.json", pieces, read_vocabulary
        ),
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
            {"run.json": as_json(record)},
            "run.json",
            lambda folder: run_record.place_of_base(str(folder)),
        ),
        "dev scores": Reader(
            {dev_scores.SCORES_FILE: as_json(scores)},
            dev_scores.SCORES_FILE,
            lambda folder: dev_scores.read(str(folder)),
        ),
        "adapter": adapter,
        "adapter's weights": _weights(adapter),
        "library entry": _entry(adapter),
        "list of checkpoints": Reader(
            {
                "checkpoint": b'model_checkpoint_path: "model.ckpt-3"\n',
                **{f"model.ckpt-3{end}": c for end, c in saved.items()},
            },
            "checkpoint",
            lambda folder: training_state.latest_step(str(folder)),
        ),
        "rows.jsonl": _rows("rows.jsonl", '{"text": "a", "text_b": "b"}\n'),
        "rows.csv": _rows("rows.csv", 'text,text_b\na,"b"\n'),
        "rows": _rows("rows", "a\tb\nc\td\n"),
        "lines in bulk": Reader(
            {"line": b'{"text": "a", "task": "one"}'}, "line", _questions
        ),
        "adapterhub": _foreign(adapterhub, "adapter_config.json"),
        "adapterhub head": _foreign(adapterhub, "head_config.json"),
        "adapterhub weights": _foreign(adapterhub, "adapter.safetensors"),
        "peft": _foreign("peft/lora_7", "adapter_config.json"),
        "peft patterns": _foreign("peft/lora_patterns", "adapter_config.json"),
        "peft weights": _foreign("peft/lora_7", "adapter_model.safetensors"),
        "rest": Reader({"body": as_json(body)}, "body", _post, refused),
        "rest columns": Reader(
            {"body": as_json(columns)}, "body", _post, refused
        ),
    }
