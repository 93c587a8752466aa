"""What all programs that train promise."""

import shutil
from typing import Any, Callable, NamedTuple

import pytest
import refusals
from conftest import entry_point, module_fixture, read_json
from run_folders import interrupt
from test_run_pretraining import (  # noqa: F401 (fixtures)
    from_nothing,
    pretraining_flags,
)
from tiny_artifacts import CLASSIFICATION, make_artifact

from adapter_bert.checkpoints import run_record
from adapter_bert.commands import (
    run_classifier,
    run_mlm,
    run_pretraining,
    run_squad,
    run_tagger,
    run_vectors,
)
from adapter_bert.tasks.from_description import restore_task
from lab.trials import runs

pytestmark = pytest.mark.older_stack

# A program, the fixture of its flags, and what makes them a short training.
PROGRAMS = {
    "classifier": (
        run_classifier,
        "tiny_flags",
        {"num_train_epochs": 2, "max_seq_length": 10},
    ),
    "several tasks": (
        run_classifier,
        "glue_flags",
        {
            "keep_best": "mean",
            "eval_steps": 6,
            "num_train_epochs": 1,
            "max_seq_length": 10,
        },
    ),
    "squad": (
        run_squad,
        "squad_flags",
        {"num_train_epochs": 4, "max_query_length": 4},
    ),
    "tagger": (run_tagger, "ner_flags", {"num_train_epochs": 2}),
    "vectors": (
        run_vectors,
        "vector_flags",
        {"num_train_epochs": 4, "max_seq_length": 10},
    ),
    "masked words": (
        run_mlm,
        "text_flags",
        {
            "tuning_method": "mad_x(size=4, inverse_size=3)",
            "adapter_size": None,
            "num_train_epochs": 2,
            "whole_word_masking": True,
            "gradient_accumulation_steps": 2,
            "cpu_lanes": 2,
        },
    ),
    "pretraining": (run_pretraining, "from_nothing", {"num_train_steps": 8}),
}
ANSWERING = ("classifier", "several tasks", "squad", "tagger")
# Training rows that are longer than these lengths.
CUT = {"classifier": 5, "several tasks": 23, "squad": 12, "vectors": 1}


class Program(NamedTuple):
    """Holds a program and its flags; a call may change some."""

    name: str
    main: Callable
    flags: dict[str, Any]

    def __call__(self, **changes):
        self.main(**{**self.flags, **changes})


@pytest.fixture(params=PROGRAMS)
def program(request):
    """A program with the flags of a small training."""
    module, fixture, _ = PROGRAMS[request.param]
    with entry_point(module) as main:
        yield Program(request.param, main, request.getfixturevalue(fixture))


@pytest.fixture
def short(program):
    """The program with a training of a few steps, and all that may follow."""
    flags = {**program.flags, **PROGRAMS[program.name][-1]}
    flags.update(engine="strategy", save_checkpoints_steps=3, do_eval=True)
    flags.update(do_predict=program.name in ANSWERING or None)
    return program._replace(flags=flags)


@module_fixture
def kept(tmp_path_factory):
    """Where `trained` keeps the folders of its trainings."""
    return tmp_path_factory.mktemp("kept")


@pytest.fixture
def trained(short, kept):
    """The program with a training that is over in its folder."""
    whole = kept / short.name
    if not whole.exists():
        short(output_dir=whole)
    shutil.copytree(whole, short.flags["output_dir"])
    return short


@pytest.mark.gate
def test_a_run_that_is_killed_ends_in_the_same_bits(trained, tmp_path):
    """It is killed after its first checkpoint; rows that are cut are told."""
    folder = tmp_path / "killed"
    interrupt(lambda: trained(output_dir=folder))
    assert not list(folder.rglob("adapter.safetensors"))
    trained(output_dir=folder)
    results = map(runs.result, (trained.flags["output_dir"], folder))
    # A pretraining's first values lie in its own folder.
    assert not runs.differences(*results, "places.json")
    cut = read_json(folder, "run.json")["cut_rows"]
    assert cut["train"] == CUT.get(trained.name, 0)


