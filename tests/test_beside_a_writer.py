"""What a reader sees of files that another process writes or deletes."""

import builtins
import contextlib
import fcntl
import functools
import os
import shutil
import threading
from pathlib import Path

import numpy as np
import pytest
import refusals
from conftest import open_checkpoint, write_json
from fake_runs import FakeRuns

from adapter_bert import files, folder_lock
from adapter_bert.bert import encoder
from adapter_bert.checkpoints import (
    adapter_artifact,
    dev_scores,
    google,
    part_values,
    sources,
)
from adapter_bert.commands import grid_status
from adapter_bert.commands import library as library_command
from adapter_bert.library import adapter_library as library
from adapter_bert.reports import baselines, collect_runs, report_sweep
from adapter_bert.training import composition_parts as run_parts
from adapter_bert.training import frozen_outputs

# Has `make` and `shelf`.
pytest_plugins = ["library_folders"]


@pytest.fixture
def after(monkeypatch):
    """Has another process act once, right after a function's first call."""

    def act_after(owner, name, act):
        inner, left = getattr(owner, name), [act]

        def acted_upon(*arguments, **more):
            try:
                return inner(*arguments, **more)
            finally:
                if left:
                    left.pop()()

        monkeypatch.setattr(owner, name, acted_upon)

    return act_after


def test_a_file_that_is_replaced_is_read_as_it_was(tmp_path, after):
    path = str(tmp_path / "file.json")
    old, new = b"[" + b"0, " * 10**6 + b"0]", b"[1]"
    files.write_bytes(path, old)
    after(builtins, "open", lambda: files.write_bytes(path, new))
    assert files.read_bytes(path, "the file") == old
    assert files.read_bytes(path, "the file") == new


@pytest.fixture
def sweep(tmp_path, tiny_config, monkeypatch):
    """A sweep with a run, where each look at it finds a save's last moment."""
    fake = FakeRuns(tmp_path / "sweep", tiny_config)
    fake.add("rte", "houlsby(size=8)", {"accuracy": 0.8})
    fake.add_baseline("rte", {"accuracy": 0.6})
    saving, scandir = fake.folder / "model.ckpt-2_temp", os.scandir

    class Listed:
        """What `os.scandir` gives, read at once."""

        def __init__(self, path="."):
            if os.fspath(path) == str(fake.folder):
                saving.mkdir()
            with scandir(path) as entries:
                self._entries = iter(list(entries))
            if saving.exists():
                saving.rmdir()

        def __iter__(self):
            return self._entries

        def __next__(self):
            return next(self._entries)

        def __enter__(self):
            return self

        def __exit__(self, *error):
            pass

        def close(self):
            pass

    monkeypatch.setattr(os, "scandir", Listed)
    return str(fake.folder)


def test_a_sweep_is_read_while_its_runs_save(sweep):
    runs = collect_runs.find_runs([sweep])
    assert len(runs) == 1
    assert set(baselines.find_baselines([sweep], runs)) == {"rte"}
    title, _ = report_sweep.sections_of_sweep(Path(sweep))
    assert title == "Sweep sweep: 1 runs"


def keep_best(folder, step):
    """Writes what a training does at a step that is better than all before."""
    scores = dev_scores.read(str(folder)) or dev_scores.DevScores("f1", {})
    values = {"output_bias": np.full(3, step, np.float32)}
    dev_scores.write(str(folder), scores.add(step, {"f1": step}), values)


@pytest.fixture
def run(tmp_path, tiny_bert):
    """The folder of a training that has kept its first step as the best."""
    description = {
        "method": "bitfit",
        "base": {"fingerprint": ""},
        "task": {"name": "tiny"},
        "tokenizer": {},
        "bert_config": {},
    }
    folder = tmp_path / "run"
    folder.mkdir()
    write_json(folder / "run.json", description)
    write_json(folder / "places.json", {"base": str(tiny_bert)})
    keep_best(folder, 1)
    return folder


@pytest.mark.parametrize(
    "owner, name", [(dev_scores, "read"), (google, "Reader")]
)
def test_a_better_step_may_come_while_the_best_is_looked_for(
    run, after, owner, name
):
    after(owner, name, lambda: keep_best(run, 2))
    assert dev_scores.best_checkpoint(str(run)) == str(run / "best.ckpt-2")


