"""What a folder of checkpoints comes to when some of it is lost."""

import shutil

import disk_order
import numpy as np
import pytest
import refusals
import tensorflow as tf
from conftest import latest_step, module_fixture
from engine_jobs import (
    CLASSIFICATION,
    check_equal,
    make_job,
    make_rows,
    new_engine,
    train,
    trained_values,
)

from adapter_bert.checkpoints import training_state


def save(folder, step):
    values = {
        "global_step": np.int64(step),
        "x": np.full(100, step, np.float32),
    }
    training_state.save_training(str(folder), step, values)


def recover(folder):
    training_state.recover(str(folder))


@module_fixture
def saved(tmp_path_factory):
    """A folder with checkpoints of the steps 2, 4 and 6."""
    folder = tmp_path_factory.mktemp("saved")
    for step in (2, 4, 6):
        save(folder, step)
    return folder


@pytest.fixture
def folder(saved, tmp_path):
    """A copy of it, to be spoiled."""
    return shutil.copytree(saved, tmp_path / "run")


DATA = ".data-00000-of-00001"


def cut(path):
    content = path.read_bytes()
    path.write_bytes(content[: len(content) // 2])


def flip(path):
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(bytes(content))


def empty(path):
    path.write_bytes(b"")


def delete(path):
    path.unlink()


FAULTS = [
    (empty, "checkpoint", 6, "checkpoint is damaged"),
    (delete, "checkpoint", 6, "checkpoint is missing"),
    (delete, "model.ckpt-6.index", 4, "model.ckpt-6.index"),
    (cut, "model.ckpt-6.index", 4, "model.ckpt-6 is damaged"),
    (cut, f"model.ckpt-6{DATA}", 4, "model.ckpt-6 is damaged"),
    (flip, f"model.ckpt-6{DATA}", 4, "model.ckpt-6 is damaged"),
    (delete, f"model.ckpt-6{DATA}", 4, "model.ckpt-6 is damaged"),
]


@pytest.mark.parametrize("spoil,name,step,words", FAULTS)
def test_the_newest_whole_checkpoint_is_taken_and_the_loss_said(
    folder, caplog, spoil, name, step, words
):
    spoil(folder / name)
    left = {path.name for path in folder.iterdir()}
    expected = str(folder / f"model.ckpt-{step}"), step
    assert latest_step(folder) == expected
    with caplog.at_level("WARNING"):
        recover(folder)
    assert words in caplog.text and f"ckpt-{step} is taken" in caplog.text
    # What TensorFlow's own programs go by; and nothing is deleted.
    assert tf.train.latest_checkpoint(str(folder)) == expected[0]
    assert left <= {path.name for path in folder.iterdir()}
    caplog.clear()
    assert latest_step(folder) == expected


def test_a_whole_folder_is_left_as_it_is(folder, caplog):
    before = (folder / "checkpoint").stat().st_mtime_ns
    recover(folder)
    assert (folder / "checkpoint").stat().st_mtime_ns == before
    assert not caplog.records
    assert len(list(folder.glob("model.ckpt-*.index"))) == 3


@pytest.mark.gate
def test_a_list_that_is_damaged_anywhere_is_written_anew(folder):
    """TensorFlow reads none of it then, and an Estimator would begin anew."""
    path, newest = folder / "checkpoint", str(folder / "model.ckpt-6")
    whole = path.read_bytes()
    damaged = [whole[:size] for size in range(len(whole))]
    for place in range(len(whole)):
        flipped = bytearray(whole)
        flipped[place] ^= 1 << place % 8
        damaged.append(bytes(flipped))
    for content in damaged:
        path.write_bytes(content)
        recover(folder)
        assert tf.train.latest_checkpoint(str(folder)) == newest, content


def test_checkpoints_that_were_deleted_whole_are_missed(folder, caplog):
    for path in folder.glob("model.ckpt-6*"):
        path.unlink()
    recover(folder)
    assert "model.ckpt-6 is not there any more" in caplog.text
    assert latest_step(folder)[1] == 4


def test_without_a_whole_checkpoint_no_training_begins_anew(folder):
    for path in folder.glob("model.ckpt-*.index"):
        path.unlink()
    for read in (latest_step, recover):
        refusals.check(
            lambda read=read: read(folder), "no checkpoint in ", "whole"
        )
    (folder / "checkpoint").unlink()
    refusals.check(
        lambda: latest_step(folder), "no checkpoint in ", " is whole"
    )
    for path in folder.glob("model.ckpt-*"):
        path.unlink()
    assert latest_step(folder) == (None, 0)


def test_a_first_save_that_was_broken_off_is_no_checkpoint(folder, tmp_path):
    begun = tmp_path / "begun"
    (begun / "model.ckpt-2_temp").mkdir(parents=True)
    shutil.copy(
        folder / f"model.ckpt-2{DATA}",
        begun / "model.ckpt-2_temp" / "part.data-00000-of-00001",
    )
    assert latest_step(begun) == (None, 0)
    assert not training_state.holds_checkpoints(str(begun))
    # Data are put in their place before the index.
    shutil.copy(folder / f"model.ckpt-2{DATA}", begun)
    assert latest_step(begun) == (None, 0)
    (folder / "model.ckpt-8_temp").mkdir()
    assert latest_step(folder)[1] == 6


def test_a_first_save_may_go_on_while_it_is_looked_for(
    folder, folders, monkeypatch
):
    begun = folders("begun")
    shutil.copy(folder / f"model.ckpt-2{DATA}", begun)
    damage = training_state._damage

    def looks_too_early(*arguments):
        result = damage(*arguments)
        shutil.copy(folder / "model.ckpt-2.index", begun)
        return result

    monkeypatch.setattr(training_state, "_damage", looks_too_early)
    assert latest_step(begun) == (None, 0)
    assert latest_step(begun)[1] == 2


def test_a_save_is_there_whole_or_not_at_all(folder, monkeypatch):
    """Whatever has been written when the program is killed."""
    rename = tf.io.gfile.rename
    seen = []

    def look():
        copy = shutil.copytree(folder, folder.parent / f"copy{len(seen)}")
        seen.append(latest_step(copy)[1])

    def looked_at(*arguments, **more):
        look()
        rename(*arguments, **more)
        look()

    monkeypatch.setattr(tf.io.gfile, "rename", looked_at)
    save(folder, 8)
    # Data, index, then `checkpoint`.
    assert seen[:4] == [6, 6, 6, 8] and set(seen[4:]) <= {8}
    assert not list(folder.glob("*_temp*"))


@pytest.mark.parametrize("count", range(6))
def test_a_killed_save_leaves_no_older_checkpoint(folder, monkeypatch, count):
    """Killed before any rename or removal of one that forgets another."""
    save(folder, 8)
    save(folder, 10)
    # Data, index, list; data and index of the oldest; list.
    is_killed = iter([False] * count + [True])

    def killed_before(act):
        def acts(*arguments, **more):
            if next(is_killed, False):
                raise KeyboardInterrupt
            act(*arguments, **more)

        return acts

    with monkeypatch.context() as patch:
        for name in ("rename", "remove"):
            act = getattr(tf.io.gfile, name)
            patch.setattr(tf.io.gfile, name, killed_before(act))
        with pytest.raises(KeyboardInterrupt):
            save(folder, 12)
    recover(folder)
    newest = latest_step(folder)[1]
    assert newest == (12 if count > 1 else 10)
    save(folder, newest + 2)
    names = {path.name for path in folder.glob("model.ckpt-*.*")}
    assert names == {
        f"model.ckpt-{newest + 2 - age}{end}"
        for age in range(0, 10, 2)
        for end in (".index", DATA)
    }


def test_a_save_of_which_the_list_says_nothing_counts(folder, caplog):
    """Killed between the two."""
    (folder / "checkpoint").write_text(
        'model_checkpoint_path: "model.ckpt-4"\n'
        'all_model_checkpoint_paths: "model.ckpt-4"\n'
    )
    assert latest_step(folder)[1] == 6
    recover(folder)
    assert not caplog.records
    assert tf.train.latest_checkpoint(str(folder)).endswith("-6")


def test_damaged_checkpoints_are_never_forgotten(folder):
    cut(folder / f"model.ckpt-4{DATA}")
    (folder / "checkpoint").unlink()
    recover(folder)
    for step in range(8, 20):
        save(folder, step)
    steps = {int(p.stem[11:]) for p in folder.glob("model.ckpt-*.index")}
    assert steps == {4, 15, 16, 17, 18, 19}


def four_steps(engine, job):
    """Trains, or goes on, and saves after two steps."""
    rows = make_rows(CLASSIFICATION)
    return train(new_engine(engine), job, rows, steps=4, save_steps=2)


# What drops out or is drawn again, has gates, patterns or virtual tokens.
GO_ON = (
    "union(vera(5, seed=3, targets='key', dropout=0.1), prompt(length=3), "
    "loreft(rank=2))",
    "union(lora(2, alpha_pattern='1:3', gating=true), "
    "prefix(2, inner_size=8, gating=true), "
    "pfeiffer(4, sizes='1:3', gating=true))",
)


@pytest.mark.gate
@pytest.mark.parametrize("method", GO_ON)
def test_each_kind_of_values_goes_on_with_the_same_bits(
    engine, tiny_config, tmp_path, method
):
    """As after a kill before the last checkpoint was whole."""
    job = make_job(tiny_config, tmp_path, method)
    losses = four_steps(engine, job)
    assert len({loss for _, loss in losses}) == 4
    whole = trained_values(job)
    delete(tmp_path / "model.ckpt-4.index")
    recover(tmp_path)
    assert four_steps(engine, job) == losses[2:]
    check_equal(trained_values(job), whole)


def test_checkpoints_are_on_the_disk_before_older_ones_go(
    engine, tiny_config, tmp_path, monkeypatch
):
    events = disk_order.watch(monkeypatch)
    train(
        new_engine(engine),
        make_job(tiny_config, tmp_path),
        make_rows(CLASSIFICATION),
        steps=6,
        save_steps=1,
    )
    # Data, index and list of each, and the list when one has gone.
    assert disk_order.check(events) == 3 * 6 + 1
    left = [e[:2] for e in events if not e[1].endswith("_temp")]
    removed = [path for what, path in left if what == disk_order.REMOVE]
    prefix = str(tmp_path / "model.ckpt-1")
    assert sorted(removed) == [f"{prefix}{DATA}", f"{prefix}.index"]
    state = tf.train.get_checkpoint_state(str(tmp_path))
    assert len(state.all_model_checkpoint_paths) == 5
    # The list with the newest is on the disk when it goes.
    first = left.index((disk_order.REMOVE, removed[0]))
    assert left[first - 1] == (disk_order.SYNC, str(tmp_path))
    assert left[first - 2][1].startswith(f"{tmp_path}/.checkpoint.tmp-")


@pytest.mark.parametrize("lost", [cut, delete])
def test_a_single_damaged_checkpoint_is_not_trained_over(folder, lost):
    """Nor is one whose folder has lost the list of checkpoints too."""
    for path in folder.iterdir():
        if not path.name.startswith("model.ckpt-6."):
            path.unlink()
    [data] = folder.glob("model.ckpt-6.data*")
    lost(data)
    refusals.check(
        lambda: latest_step(folder), "no checkpoint in ", " is whole"
    )


def test_a_list_that_names_another_folder_is_written_anew(folder):
    """TensorFlow would look there; a copied folder may have such a list."""
    (folder / "checkpoint").write_text(
        'model_checkpoint_path: "/gone/model.ckpt-6"\n'
    )
    recover(folder)
    newest = str(folder / "model.ckpt-6")
    assert tf.train.latest_checkpoint(str(folder)) == newest
