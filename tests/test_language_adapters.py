"""MAD-X between languages, on a cased multilingual vocabulary."""

import dataclasses

import numpy as np
import pytest
from conftest import (
    entry_point,
    module_fixture,
    read_json,
    write_bert,
    write_lines,
)

from adapter_bert.bert import encoder
from adapter_bert.commands import run_mlm, run_tagger

pytestmark = pytest.mark.older_stack

WORDS = (
    "[PAD] [UNK] [CLS] [SEP] [MASK] Der der Hund Kat ##ze schl ##äft in läuft "
    "groß ##er ÄRGER Ärger und nach The the dog cat sleeps runs to and big "
    "東 京 大 阪 Berlin Rome . , É ##té"
).split()
TEXTS = {
    "first": ("The cat sleeps in Rome .", "the big dog runs to Berlin ."),
    "second": (
        "Der Hund läuft nach Berlin .",
        "Katze und Ärger in 東京 .",
        "der große Hund schläft in 大阪",
    ),
}
TAGGED = {
    "first": "The O\ncat O\nsleeps O\nin O\nRome B-LOC\n\n"
    "the O\ndog O\nruns O\nto O\nBerlin B-LOC\n",
    "second": "Der O\nHund O\nläuft O\nnach O\nBerlin B-LOC\n\n"
    "Ärger O\nin O\n東京 B-LOC\n\nKatze O\nund O\nÉté O\n",
}


@module_fixture
def bert(tmp_path_factory, tiny_config):
    """A small BERT of that vocabulary, with random values."""
    folder = tmp_path_factory.mktemp("multilingual")
    config = dataclasses.replace(tiny_config, vocab_size=len(WORDS))
    values = {}
    rng = np.random.default_rng(1)

    def create(name, shape, initializer):
        middle = 1.0 if name.endswith("gamma") else 0.0
        values[name] = rng.normal(middle, 0.3, shape).astype(np.float32)

    encoder.make_variables(encoder.declare(config), create)
    return write_bert(folder, WORDS, config, values)


@module_fixture
def data(tmp_path_factory):
    """Raw text of both languages, and folders of tagged words."""
    folder = tmp_path_factory.mktemp("languages")
    for name, lines in TEXTS.items():
        write_lines(folder / f"{name}.txt", lines * 8)
        (folder / name).mkdir()
        for split, times in (("train", 8), ("dev", 1)):
            text = "\n".join([TAGGED[name].replace(" ", "\t")] * times)
            (folder / name / f"{split}.conll").write_text(text)
    return folder


@pytest.mark.gate
def test_one_language_is_exchanged_for_the_other(bert, data, tmp_path):
    shelf = tmp_path / "shelf"
    common = {
        "init_checkpoint": bert,
        "do_train": True,
        "max_seq_length": 16,
        "do_lower_case": False,
    }
    with entry_point(run_mlm) as run:
        for name in TEXTS:
            run(
                **common,
                train_file=data / f"{name}.txt",
                tuning_method="mad_x(size=4,inverse_size=4)",
                learning_rate=1e-2,
                train_batch_size=8,
                output_dir=tmp_path / name,
            )
            shelf.mkdir(exist_ok=True)
            (tmp_path / name / "adapter").rename(shelf / name)
    described = read_json(shelf / "second" / "adapter_config.json")
    assert described["tokenizer"]["do_lower_case"] is False
    scores = {}
    with entry_point(run_tagger) as run:
        run(
            **common,
            data_dir=data / "first",
            library=shelf,
            tuning_method="stack(first,pfeiffer(size=4))",
            learning_rate=3e-2,
            num_train_epochs=10,
            train_batch_size=8,
            output_dir=tmp_path / "task",
            do_eval=True,
        )
        kept = tmp_path / "task" / "adapter"
        for name, exchange in (("kept", ""), ("exchanged", "first=second")):
            run(
                **{**common, "do_train": False},
                data_dir=data / "second",
                adapter=kept,
                library=shelf,
                exchange_part=exchange,
                do_eval=True,
                output_dir=tmp_path / name,
            )
            path = tmp_path / name / "eval_results.json"
            scores[name] = read_json(path)["eval_loss"]
    assert scores["kept"] != scores["exchanged"]
    trained = read_json(tmp_path / "task" / "eval_results.json")
    assert trained["eval_f1"] > 0.9
