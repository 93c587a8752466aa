"""Fixtures and helpers: a tiny BERT, its data, programs, golden files."""

import contextlib
import dataclasses
import gc
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
from concurrent import futures
from pathlib import Path

import adapter_bert.start_tensorflow  # noqa: F401

import numpy as np
import pytest
import safetensors.numpy
import tensorflow as tf
from absl import flags, logging
from absl.testing import flagsaver
from hypothesis import settings
from squad_and_ner import (  # noqa: F401
    ner_flags,
    squad_flags,
    tiny_ner,
    tiny_squad,
)
from tensorflow.python.framework import ops

from adapter_bert import flags as program_flags
from adapter_bert.answering.frozen_bert import FrozenBert
from adapter_bert.answering.predictor import Predictor
from adapter_bert.answering.trained_task import load_task
from adapter_bert.bert import encoder
from adapter_bert.checkpoints import (
    adapter_artifact,
    packaged_models,
    sources,
    training_state,
)
from adapter_bert.commands import (
    library,
    run_classifier,
    run_squad,
    run_tagger,
    run_vectors,
)
from adapter_bert.data.tokenization import FullTokenizer
from adapter_bert.data.tokenizer_config import Rules
from adapter_bert.errors import UserError
from adapter_bert.graph import graph_tokenizer
from adapter_bert.library.adapter_library import AdapterLibrary
from adapter_bert.tasks import tagging, text_classification
from adapter_bert.training.settings import ENGINES
from lab.trials import linux

FLAGS = flags.FLAGS
settings.register_profile("same", derandomize=True, deadline=None)
settings.load_profile("same")
module_fixture = pytest.fixture(scope="module")
ROOT = Path(__file__).parent.parent
# Where files that are synced cost no time.
MEMORY = "/dev/shm"
if os.path.isdir(MEMORY):
    about = os.statvfs(MEMORY)
    has_room = about.f_bavail * about.f_frsize > 8 * 2**30
    if has_room and not about.f_flag & os.ST_NOEXEC:
        tempfile.tempdir = os.environ.setdefault("TMPDIR", MEMORY)
SHARED = ROOT.parent / "shared"


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items):
    """Marks tests of both engines so that each engine has one TensorFlow.

    The older TensorFlow tests the estimator, the newer one tf.distribute.
    Tests with the mark `older_stack` run with both engines there.
    """
    for item in items:
        of = getattr(item, "callspec", None)
        values = of.params.values() if of else ()
        is_older = item.get_closest_marker("older_stack")
        if "strategy" in values and "estimator" not in values and not is_older:
            item.add_marker("newer_stack")


# Custom gradients since graphs were freed.
LEFT = []
# Building graphs, Python would look for what is free thousands of times.
gc.set_threshold(20_000, 10, 10)


def set_options(options=()):
    """Sets Grappler's options, else those that a process begins with."""
    usual = {"disable_meta_optimizer": False, "arithmetic_optimization": True}
    tf.config.optimizer.set_experimental_options({**usual, **dict(options)})


@pytest.fixture(autouse=True, scope="module")
def modules_begin_with_usual_options():
    yield
    set_options()


@pytest.fixture(autouse=True)
def tests_leave_nothing_behind():
    """Takes an engine's options back, and frees graphs.

    Those of a module's fixtures stay, as in a process that goes on.
    TensorFlow keeps every custom gradient, and with it the whole graph. To
    look for all that is free takes long, so several tests share that.
    """
    options = tf.config.optimizer.get_experimental_options()
    yield
    set_options(options)
    gradients = ops.gradient_registry._registry
    traced = [name for name in gradients if name.startswith("CustomGradient-")]
    for name in traced:
        del gradients[name]
    LEFT.extend(traced)
    if len(LEFT) > 1000:
        LEFT.clear()
        gc.collect()


def made_once(function):
    """A function of a tokenizer, computed once for equal ones."""
    made = {}

    def call(tokenizer, *arguments):
        rules = tokenizer.do_lower_case, *sorted(tokenizer._by_content)
        key = tokenizer._tokenizer.to_str(), rules
        if key not in made:
            made[key] = function(tokenizer, *arguments)
        return made[key]

    return call