# What makes another run of one in its folder.
OTHER_RUNS = {
    "masked words": (
        {"mlm_probability": 0.2},
        "task.mlm_probability was 0.15, now 0.2",
    ),
    "several tasks": (
        {"task_sampling": "proportional"},
        "training.task_sampling was 'annealed', now 'proportional'",
    ),
    "classifier": ({"adapter_size": 8}, "size=4", "size=8"),
    "pretraining": ({"num_train_steps": 9}, "was 8, now 9", "--init_adapter"),
}


@pytest.mark.gate
def test_a_run_that_is_over_is_not_trained_again(trained):
    """Nor with other settings; its folder knows its base and its command."""
    out = trained.flags["output_dir"]
    before, saved = runs.result(out), max(out.glob("model.ckpt*.index"))
    began = saved.stat().st_mtime
    words = run_record.command_of(str(out))
    assert {word.partition("=")[0].strip("-") for word in words} == {
        name for name, value in trained.flags.items() if value is not None
    }
    other = OTHER_RUNS.get(trained.name, ({"learning_rate": 1e-4}, "was 0.0"))
    for change, *parts in (other, ({"seed": 9}, "training.seed was 1, now 9")):
        refusals.check(
            lambda change=change: trained(**change),
            "holds a run with another configuration",
            *parts,
            "choose another --output_dir",
        )
    trained()
    assert saved.stat().st_mtime == began
    for path in out.rglob("eval_results.json"):
        path.unlink()
    trained(do_train=False, init_checkpoint=None)
    assert runs.result(out) == before
    assert not list(out.rglob("*tmp*"))


@pytest.mark.gate
def test_an_adapter_answers_elsewhere_as_in_its_run(trained, tmp_path):
    """What is handed on names no place of this machine."""
    out, folder = trained.flags["output_dir"], tmp_path / "elsewhere"
    base = trained.flags.get("init_checkpoint", out / "initial")
    for path in out.rglob("*.json"):
        text = "" if path.name == "places.json" else path.read_text()
        assert str(base.parent) not in text and str(out.parent) not in text
    if trained.name == "several tasks":
        # tests/test_run_multi_task.py looks at each of them.
        return
    training = ("tuning_method", "adapter_size", "max_seq_length")
    trained(
        **dict.fromkeys(training),
        do_train=False,
        init_checkpoint=base,
        adapter=out / "adapter",
        output_dir=folder,
    )
    names = {path.name for path in out.glob("*_results.*")}
    names |= {path.name for path in out.glob("*predictions.*")}
    assert "eval_results.json" in names
    for name in names:
        assert (folder / name).read_bytes() == (out / name).read_bytes()