def test_a_best_step_that_is_lost_is_told_of_all_the_same(run):
    (run / "best.ckpt-1.index").unlink()
    refusals.check(
        lambda: dev_scores.best_checkpoint(str(run)),
        "best.ckpt-1 is not there any more",
    )


@pytest.mark.parametrize(
    "looked, step", [("_find_model", 2), ("open_pretrained", 1)]
)
def test_a_better_step_may_come_while_the_best_is_opened(
    run, after, looked, step
):
    """A checkpoint that is opened is read though it is deleted."""
    after(sources, looked, lambda: keep_best(run, 2))
    opened = open_checkpoint(run)
    assert not (run / "best.ckpt-1.index").exists()
    assert opened.path == str(run / f"best.ckpt-{step}")
    np.testing.assert_array_equal(opened.trained.read("output_bias"), step)


@pytest.mark.gate
@pytest.mark.newer_stack
def test_what_another_run_computes_of_frozen_layers_needs_no_room_twice(
    classify, tiny_flags, still_bert, tmp_path, after
):
    kept = tmp_path / "kept"
    del tiny_flags["adapter_size"]
    flags = {
        **tiny_flags,
        "init_checkpoint": still_bert,
        "tuning_method": "head",
        "cache_frozen_layers": True,
        "frozen_layers_dir": kept,
    }
    classify(**flags)
    [whole] = kept.glob("*.npy")
    size = whole.stat().st_size / frozen_outputs.GB

    def run_again(is_killed, files_allowed):
        """Runs while another run, which may be killed, computes the file."""
        flags["output_dir"] = tmp_path / f"{is_killed}{files_allowed}"
        half = whole.rename(f"{whole}.1.new")
        until_end = contextlib.ExitStack()
        until_end.enter_context(
            folder_lock.hold(str(kept), frozen_outputs.LOCK)
        )

        def end():
            if not is_killed:
                half.rename(whole)
            until_end.close()

        threading.Timer(1.0, end).start()
        classify(**flags, frozen_layers_gb=files_allowed * size)

    for is_killed in (False, True):
        run_again(is_killed, 1.5)
        assert [*kept.glob("*.np*")] == [whole]
    refusals.check(lambda: run_again(True, 0.5), "where 0 GB are kept already")
    assert not [*kept.glob("*.np*")]


@pytest.fixture
def full_shelf(shelf, make):
    """A library with the adapters `first` and `second`."""
    for seed, name in enumerate(("first", "second")):
        shelf.add(str(make(name, seed=seed)), name)
    return shelf


@pytest.mark.parametrize("command", ["list", "verify"])
def test_an_adapter_that_is_removed_meanwhile_is_not_damaged(
    full_shelf, after, capsys, command
):
    after(library.AdapterLibrary, "names", lambda: full_shelf.remove("first"))
    library_command.parse([command, full_shelf.path])[0].run(full_shelf)
    printed = capsys.readouterr().out
    assert "DAMAGED" not in printed and "second" in printed
    assert ("first: not there any more" in printed) == (command == "verify")


def test_all_adapters_are_those_that_are_still_there(full_shelf, after):
    after(library.AdapterLibrary, "names", lambda: full_shelf.remove("first"))
    assert full_shelf.answering() == ["second"]


def replace(full_shelf, name, folder):
    """Puts another adapter in an adapter's place."""
    full_shelf.remove(name)
    full_shelf.add(str(folder), name)


def test_an_adapter_is_read_whole_though_another_takes_its_place(
    full_shelf, make, after
):
    other = make("other", text="lora(rank=2)", seed=7)
    after(
        adapter_artifact,
        "read_config",
        lambda: replace(full_shelf, "first", other),
    )
    adapter = adapter_artifact.read(full_shelf.folder("first"))
    assert adapter.config["method"].startswith("lora(rank=2")
    assert any("lora" in name for name in adapter.weights.shapes)


def test_an_adapter_that_is_replaced_while_it_is_added_is_refused(
    shelf, make, after
):
    """Its name, its checks and its scores would be of the one before."""
    folder, newer = make(seed=1), make("newer", seed=2)
    after(
        library,
        "check",
        lambda: shutil.copytree(newer, folder, dirs_exist_ok=True),
    )
    refusals.check(
        lambda: shelf.add(str(folder), "mine"),
        "adapter was replaced while it was",
    )
    assert shelf.names() == []
    assert shelf.add(str(folder), "mine") == "mine"