@pytest.fixture(autouse=True, scope="session")
def tables_of_tokenizers_are_made_once():
    """They hold all characters, which takes two seconds for each model."""
    with pytest.MonkeyPatch.context() as patch:
        for name in ("_normalized", "_isolated"):
            function = made_once(getattr(graph_tokenizer, name))
            patch.setattr(graph_tokenizer, name, function)
        yield


def read_json(*path):
    """The JSON value of a file, whose path may be in parts."""
    return json.loads(Path(*path).read_bytes())


def write_json(path, value):
    """Writes a file with a JSON value."""
    path.write_text(json.dumps(value))


def read_lines(*path):
    """The lines of a file, whose path may be in parts."""
    return Path(*path).read_text().splitlines()


def cells(path):
    """The cells of a table's lines."""
    return [line.split("\t") for line in read_lines(path)]


def write_lines(path, lines):
    """Writes a file of lines."""
    path.write_text("\n".join(lines) + "\n")


def read_json_lines(path):
    """The JSON values of a file's lines."""
    return list(map(json.loads, read_lines(path)))


def write_json_lines(path, values):
    """Writes a file with a JSON value in each line."""
    path.write_text("".join(json.dumps(value) + "\n" for value in values))


def flag_words(flags):
    """Flags as a command line has them, without those that are None."""
    return [f"--{k}={v}" for k, v in flags.items() if v is not None]


def trained_task(bert, folder):
    """The task of an adapter's folder."""
    return load_task(bert, str(folder), None)


def latest_step(folder):
    """The newest whole checkpoint of a training's folder, and its step."""
    return training_state.latest_step(str(folder))


def as_tensors(values):
    """Values by name, as tensors."""
    return {name: tf.constant(value) for name, value in values.items()}


def open_bert(folder, **options):
    """A BERT that answers, of a folder."""
    return FrozenBert.open(str(folder), **options)


def load_predictor(folder, adapters, **options):
    """A predictor of a BERT's folder and of adapters' folders."""
    if isinstance(adapters, dict):
        adapters = {name: str(path) for name, path in adapters.items()}
    else:
        adapters = [str(path) for path in adapters]
    return Predictor.load(str(folder), adapters, **options)


def open_checkpoint(folder):
    """The opened checkpoint of a BERT's folder."""
    return sources.open_init_checkpoint(str(folder))


def read_adapter(folder, *base):
    """The adapter of a folder."""
    return adapter_artifact.read(str(folder), *base)


def read_adapter_config(folder):
    """The description of a folder's adapter."""
    return adapter_artifact.read_config(str(folder))


@module_fixture
def bert(tiny_bert):
    """The tiny BERT, opened to answer."""
    return open_bert(tiny_bert)


def scores(answers):
    """Float [answers, labels], of answers to texts."""
    return np.array([list(answer["scores"].values()) for answer in answers])


@pytest.fixture
def shelf(tmp_path):
    """A library without adapters."""
    return AdapterLibrary(str(tmp_path / "shelf"), create=True)


TINY_WORDS = (
    "[PAD] [UNK] [CLS] [SEP] [MASK] the a cat dog sat ran on mat fast slow "
    "not is was good bad film , . ! ? ##s ##ed ##ing in out"
).split()


# What other programs computed.
RECORDED = Path(os.environ.get("GOLDEN_DIR", ROOT / "tests" / "golden"))


@pytest.fixture(scope="session")
def golden_dir():
    """The recordings: `tests/golden`, or the folder in GOLDEN_DIR."""
    return RECORDED


@module_fixture
def eagerly():
    """Computes without graphs, whose building takes longer."""
    tf.config.run_functions_eagerly(True)
    yield
    tf.config.run_functions_eagerly(False)


@pytest.fixture(scope="session")
def recording(golden_dir):
    """Reads arrays that were recorded, by the name of their file."""

    def read(name):
        path = golden_dir / f"{name}.npz"
        if "GOLDEN_DIR" in os.environ and not path.exists():
            pytest.skip(f"{golden_dir} has no recording of {name}")
        with np.load(path) as recorded:
            return dict(recorded)

    return read


