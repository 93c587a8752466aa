"""What a run of several tasks refuses: flags, adapters, used folders."""

import shutil

import pytest
from run_folders import bytes_by_task

from adapter_bert.errors import UserError

pytestmark = pytest.mark.older_stack


@pytest.mark.parametrize(
    "change, words",
    [
        ({"task_name": "mnli,copa"}, "copa has choices"),
        ({"task_name": "mnli,custom"}, "has the folder ''; expected custom:"),
        ({"task_name": "mnli,qqp"}, "holds no folder for the task qqp; with"),
        ({"task_name": "mnli,nothing"}, "unknown task 'nothing'"),
        ({"class_weights": "balanced"}, "--class_weights is for tasks with"),
        ({"keep_best": "f1"}, "expected a score of .*: mean, accuracy_mnli, "),
        ({"task_name": "custom"}, "--task_sampling is for several tasks"),
        (
            {"task_name": "custom:reviews", "task_sampling": None},
            "unknown task",
        ),
    ],
)
def test_flags_that_cannot_be(classify, glue_flags, change, words):
    glue_flags["task_sampling"] = "uniform"
    glue_flags.update(change)
    glue_flags = {k: v for k, v in glue_flags.items() if v is not None}
    if "custom" not in glue_flags["task_name"]:
        del glue_flags["text_a_column"]
    with pytest.raises(UserError, match=words):
        classify(**glue_flags)
    assert not glue_flags["output_dir"].exists()


def test_a_missing_file_is_told_before_bert_is_read(
    classify, glue_flags, tiny_glue, tmp_path
):
    data = shutil.copytree(tiny_glue, tmp_path / "data")
    path = data / "Reviews" / "dev.tsv"
    path.unlink()
    glue_flags.update(data_dir=data, init_checkpoint="nowhere")
    with pytest.raises(UserError, match=f"there is no {path}"):
        classify(**glue_flags)


def test_columns_are_those_of_ones_own_tables(classify, glue_flags):
    glue_flags["task_name"] = "mnli,sts-b"
    with pytest.raises(
        UserError, match="--text_a_column is for --task_name=cu"
    ):
        classify(**glue_flags)


@pytest.mark.gate
def test_one_tasks_adapter_is_no_start_of_several(
    classify, glue_flags, tmp_path
):
    classify(**glue_flags)
    adapter = glue_flags["output_dir"] / "tasks" / "mnli" / "adapter"
    glue_flags.update(output_dir=tmp_path / "new", adapter=adapter)
    with pytest.raises(
        UserError, match="was trained on mnli, not on mnli,revi"
    ):
        classify(**glue_flags)


@pytest.mark.gate
def test_another_run_in_the_folder_is_refused(classify, glue_flags, tiny_glue):
    classify(**glue_flags)
    before = bytes_by_task(glue_flags["output_dir"])
    for change, words in (
        (
            {"task_sampling": "proportional"},
            "training.task_sampling was 'annealed', now 'proportional'",
        ),
        (
            {"task_name": "custom:reviews,mnli"},
            "task.name was 'mnli,reviews,sts-b', now 'mnli,reviews'",
        ),
        (
            {"task_name": "custom", "data_dir": tiny_glue / "Reviews"},
            "task.name was 'mnli,reviews,sts-b', now 'custom'",
        ),
    ):
        with pytest.raises(UserError, match="another configuration") as caught:
            classify(**{**glue_flags, **change})
        assert words in str(caught.value)
    assert bytes_by_task(glue_flags["output_dir"]) == before
