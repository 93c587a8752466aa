"""Curves of event files."""

import pytest
from tensorboard.summary import Writer

from adapter_bert.reports.report_run import read_curves

pytestmark = pytest.mark.older_stack


def write(folder, name, points):
    writer = Writer(str(folder))
    for step, value in points:
        writer.add_scalar(name, value, step)
    writer.close()


def test_all_points_are_read_of_all_files(tmp_path):
    write(tmp_path, "loss", [(step, 0.5) for step in range(1, 1501)])
    write(tmp_path, "f1", [(3, 0.25)])
    curves = read_curves(tmp_path)
    assert curves["f1"] == [(3, 0.25)]
    assert [step for step, _ in curves["loss"]] == list(range(1, 1501))


def test_of_a_step_that_was_done_again_the_last_value_counts(tmp_path):
    for points in ([(10, 1.0), (20, 2.0)], [(20, 3.0), (30, 4.0)]):
        write(tmp_path, "loss", points)
    assert read_curves(tmp_path)["loss"] == [(10, 1.0), (20, 3.0), (30, 4.0)]


def test_what_is_not_there_has_no_curves(tmp_path):
    assert read_curves(tmp_path) == read_curves(tmp_path / "none") == {}


@pytest.mark.parametrize("kept", [0.0, 0.5, 0.9])
def test_a_cut_file_keeps_its_beginning(tmp_path, kept):
    points = [(step, float(step)) for step in range(20)]
    write(tmp_path, "loss", points)
    (path,) = tmp_path.iterdir()
    content = path.read_bytes()
    path.write_bytes(content[: int(kept * len(content))])
    found = read_curves(tmp_path).get("loss", [])
    assert found == points[: len(found)] and (found or not kept)
    assert len(found) < 20


def test_a_file_that_is_none_has_no_curves(tmp_path):
    (tmp_path / "events.out.tfevents.1.x").write_bytes(b"no events" * 30)
    assert read_curves(tmp_path) == {}