def below(golden, prefix):
    """What is recorded under names that begin so, without that."""
    return {
        k[len(prefix) :]: v for k, v in golden.items() if k.startswith(prefix)
    }


@pytest.fixture(scope="session")
def recorded_roberta(golden_dir):
    """Opens the recording of `roberta` or `xlm-roberta`."""
    from roberta_folders import read_recorded

    return lambda name: read_recorded(golden_dir, name)


@pytest.fixture
def roberta_folder(golden_dir, tmp_path):
    """A RoBERTa's folder, which may be changed."""
    from roberta_folders import copy_roberta

    return copy_roberta(golden_dir, tmp_path)


@pytest.fixture(scope="session")
def shared_dir():
    """The folder of published data sets; its tests are skipped without."""
    if not SHARED.is_dir():
        pytest.skip(f"no published data sets at {SHARED}")
    return SHARED


@pytest.fixture(scope="session")
def pretrained_dir():
    """The pretrained MiniLM's folder; tests that ask for it skip without."""
    try:
        return Path(packaged_models.folder("minilm"))
    except UserError as error:
        pytest.skip(str(error))


@pytest.fixture(scope="session")
def mpnet_dir():
    """The pretrained MPNet's folder; tests that ask for it skip without."""
    try:
        return Path(packaged_models.folder("mpnet"))
    except UserError as error:
        pytest.skip(str(error))


@pytest.fixture
def plain_user():
    """Calls a function without the superuser's rights to files.

    Returns the function's result, or the text of its `UserError`.
    """

    def call(function, *arguments):
        def work():
            # Of this thread alone.
            linux.drop_rights()
            try:
                return function(*arguments)
            except UserError as error:
                return str(error)

        with futures.ThreadPoolExecutor(1) as thread:
            return thread.submit(work).result()

    return call


@pytest.fixture(scope="session")
def tiny_config():
    return encoder.BertConfig(
        vocab_size=len(TINY_WORDS),
        hidden_size=16,
        num_hidden_layers=2,
        num_attention_heads=2,
        intermediate_size=32,
        max_position_embeddings=32,
    )


def random_weights(config):
    """Random values of every BERT variable, by Google's name.

    Not the initializers': all variables differ from zero and one.
    """
    return {
        name: np.random.default_rng(number)
        .normal(float(name.endswith("gamma")), 0.1, one.shape)
        .astype(np.float32)
        for number, (name, one) in enumerate(encoder.declare(config).items())
    }


@pytest.fixture(scope="session")
def tiny_weights(tiny_config):
    return random_weights(tiny_config)


def hugging_face_name(name):
    """The inverse of `hugging_face.google_name`, written independently."""
    name = name.replace("bert/", "", 1).replace("layer_", "layer.")
    name = name.replace("/", ".")
    for old, new in (
        ("_embeddings", "_embeddings.weight"),
        ("LayerNorm.gamma", "LayerNorm.weight"),
        ("LayerNorm.beta", "LayerNorm.bias"),
        (".kernel", ".weight"),
    ):
        if name.endswith(old):
            name = name[: -len(old)] + new
    return name


def write_bert(folder, words, config, values):
    """Writes a Hugging Face folder from values by Google's names."""
    write_lines(folder / "vocab.txt", words)
    write_json(folder / "config.json", vars(config))
    safetensors.numpy.save_file(
        {
            hugging_face_name(name): np.ascontiguousarray(
                value.T if name.endswith("/kernel") else value
            )
            for name, value in values.items()
        },
        folder / "model.safetensors",
    )
    return folder


@pytest.fixture(scope="session")
def tiny_bert(tmp_path_factory, tiny_config, tiny_weights):
    """A Hugging Face folder with the tiny BERT."""
    folder = tmp_path_factory.mktemp("tiny_bert")
    return write_bert(folder, TINY_WORDS, tiny_config, tiny_weights)


@pytest.fixture(scope="session")
def tokenizer(tiny_bert):
    """The tiny BERT's."""
    return FullTokenizer(str(tiny_bert / "vocab.txt"))