NEW = "/nowhere/x"
UNTRAINED = {"do_train": False, "do_eval": True}
# Changes of flags that are refused, and what the message names.
BAD = {
    "all": [
        ({"init_checkpoint": NEW}, NEW),
        ({"adapter": NEW}, NEW),
        ({"output_dir": "/dev/null/x"}, "/dev/null/x"),
        ({"max_seq_length": 2}, "at least"),
    ],
    "classifier": [
        ({"output_dir": ""}, "--output_dir is missing"),
        ({"train_batch_size": 0}, "--train_batch_size is 0, "),
        ({"tuning_method": "nope"}, "expected one of houlsby"),
        ({"vocab_file": NEW}, NEW),
        ({"bert_config_file": NEW}, NEW),
        ({"engine": "nope"}, "expected auto"),
        ({"max_seq_length": 33}, "only 32 positions"),
        ({"learning_rate": 0}, "expected a positive number"),
        ({"warmup_proportion": 1.5}, "from 0 to 1"),
        ({"seed": -1}, "expected 0 to"),
        ({"tuning_method": "houlsby(size=8)"}, "does not fit"),
        ({"tuning_method": "full"}, "has no size"),
        ({"output_dir": "/nowhere/[1]"}, "a name with ["),
        ({"use_tpu": True}, "--tpu_name"),
        ({"use_tpu": True, "tpu_name": "local"}, "TPU"),
        ({"use_tpu": True, "num_devices": 2}, "a TPU has --num_tpu_cores"),
        ({"do_train": False}, "nothing to do"),
        (UNTRAINED, "no trained adapters"),
        (
            {**UNTRAINED, "tuning_method": "full", "adapter_size": None},
            "no trained head",
        ),
        (
            {"init_checkpoint": "/no/x"},
            "--init_checkpoint /no/x does not exist",
        ),
        ({"init_checkpoint": "s3://x/y"}, "s3://x/y"),
        (
            {"task_name": "MRPC", "dev_share": 0.1},
            "--dev_share is for --task_name=cu",
        ),
    ],
    "several tasks": [
        ({"task_name": "mnli,copa", "text_a_column": None}, "copa has choices"),
        ({"task_name": "mnli,custom"}, "has the folder ''", "expected custom:"),
        ({"class_weights": "balanced"}, "--class_weights is for tasks with"),
        ({"keep_best": "f1"}, "expected a score of", "mean, accuracy_mnli, "),
        ({"task_name": "custom:reviews"}, "unknown task"),
        ({"task_name": "mnli,sts-b"}, "--text_a_column is for --task_name=cu"),
    ],
    "squad": [
        ({"train_file": ""}, "--train_file is missing"),
        ({"predict_file": "", "do_predict": True}, "--predict_file is missing"),
        ({"predict_file": NEW, "do_predict": True}, NEW),
        ({"max_seq_length": 11}, "expected at least 12"),
        ({"n_best_size": 21}, "expected at most"),
        (
            {"n_best_size": 1001, "max_seq_length": 4096},
            "expected at most 1000",
        ),
        (
            {"null_score_diff_threshold": "1e400"},
            "--null_score_diff_threshold is inf, expected a finite",
        ),
        ({"do_train": False, "do_predict": True}, "no trained adapters"),
    ],
    "tagger": [
        ({"data_dir": "/nowhere"}, "there is no /nowhere/train"),
        ({"data_dir": None}, "--data_dir is missing"),
        ({"train_file": "/x"}, "--train_file and --data_dir ex"),
        ({"map_tags": "/nowhere/m"}, "/nowhere/m does not exist"),
        ({"tag_column": "3"}, "train.conll:1: found 2 columns, exp"),
        ({"token_column": "w"}, "--token_column is 'w', but the columns"),
        ({"token_column": "1", "tag_column": "0"}, "no tag"),
        (UNTRAINED, "no trained adapters"),
    ],
    "vectors": [
        ({"train_batch_size": 1}, "--train_batch_size is 1, but the loss "),
        ({"task_name": "RTE"}, "expected one of mrpc, qqp, qnli, sts-b, "),
        *(
            (
                {
                    **dict.fromkeys(("text_b_column", "train_file")),
                    "eval_file": None,
                    "data_dir": ".",
                    "task_name": "MRPC",
                    name: value,
                },
                f"--{name} is for --task_name=cus",
            )
            for name, value in (
                ("text_b_column", "x"),
                ("header", False),
                ("corpus_file", "c.csv"),
            )
        ),
        (
            {"task_name": "SQuAD", "text_b_column": None},
            "/pairs.jsonl, expected the ending .js",
        ),
        ({"do_predict": True}, "answers no rows", "predict --embeddings`"),
        (
            {"tuning_method": "head", "adapter_size": None},
            "trains the task's head alone, and",
        ),
        ({"temperature": 0}, "--temperature is 0.0, expected a po"),
        ({"header": False}, "the column 'text' is no number", "--header=false"),
        ({"corpus_file": "/no.csv"}, "--corpus_file is /no.csv, which do"),
        ({"corpus_id_column": "id"}, "without --corpus_file"),
    ],
    "masked words": [
        ({"do_predict": True}, "answers no rows"),
        ({"mlm_probability": 0}, "--mlm_probability is 0"),
        ({"mlm_probability": 1.5}, "--mlm_probability is 1.5"),
        ({"train_file": ""}, "--train_file is missing"),
        ({"do_eval": True, "eval_file": ""}, "--eval_file is missing"),
    ],
    "pretraining": [
        ({"input_file": ""}, "--input_file is missing"),
        ({"input_file": "none"}, "no file is called 'none'"),
        ({"do_predict": True}, "answers no rows"),
        ({"max_seq_length": 10}, "with this --max_seq_length"),
        ({"num_train_steps": 0}, "expected 1 to"),
        ({"num_warmup_steps": 7}, "is 7, but the training has 6 steps"),
        (
            {"do_eval": True, "eval_steps": "epoch"},
            "pass --eval_steps with the number of steps",
        ),
        ({"bert_config_file": None}, "--bert_config_file is missing"),
        ({"vocab_file": None}, "--vocab_file is missing"),
    ],
}


