"""What a process holds, and whether that grows; and what is done for long."""

import os
import random

import pytest
from conftest import ROOT, run_process

from lab import report
from lab.trials import long
from lab.trials.long import Sample, growth, sample


def samples(memory_of, files=4, threads=9, count=101):
    """Of a work whose memory is a function of what is done."""
    return [
        Sample(n / (count - 1), memory_of(n / (count - 1)), 99, files, threads)
        for n in range(count)
    ]


def test_growth_is_the_end_beside_the_first_part_after_the_warm_up():
    found = growth(samples(lambda done: 100 + round(100 * done)), 0.5)
    # Medians of what is done: 0.5 to 0.55, and 0.95 to 1.
    assert found.memory == [152.5, 197.5]
    assert found.share == pytest.approx(45 / 152.5)
    assert found.peak == 99
    assert not found.is_flat


def test_what_happens_in_the_warm_up_and_for_a_moment_does_not_count():
    found = growth(samples(lambda done: 10 if done < 0.1 else 1000), 0.1)
    assert found.share == 0 and found.is_flat
    found = growth(samples(lambda done: 5000 if done == 1 else 1000), 0.1)
    assert found.share == 0 and found.is_flat


@pytest.mark.parametrize("after, is_flat", [(1019, True), (1020, False)])
def test_memory_may_grow_by_less_than_two_hundredths(after, is_flat):
    found = growth(samples(lambda d: 1000 if d < 0.6 else after), 0.1)
    assert found.is_flat == is_flat
    found = growth(samples(lambda d: after if d < 0.6 else 1000), 0.1)
    assert found.is_flat


@pytest.mark.parametrize("name", ["files", "threads"])
def test_files_and_threads_may_not_grow(name):
    same = samples(lambda _: 1000)
    more = [
        s._replace(**{name: getattr(s, name) + (s.done > 0.8)}) for s in same
    ]
    assert not growth(more, 0.1).is_flat
    assert growth(same, 0.1).is_flat
    fewer = [
        s._replace(**{name: getattr(s, name) - (s.done > 0.8)}) for s in same
    ]
    assert growth(fewer, 0.1).is_flat


def test_too_few_samples_are_refused():
    with pytest.raises(ValueError, match="3 samples are too few"):
        growth(samples(lambda _: 1, count=3), 0.2)


def test_a_sample_is_of_the_process(tmp_path):
    before = sample(os.getpid(), 0.5)
    with open(tmp_path / "file", "w"):
        after = sample(os.getpid(), 0.5)
    assert after.files == before.files + 1
    assert after.peak >= before.memory > 1e6
    assert before.done == 0.5 and before.threads >= 1
    with pytest.raises(OSError):
        sample(2**22 + 1, 0.5)


def test_portions_are_all_rows_in_equal_distances():
    for rows in (1, 7, 200, 1000):
        portions = list(long.portions(rows))
        assert sum(count for _, count in portions) == rows
        assert len(portions) == min(rows, long.SAMPLES)
        assert portions[-1][0] == 1
        counts = {count for _, count in portions}
        assert max(counts) - min(counts) <= 1


def test_texts_have_many_lengths():
    chance = random.Random(1)
    lengths = {len(long.make_text(chance).split()) for _ in range(200)}
    assert len(lengths) > 20


def test_the_table_and_its_place():
    found = {
        "a": {
            "amount": "5 rows",
            "seconds": 90,
            "growth": growth(samples(lambda _: 2_000_000), 0.1)._asdict(),
        }
    }
    header, row = long.rows_of(found)
    assert dict(zip(header, row)) == {
        "work": "a",
        "amount": "5 rows",
        "minutes": "1.5",
        "MB after warm-up": "2.0",
        "MB at the end": "2.0",
        "MB at most": "0.0",
        "growth": "0.00%",
        "open files": "4 to 4",
        "threads": "9 to 9",
    }
    page = (ROOT / "docs" / "reliability.md").read_text()
    for mark in report.marks("long"):
        assert page.count(mark) == 1


@pytest.mark.gate
@pytest.mark.newer_stack
@pytest.mark.parametrize(
    "name", [long.PREDICTOR, long.SERVER, "training, strategy"]
)
def test_little_work(name, tmp_path):
    done = run_process(
        "-m",
        "lab.trials.long",
        "--rows=300",
        "--steps=200",
        f"--only={name}",
        f"--output_dir={tmp_path}",
        program="-u",
        check=False,
    )
    # So little only warms up, and may grow.
    assert done.returncode == 0 or "these grow" in done.stderr, done.stderr
    assert done.stdout.splitlines()[1].startswith(name)
    assert (tmp_path / "long.json").exists()