@pytest.fixture(scope="session", params=["bert", "ends", "mpnet"])
def word_pieces(request, tokenizer, tiny_bert, golden_dir):
    """The tiny BERT's tokenizer, and an MPNet's of the same words.

    That has two separators between texts, and one segment. `ends` keeps the
    ends of long texts, and has one segment too.
    """
    if request.param == "bert":
        return tokenizer
    if request.param == "ends":
        rules = Rules(truncation_side="left", has_segments=False)
        return FullTokenizer(str(tiny_bert / "vocab.txt"), rules=rules)
    place = golden_dir / "architectures" / "mpnet"
    return FullTokenizer(str(place / "vocab.txt"))


@pytest.fixture(scope="session")
def still_bert(tiny_bert, tmp_path_factory):
    """The folder of a tiny BERT without dropout."""
    folder = tmp_path_factory.mktemp("still_bert") / "bert"
    shutil.copytree(tiny_bert, folder)
    config = read_json(folder / "config.json")
    config.update(hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0)
    write_json(folder / "config.json", config)
    return folder


@pytest.fixture(scope="session")
def tiny_adapters(tiny_bert, tmp_path_factory):
    """Folders of adapters of several methods and heads, by name."""
    # They import this module.
    from exported_models import LIBRARY, NAMES
    from tiny_artifacts import make_adapters

    tasks = {name: LIBRARY[name][:2] for name in NAMES}
    place = tmp_path_factory.mktemp("tiny_adapters")
    return make_adapters(place, tiny_bert, tasks)


@pytest.fixture(scope="session")
def tiny_exported(tiny_bert, tiny_adapters, tmp_path_factory):
    """The folder of a model that was exported with these adapters."""
    from exported_models import make_parts

    from adapter_bert.graph import saved_model

    folder = tmp_path_factory.mktemp("tiny_exported")
    saved_model.export(*make_parts(tiny_bert, tiny_adapters), str(folder))
    return folder


SENTENCES = (
    ("the cat sat on the mat .", "good"),
    ("a dog ran fast !", "bad"),
    ("the film was not bad", "good"),
    ("the film was bad , slow", "bad"),
    ("is the cat in ?", "good"),
    ("a slow dog sat", "bad"),
    ("the mat is out", "good"),
    ("not a good film , not good , the dog ran out", "bad"),
)


def write_table(path, rows, header=("text", "label")):
    """Writes a TSV file."""
    lines = [header, *rows] if header else rows
    path.write_text("".join("\t".join(row) + "\n" for row in lines))


@pytest.fixture(scope="session")
def tiny_data(tmp_path_factory):
    """A folder with train.tsv (40 rows), dev.tsv (8) and test.tsv (7)."""
    folder = tmp_path_factory.mktemp("tiny_data")
    write_table(folder / "train.tsv", SENTENCES * 5)
    write_table(folder / "dev.tsv", SENTENCES)
    write_table(
        folder / "test.tsv", [row[:1] for row in SENTENCES[:7]], ("text",)
    )
    return folder


NLI = {"good": "entailment", "bad": "contradiction"}
STS_B_HEADER = (
    *("index", "genre", "filename", "year", "old_index", "source1", "source2"),
    *("sentence1", "sentence2", "score"),
)


def write_mnli(folder):
    """Writes MNLI and its diagnostic set."""
    header = ("sentence2", "gold_label", "sentence1")
    rows = [(text, NLI[label], "the cat") for text, label in SENTENCES]
    write_table(folder / "train.tsv", rows * 5, header)
    write_table(folder / "dev_matched.tsv", rows, header)
    write_table(folder / "dev_mismatched.tsv", rows[:5], header)
    for name, count in (("matched", 3), ("mismatched", 4)):
        write_table(folder / f"test_{name}.tsv", rows[:count], header)
    pairs = [(str(i), text, "a dog") for i, (text, _) in enumerate(SENTENCES)]
    write_table(
        folder / "diagnostic.tsv", pairs, ("index", "sentence1", "sentence2")
    )
    write_table(
        folder / "diagnostic-full.tsv",
        [(text, "a dog", NLI[label]) for text, label in SENTENCES],
        ("Premise", "Hypothesis", "Label"),
    )