@pytest.mark.parametrize(
    "program, change, parts",
    [
        (name, change, parts)
        for name in PROGRAMS
        for change, *parts in (*BAD["all"], *BAD[name])
    ],
    indirect=["program"],
    ids=str,
)
def test_bad_flags_are_one_line_before_any_training(program, change, parts):
    refusals.check(lambda: program(**change), *parts)
    left = {path.name for path in program.flags["output_dir"].glob("*")}
    # What a training from nothing begins with is no training.
    assert left <= {"run.lock", "initial"}


@pytest.mark.parametrize(
    "program", ["squad", "tagger", "masked words", "pretraining"], indirect=True
)
def test_an_adapter_of_labels_begins_no_other_task(
    program, tiny_bert, tmp_path
):
    task = restore_task(CLASSIFICATION, {}, "test")
    folder = tmp_path / "labels" / "adapter"
    make_artifact(folder, tiny_bert, "houlsby(size=8)", task)
    more = {"init_checkpoint": tiny_bert, "adapter": folder}
    more.update(tuning_method=None, adapter_size=None)
    refusals.check(lambda: program(**more), "trained on the task custom, not")


BASE = "configs/bert_base_uncased.json"
TOTAL = 111863042
DESCRIBED = {
    "classifier": (
        {"task_name": "MRPC", "bert_config_file": BASE, "adapter_size": 64},
        "adapters 2,379,264 2,379,264 -",
        "LayerNorm 38,400 38,400 -",
        "head 1,538 1,538 -",
        f"**** Total Parameters = {TOTAL} *****",
    ),
    # Without pooler, adapters of size 64, a head of 2 D + 2.
    "squad": (
        {"bert_config_file": BASE},
        f"**** Total Parameters = {TOTAL - 590592} *****",
    ),
    # Seven tags of 16 numbers and a bias.
    "tagger": ({}, "head 119 119 -"),
    # 3 labels, 2 labels, a number; then without data.
    "several tasks": ({}, f"head {6 * 17} {6 * 17} -"),
    "several tasks, of BERT-base": (
        {
            "task_name": "CoLA,MNLI",
            "bert_config_file": BASE,
            **dict.fromkeys(("data_dir", "text_a_column")),
        },
        "head 3,845 3,845 -",
    ),
}


@pytest.mark.parametrize(
    "program, changes, lines",
    [
        (name.partition(",")[0], changes, lines)
        for name, (changes, *lines) in DESCRIBED.items()
    ],
    indirect=["program"],
)
def test_describe_needs_no_weights(program, tiny_bert, changes, lines, capsys):
    training = ("do_train", "do_eval", "output_dir", "init_checkpoint")
    program(
        **{
            **dict.fromkeys(training),
            "describe": True,
            "bert_config_file": tiny_bert / "config.json",
            "adapter_size": None,
            **changes,
        }
    )
    printed = capsys.readouterr().out
    assert set(lines) <= {" ".join(x.split()) for x in printed.splitlines()}
    assert ("pooler" in printed) is (program.name not in ("squad", "tagger"))
