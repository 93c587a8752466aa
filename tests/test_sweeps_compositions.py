"""The scripts that run fusions and language adapters: which runs they are."""

import pytest
from conftest import read_lines

pytestmark = pytest.mark.newer_stack


def grid_sizes(sweep):
    """Numbers of runs, by the names of grids."""
    return {
        path.parent.name: len(read_lines(path))
        for path in sweep.out.glob("*/grid.tsv")
    }


def test_fusions_come_after_the_adapters_that_they_fuse(sweep):
    sweep.add_tasks("MRPC", "RTE", "CoLA", "STS-B", "SST-2")
    table = sweep.folder / "own.tsv"

    def run(*arguments):
        return sweep.run_script(
            "fusion.sh",
            *arguments,
            GLUE_DIR=sweep.folder / "glue",
            SPAM=table,
            REVIEWS=table,
        )

    assert "holds no sweep; start it first" in run("--status").stderr
    assert f"SPAM is {table}, where there is no file" in run().stderr
    table.write_text("ham\thello\n")
    assert run("--", "--seed=3").returncode == 1
    assert sweep.started() == []
    done = run("--grid")
    assert done.returncode == 0, done.stderr
    assert grid_sizes(sweep) == {
        "mrpc": 3,
        "rte": 3,
        "cola": 2,
        "sst2": 1,
        "spam": 1,
        "reviews": 1,
        "fusion": 6,
    }
    rows = read_lines(sweep.out / "fusion" / "grid.tsv")
    assert all(f"--library={sweep.out}/library" in row for row in rows)


def test_languages_come_before_what_is_tagged_upon_them(sweep):
    names = "FIRST_TEXT SECOND_TEXT MAP_TAGS FIRST_NER SECOND_NER".split()
    paths = {name: sweep.folder / name.lower() for name in names}

    def run(*arguments):
        return sweep.run_script("language_adapters.sh", *arguments, **paths)

    assert "has no grid languages; start it first" in run("--status").stderr
    missing = f"FIRST_TEXT is {paths['FIRST_TEXT']}, where there is no file"
    assert missing in run().stderr
    for name in names[:3]:
        paths[name].write_text("hello\n")
    for name in names[3:]:
        paths[name].mkdir()
    # Runs of the second grid have it.
    assert run("--", "--adam_bias_correction=true").returncode == 1
    assert sweep.started() == []
    done = run("--grid")
    assert done.returncode == 0, done.stderr
    assert grid_sizes(sweep) == {"languages": 4, "tagging": 5, "transfer": 7}
    rows = (sweep.out / "transfer" / "grid.tsv").read_text()
    assert "--exchange_part=first-mad_x=second-mad_x" in rows
    status = run("--status")
    assert status.stdout.count("==") == 3