@pytest.fixture(scope="session")
def tiny_glue(tmp_path_factory):
    """Folders of MNLI (40 rows), STS-B (24) and a custom table (16)."""
    folder = tmp_path_factory.mktemp("tiny_glue")
    for name in ("MNLI", "STS-B", "Reviews"):
        (folder / name).mkdir()
    write_mnli(folder / "MNLI")
    scores = {"good": "2", "bad": "0.5"}
    rows = [("x",) * 7 + ("a", text, scores[y]) for text, y in SENTENCES]
    write_table(folder / "STS-B" / "train.tsv", rows * 3, STS_B_HEADER)
    write_table(folder / "STS-B" / "dev.tsv", rows, STS_B_HEADER)
    unscored = [row[:9] for row in rows[:5]]
    write_table(folder / "STS-B" / "test.tsv", unscored, STS_B_HEADER[:9])
    reviews = folder / "Reviews"
    write_table(reviews / "train.tsv", SENTENCES * 2, ("review", "label"))
    write_table(reviews / "dev.tsv", SENTENCES[:6], ("review", "label"))
    write_table(reviews / "test.tsv", [r[:1] for r in SENTENCES], ("review",))
    return folder


@contextlib.contextmanager
def entry_point(module):
    """Yields a function that runs a program with flags, in this process."""
    before = set(FLAGS)
    program_flags.define(module.SETTINGS)
    # Parsed, so that a test may read their defaults.
    FLAGS([module.__name__])

    def run(**values):
        with flagsaver.flagsaver():
            FLAGS([module.__name__] + flag_words(values))
            # As absl's `app.run` does.
            logging.set_verbosity(logging.INFO)
            module.main()

    try:
        yield run
    finally:
        FLAGS.remove_flag_values(set(FLAGS) - before)
        FLAGS.unparse_flags()


def program_fixture(module):
    """Runs a program with flags, within this process."""

    @pytest.fixture
    def run():
        with entry_point(module) as program:
            yield program

    return run


classify = program_fixture(run_classifier)
answer = program_fixture(run_squad)
tag = program_fixture(run_tagger)
vectors = program_fixture(run_vectors)


@pytest.fixture
def run_main(monkeypatch):
    """Runs a subcommand's `main` with arguments, within this process."""

    def run(module, *arguments):
        monkeypatch.setattr("sys.argv", ["", *map(str, arguments)])
        module.main()

    return run


@pytest.fixture
def command(run_main):
    """Runs a subcommand's `main` with flags, within this process."""
    return lambda module, **flags: run_main(module, *flag_words(flags))


@pytest.fixture
def call(run_main, capsys):
    """Runs `adapter-bert library`, and gives what it printed."""

    def call(*arguments):
        run_main(library, *arguments)
        return capsys.readouterr().out

    return call


def run_command(*words, check=False, **options):
    """Runs a command, and captures its output as text."""
    done = subprocess.run(
        list(map(str, words)),
        **{"capture_output": True, "text": True, **options},
    )
    assert not check or done.returncode == 0, done.stderr
    return done


def run_process(*arguments, check=True, program="run_classifier.py", **options):
    """Runs a file, or a subcommand of adapter-bert, as a user does."""
    is_file = program.endswith(".py") or program.startswith("-")
    command = [program] if is_file else ["-m", "adapter_bert", program]
    words = (sys.executable, *command, *arguments)
    return run_command(*words, cwd=ROOT, check=check, **options)


def own_lines(text):
    """Lines of a program's stderr, without TensorFlow's own.

    From 2.18 on no setting silences these (tensorflow issue 100442).
    """
    foreign = re.compile(r"[IWE]0000 |WARNING: All log messages before absl")
    return [line for line in text.splitlines() if not foreign.match(line)]


@pytest.fixture(params=ENGINES)
def engine(request):
    """The name of each engine that runs here."""
    if request.param == "estimator" and not hasattr(tf, "estimator"):
        pytest.skip(f"TensorFlow {tf.__version__} has no TPUEstimator")
    return request.param