def test_a_part_that_is_replaced_is_not_taken_for_the_one_that_was_found(
    full_shelf, make, tiny_bert, tiny_config, after
):
    folder = full_shelf.folder("first")
    sha256 = adapter_artifact.read_config(folder)["sha256"]
    base = sources.open_pretrained(str(tiny_bert)).weights
    whole = adapter_artifact.Artifact({"parts": {"a": sha256}}, base)
    variables = encoder.list_variables(tiny_config)
    complete = functools.partial(
        part_values.complete, whole, [full_shelf.path], base, variables
    )
    assert len(complete().weights.shapes) > len(base.shapes)
    other = make("other", seed=7)
    after(part_values, "by_hash", lambda: replace(full_shelf, "first", other))
    refusals.check(complete, "first was replaced while")
    refusals.check(complete, "needs the adapter a")


def test_a_run_tells_of_the_parts_that_it_was_trained_upon(
    classify, tiny_flags, full_shelf, make, after
):
    del tiny_flags["adapter_size"]
    flags = {
        **tiny_flags,
        "library": full_shelf.path,
        "tuning_method": "stack(first, pfeiffer(size=2))",
    }
    other = make("other", seed=7)
    after(run_parts, "find", lambda: replace(full_shelf, "first", other))
    refusals.check(lambda: classify(**flags), "first was replaced while")
    assert not (flags["output_dir"] / "run.json").exists()


@pytest.mark.parametrize("looked_at", ["log.txt", "lock", "done"])
def test_a_run_of_a_grid_that_ends_meanwhile_was_not_interrupted(
    tmp_path, monkeypatch, looked_at
):
    (tmp_path / "attempts.tsv").write_text("start\n")
    (tmp_path / "log.txt").write_text("step 1\n")
    lock = open(tmp_path / "lock", "w")
    fcntl.flock(lock, fcntl.LOCK_EX)
    ended = []

    def ends_after(name):
        inner = getattr(Path, name)

        def looks(path, *arguments, **more):
            result = inner(path, *arguments, **more)
            if path.name == looked_at and not ended:
                ended.append(path)
                (tmp_path / "done").touch()
                lock.close()
            return result

        monkeypatch.setattr(Path, name, looks)

    ends_after("exists")
    ends_after("read_text")
    state, _ = grid_status.state_of(tmp_path)
    assert ended
    assert state in ("running", "finished")
    lock.close()


def test_a_run_of_a_grid_that_begins_meanwhile_was_not_interrupted(
    tmp_path, monkeypatch, after
):
    monkeypatch.setattr(grid_status, "is_locked", lambda path: False)
    after(
        grid_status,
        "is_locked",
        lambda: (tmp_path / "attempts.tsv").write_text("start\n"),
    )
    assert grid_status.state_of(tmp_path) == ("waiting", "")


def test_a_row_of_a_grid_ends_with_a_line_feed_alone(tmp_path):
    rows = "a\trun x\u2028y\x85z\x0cw\tx\nb\trun\t\n"
    (tmp_path / "grid.tsv").write_text(rows)
    assert grid_status.read_names(tmp_path) == ["a", "b"]


def test_a_failure_of_a_grid_may_be_gone_by_now(tmp_path, monkeypatch):
    failed = tmp_path / "failed"
    failed.write_text("error: of the one before\n")
    text = Path.read_text

    def begins_anew(path, **how):
        failed.unlink()
        return text(path, **how)

    monkeypatch.setattr(Path, "read_text", begins_anew)
    assert grid_status.state_of(tmp_path) == ("failed", "")


def test_a_folder_that_cannot_be_read_is_not_passed_over(tmp_path, plain_user):
    (tmp_path / "run").mkdir(mode=0o700)
    tmp_path.joinpath("run", "run.json").touch()
    (tmp_path / "run").chmod(0)
    message = plain_user(collect_runs.find_files, tmp_path, "run.json")
    assert message == (
        f"cannot read {tmp_path}/run: Permission denied; tables without its "
        "runs would mislead"
    )
