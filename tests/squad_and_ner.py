"""Small tasks of questions and of tagging, and flags to train on them."""

import pytest
from task_files import TAGGED, TINY_CONTEXTS, conll, squad_file


@pytest.fixture(scope="session")
def tiny_squad(tmp_path_factory):
    """Files of answerable questions, and of such as have no answer."""
    folder = tmp_path_factory.mktemp("tiny_squad")
    rows = [
        (f"q{i}", context, question, text)
        for i, (context, text, question) in enumerate(TINY_CONTEXTS * 4)
    ]
    squad_file(folder / "v1.json", rows)
    squad_file(
        folder / "v2.json",
        [
            *rows,
            *(
                (f"none-{name}", c, "out in film ?", None)
                for name, c, *_ in rows
            ),
        ],
    )
    return folder


@pytest.fixture
def squad_flags(tiny_bert, tiny_squad, tmp_path):
    """Flags of a small training of question answering."""
    return {
        "train_file": tiny_squad / "v1.json",
        "predict_file": tiny_squad / "v1.json",
        "init_checkpoint": tiny_bert,
        "output_dir": tmp_path / "out",
        "do_train": True,
        "max_seq_length": 20,
        "max_query_length": 8,
        "doc_stride": 4,
        "train_batch_size": 8,
        "learning_rate": 1e-2,
        "num_train_epochs": 25,
        "adapter_size": 8,
        "cpu_lanes": 1,
    }


@pytest.fixture(scope="session")
def tiny_ner(tmp_path_factory):
    """A folder with train.conll (32 sentences), dev.conll and test.conll."""
    folder = tmp_path_factory.mktemp("tiny_ner")
    (folder / "train.conll").write_text(conll(TAGGED * 8))
    (folder / "dev.conll").write_text(conll(TAGGED, "\t"))
    (folder / "test.conll").write_text(conll(TAGGED).replace("I-", "B-"))
    return folder


@pytest.fixture
def ner_flags(tiny_bert, tiny_ner, tmp_path):
    """Flags of a small training of tagging."""
    return {
        "data_dir": tiny_ner,
        "init_checkpoint": tiny_bert,
        "output_dir": tmp_path / "out",
        "do_train": True,
        "max_seq_length": 24,
        "train_batch_size": 8,
        "learning_rate": 1e-2,
        "num_train_epochs": 12,
        "adapter_size": 8,
        "cpu_lanes": 1,
    }
