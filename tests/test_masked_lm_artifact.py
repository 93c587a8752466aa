"""Who takes an adapter of masked language modelling: libraries alone."""

import json

import pytest
from conftest import entry_point, own_lines, run_process
from test_methods_runs import without_size

from adapter_bert.commands import run_mlm
from adapter_bert.errors import UserError
from adapter_bert.serving.flags import named_folders
from adapter_bert.serving.library import AdapterLibrary

pytestmark = pytest.mark.older_stack


@pytest.fixture(scope="module")
def trained(tiny_bert, tiny_texts, tmp_path_factory):
    """The folder of a run."""
    out = tmp_path_factory.mktemp("trained") / "out"
    with entry_point(run_mlm) as run:
        run(
            train_file=tiny_texts / "train.txt",
            eval_file=tiny_texts / "eval.txt",
            init_checkpoint=tiny_bert,
            output_dir=out,
            do_train=True,
            do_eval=True,
            max_seq_length=24,
            train_batch_size=8,
            num_train_epochs=1,
            tuning_method="pfeiffer(size=4)",
            cpu_lanes=1,
        )
    return out


def shell(program, *arguments):
    """Runs a program, which may fail."""
    return run_process(
        *map(str, arguments), program=program, check=False, timeout=120
    )


@pytest.mark.gate
def test_a_library_keeps_it(trained, tiny_bert, tmp_path):
    shelf = tmp_path / "shelf"
    added = shell("library", "add", shelf, trained)
    assert (added.returncode, added.stdout) == (0, "added masked_lm\n")
    verified = shell(
        "library", "verify", shelf, f"--init_checkpoint={tiny_bert}"
    )
    assert verified.stdout == "masked_lm: whole\n"
    (entry,) = json.loads(shell("library", "list", shelf, "--json").stdout)
    assert entry["task"] == entry["kind"] == "masked_lm"
    assert set(entry["scores"]) == {"perplexity", "accuracy", "loss"}
    assert "perplexity" in shell("library", "list", shelf).stdout
    shown = shell("library", "show", shelf, "masked_lm").stdout
    assert "mlm_probability" in shown
    # Who asks all asks those that answer.
    assert AdapterLibrary(str(shelf)).answering() == []
    with pytest.raises(UserError, match="holds no adapters that answer texts"):
        named_folders([], str(shelf), ["all"])
    assert list(named_folders([], str(shelf), ["masked_lm"])) == ["masked_lm"]
    done = shell(
        "library",
        "export",
        shelf,
        "masked_lm",
        tmp_path / "other",
        "--to=adapterhub",
    )
    assert done.returncode == 1 and not (tmp_path / "other").exists()
    (line,) = own_lines(done.stderr)
    assert "whose heads cannot be written" in line


@pytest.mark.gate
@pytest.mark.parametrize("program", ["predict", "export"])
def test_nobody_is_answered_by_it(trained, tiny_bert, tmp_path, program):
    flags = [
        f"--init_checkpoint={tiny_bert}",
        f"--adapter={trained / 'adapter'}",
    ]
    if program == "predict":
        (tmp_path / "rows.txt").write_text("the cat\n")
        flags += [
            f"--input={tmp_path / 'rows.txt'}",
            f"--output={tmp_path / 'answers'}",
        ]
    else:
        flags.append(f"--output_dir={tmp_path / 'exported'}")
    done = shell(program, *flags)
    assert done.returncode == 1 and not done.stdout
    line = own_lines(done.stderr)[-1]
    assert line.startswith("error: ")
    words = "the task masked_lm is of a kind that cannot be exported"
    if program == "predict":
        words = "was trained on the task masked_lm, which answers no texts"
    assert words in line
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize("regression", [False, True])
def test_a_classification_does_not_start_from_it(
    classify, tiny_flags, trained, regression
):
    flags = {**without_size(tiny_flags), "regression": regression}
    flags["adapter"] = trained / "adapter"
    with pytest.raises(UserError, match="trained on the task masked_lm"):
        classify(**flags)
