"""Frozen layers that are computed once: the same training, and which files."""

import json
import logging
import os
import shutil

import numpy as np
import pytest
import safetensors.numpy
import tensorflow as tf
from hypothesis import given
from hypothesis import strategies as st

import task_model
from engines import ENGINES
from errors import UserError
from input_pipeline import Features, make_batch
from methods.parsing import parse
from runs.frozen_layers import KnownOutputs, lowest_layer
from tasks.table_files import Layout
from tasks.text_classification import TextClassification

TASK = TextClassification("tiny", Layout(0), Layout(0), labels=("a", "b"))
ENGINES_HERE = [
    name for name in ENGINES if name == "strategy" or hasattr(tf, "estimator")
]


@pytest.fixture
def still_bert(tiny_bert, tmp_path):
    """The tiny BERT without dropout."""
    folder = tmp_path / "still"
    shutil.copytree(tiny_bert, folder)
    config = json.loads((folder / "config.json").read_text())
    config.update(hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0)
    (folder / "config.json").write_text(json.dumps(config))
    return folder


@pytest.fixture
def flags(tiny_flags, still_bert, tmp_path):
    values = {k: v for k, v in tiny_flags.items() if k != "adapter_size"}
    return {
        **values,
        "init_checkpoint": still_bert,
        "num_train_epochs": 2,
        "frozen_layers_dir": tmp_path / "kept",
    }


def adapter(folder):
    return safetensors.numpy.load_file(
        folder / "adapter" / "adapter.safetensors"
    )


@pytest.mark.parametrize(
    "text,lowest",
    [
        ("head", 2),
        ("top_layers(k=1)", 1),
        ("top_layers(k=2)", 0),
        ("pfeiffer(size=4, layers='1')", 1),
        ("houlsby(size=4, layers='1')", 1),
        ("adapterdrop(first=1, size=4)", 1),
        ("adapterdrop(first=1, size=4, robust=true)", 0),
        ("houlsby(size=4)", 0),
        ("bitfit", 0),
        ("full", 0),
        ("layernorm", 0),
        ("lt_sft(sparsity=0.05)", 0),
        ("compacter(size=8)", 0),
        ("mad_x(size=4, inverse_size=4, layers='1')", 0),
        ("stack({'a': pfeiffer(size=4)}, pfeiffer(size=4, layers='1'))", 0),
        ("stack({'a': pfeiffer(layers='1')}, top_layers(k=1))", 1),
    ],
)
def test_the_lowest_layer_that_is_not_the_pretrained_ones(
    tiny_config, text, lowest
):
    table = task_model.list_parameters(
        tiny_config, parse(text), TASK.build_head
    )
    assert lowest_layer(table, 2) == lowest


@pytest.mark.parametrize(
    "text,more",
    [
        ("head", {}),
        ("top_layers(k=1)", {"gradient_accumulation_steps": 2}),
        pytest.param(
            "houlsby(size=4, layers='1')",
            {"use_xla": True, "max_seq_length": 16},
            marks=pytest.mark.gate,
        ),
        pytest.param(
            "pfeiffer(size=4, layers='1')",
            {"compute_dtype": "bfloat16"},
            marks=pytest.mark.gate,
        ),
    ],
)
@pytest.mark.parametrize("engine", ENGINES_HERE)
def test_without_dropout_it_is_the_same_training(
    classify, flags, tmp_path, engine, text, more
):
    found = {}
    for cached in (False, True):
        folder = tmp_path / str(cached)
        classify(
            **{**flags, **more, "output_dir": folder},
            engine=engine,
            tuning_method=text,
            cache_frozen_layers=cached,
            do_eval=True,
        )
        results = json.loads((folder / "eval_results.json").read_text())
        found[cached] = adapter(folder), results
        run = json.loads((folder / "run.json").read_text())
        assert run["training"]["cache_frozen_layers"] is cached
    half = more.get("compute_dtype") == "bfloat16"
    (before, scores), (after, others) = found[False], found[True]
    assert before.keys() == after.keys()
    for name, value in before.items():
        np.testing.assert_allclose(
            after[name], value, atol=2e-2 if half else 2e-5, err_msg=name
        )
    assert others["eval_loss"] == pytest.approx(
        scores["eval_loss"], abs=2e-2 if half else 1e-5
    )


def kept_files(flags):
    folder = flags["frozen_layers_dir"]
    return sorted(n for n in os.listdir(folder) if n.endswith(".npy"))