def make_flags(bert, data, output_dir):
    """Flags of a training of seconds, with TensorFlow's default engine."""
    return {
        "task_name": "custom",
        "data_dir": data,
        "init_checkpoint": bert,
        "output_dir": output_dir,
        "do_train": True,
        "max_seq_length": 24,
        "train_batch_size": 8,
        "learning_rate": 3e-3,
        "num_train_epochs": 4,
        "adapter_size": 4,
        # The graph is built in half of the time.
        "cpu_lanes": 1,
    }


@pytest.fixture
def tiny_flags(tiny_bert, tiny_data, tmp_path):
    """Flags of a small training, which a test may change."""
    return make_flags(tiny_bert, tiny_data, tmp_path / "out")


@pytest.fixture
def vector_flags(tiny_flags, tmp_path):
    """Flags of a small training on pairs."""
    for name in ("task_name", "data_dir"):
        del tiny_flags[name]
    # Nothing but a training finds out which word belongs to a text.
    texts = [text for text, _ in SENTENCES]
    words = [word for word in TINY_WORDS if word.isalpha()]
    rows = [{"text": text, "match": word} for text, word in zip(texts, words)]
    for number, row in enumerate(rows):
        row["score"] = number % 3
    path = tmp_path / "pairs.jsonl"
    write_json_lines(path, rows)
    dev = tmp_path / "dev.jsonl"
    dev.write_text(path.read_text())
    return {
        **tiny_flags,
        "train_file": path,
        "eval_file": dev,
        "text_b_column": "match",
        "learning_rate": 1e-2,
        "do_eval": True,
        "train_batch_size": 4,
    }


@pytest.fixture
def text_flags(tiny_flags, tiny_texts):
    """Flags of a small training."""
    for name in ("task_name", "data_dir"):
        del tiny_flags[name]
    return {
        **tiny_flags,
        "train_file": tiny_texts / "train.txt",
        "eval_file": tiny_texts / "eval.txt",
        "learning_rate": 1e-2,
    }


@pytest.fixture
def one_layer(tiny_config, tmp_path):
    """The path of a config that leaves the tiny BERT its first layer."""
    path = tmp_path / "one_layer.json"
    write_json(path, {**vars(tiny_config), "num_hidden_layers": 1})
    return path


@pytest.fixture
def glue_flags(tiny_flags, tiny_glue):
    """Flags of a small training of several tasks: 10 steps an epoch."""
    return {
        **tiny_flags,
        "task_name": "sts-b,MNLI,custom:reviews",
        "text_a_column": "review",
        "data_dir": tiny_glue,
        "do_eval": True,
        "num_train_epochs": 2,
    }


@pytest.fixture(scope="session")
def tiny_texts(tmp_path_factory):
    """A folder with train.txt (40 lines) and eval.txt (8)."""
    folder = tmp_path_factory.mktemp("tiny_texts")
    lines = [text for text, _ in SENTENCES]
    write_lines(folder / "train.txt", lines * 5)
    (folder / "eval.txt").write_text("\n\n".join(lines) + "\n")
    return folder


@pytest.fixture
def sweep(tmp_path):
    """A sweep whose runs are done by a stand-in."""
    # It imports this module.
    from sweep_stand_in import Sweep

    return Sweep(tmp_path)


@pytest.fixture
def fake(tmp_path, tiny_config):
    """Writes runs without training."""
    from fake_runs import FakeRuns

    return FakeRuns(tmp_path / "runs", tiny_config)


def spoil(folder, name, content):
    """Writes bytes to a file and returns its path."""
    path = folder / name
    path.write_bytes(content)
    return path


@pytest.fixture
def steady_config(tiny_config):
    """The tiny BERT without dropout."""
    return dataclasses.replace(
        tiny_config, hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0
    )


@pytest.fixture
def steady(monkeypatch):
    """Turns the dropout of heads off."""
    for module in (tagging, text_classification):
        monkeypatch.setattr(module, "dropout", lambda x, *arguments: x)


@pytest.fixture
def folders(tmp_path):
    """Makes folders by name."""

    def make(name):
        (tmp_path / name).mkdir()
        return tmp_path / name

    return make