def test_runs_share_a_file_and_others_have_their_own(
    classify, flags, tmp_path, caplog
):
    caplog.set_level(logging.INFO)
    flags.update(cache_frozen_layers=True, tuning_method="head")

    def run(name, **more):
        caplog.clear()
        classify(**{**flags, **more, "output_dir": tmp_path / name})
        return "are taken from" in caplog.text

    assert not run("one")
    # Of the same bits, whoever computes them.
    first = adapter(tmp_path / "one")
    assert run("two") and len(kept_files(flags)) == 1
    for name, value in adapter(tmp_path / "two").items():
        np.testing.assert_array_equal(value, first[name])
    assert run("rate", learning_rate=1e-4, seed=4)
    assert not run("half", compute_dtype="bfloat16")
    assert not run("shorter", max_seq_length=6)
    assert not run("layers", tuning_method="top_layers(k=1)")
    assert len(kept_files(flags)) == 4
    # Labels are no part of what is kept.
    other = tmp_path / "other"
    shutil.copytree(flags["data_dir"], other)
    table = (other / "train.tsv").read_text()
    (other / "train.tsv").write_text(
        table.replace("\tgood", "\t?").replace("\tbad", "\tgood")
    )
    assert run("labels", data_dir=other)
    # By default beside the data.
    del flags["frozen_layers_dir"]
    assert not run("beside", data_dir=other)
    assert os.listdir(other / "frozen_layers")


def test_what_was_cut_off_is_computed_again(classify, flags, tmp_path):
    flags.update(cache_frozen_layers=True, tuning_method="top_layers(k=1)")
    classify(**flags)
    first = adapter(flags["output_dir"])
    kept = flags["frozen_layers_dir"]
    (name,) = kept_files(flags)
    # As a killed process leaves it.
    (kept / name).rename(kept / f"{name}.new")
    (kept / "other.npy.new").write_bytes(b"half")
    classify(**{**flags, "output_dir": tmp_path / "again"})
    assert kept_files(flags) == [name]
    assert not list(kept.glob("*.new"))
    for key, value in adapter(tmp_path / "again").items():
        np.testing.assert_array_equal(value, first[key])
    # Damage is told.
    content = (kept / name).read_bytes()
    (kept / name).write_bytes(content[: len(content) // 2])
    with pytest.raises(UserError, match="delete it to compute it again"):
        classify(**{**flags, "output_dir": tmp_path / "damaged"})


@pytest.mark.parametrize(
    "change,words",
    [
        ({"tuning_method": "houlsby"}, "in the lowest layer, so that nothing"),
        ({"frozen_layers_gb": 1e-9}, "GB in .*, where 0 GB .* allows 1e-09"),
        ({"frozen_layers_dir": "gs://bucket/x"}, "a folder of this machine"),
        ({"frozen_layers_dir": "/dev/null/x"}, "/dev/null/x"),
    ],
)
def test_what_cannot_be_kept_is_refused(classify, flags, change, words):
    flags.update(cache_frozen_layers=True, tuning_method="head")
    with pytest.raises(UserError, match=words) as caught:
        classify(**{**flags, **change})
    assert "\n" not in str(caught.value)


def test_an_evaluation_does_not_mind(classify, flags):
    """As of a method for which nothing could be kept."""
    classify(**flags, tuning_method="houlsby(size=4)")
    classify(
        **{**flags, "do_train": False, "do_eval": True},
        tuning_method="houlsby(size=4)",
        cache_frozen_layers=True,
    )


@given(
    lengths=st.lists(st.integers(1, 5), min_size=1, max_size=8),
    data=st.data(),
    first_token=st.booleans(),
)
def test_batches_hold_the_outputs_of_their_tokens(lengths, data, first_token):
    starts = np.concatenate([[0], np.cumsum(lengths)])
    count = int(starts[-1])
    rows = Features(
        np.arange(count, dtype=np.int32), np.zeros(count, np.uint8), starts, {}
    )
    # Of each token its own number.
    numbers = starts[:-1] if first_token else np.arange(count)
    outputs = np.stack([numbers, -numbers], axis=1).astype(np.float32)
    known = KnownOutputs.of(rows, outputs, first_token)
    assert len(known) == len(lengths)
    chosen = np.array(
        data.draw(
            st.lists(st.integers(0, len(lengths) - 1), min_size=1, max_size=9)
        )
    )
    batch = make_batch(known, chosen, None)
    found = batch[task_model.FROZEN_OUTPUTS]
    ids, mask = batch["input_ids"], batch["input_mask"]
    if first_token:
        ids, mask = ids[:, :1], mask[:, :1]
    np.testing.assert_array_equal(found[..., 0], ids * mask)
    np.testing.assert_array_equal(found[..., 1], -ids * mask)
    (shape, dtype) = known.added(None)[task_model.FROZEN_OUTPUTS]
    assert len(shape) + 1 == found.ndim and dtype == found.dtype
    taken = rows.take(chosen)
    for number, row in enumerate(chosen):
        own = taken.tokens[taken.starts[number] : taken.starts[number + 1]]
        np.testing.assert_array_equal(
            own, rows.tokens[starts[row] : starts[row + 1]]
        )
