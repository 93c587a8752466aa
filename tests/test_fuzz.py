"""Readers get odd inputs: what finds defects, a few inputs each, kept ones."""

import os
import random
import textwrap

import pytest
from conftest import read_lines, run_process

from lab.trials import fuzz, fuzz_inputs, fuzz_targets
from lab.trials.fuzz_inputs import REFUSED, TAKEN, Reader

pytestmark = pytest.mark.newer_stack

READERS = fuzz_targets.readers()
needs_atheris = pytest.mark.skipif(
    not os.path.isdir(fuzz.PACKAGES), reason="`make fuzz` installs Atheris"
)


@pytest.fixture(autouse=True)
def no_flags_are_left():
    """Other tests define theirs."""
    yield
    fuzz_targets.forget()


def try_one(tmp_path, read, content=b"a", **more):
    (tmp_path / "a").write_bytes(b"")
    reader = Reader({"a": b""}, "a", read, **more)
    return fuzz_inputs.try_input(reader, tmp_path, content)


@pytest.mark.parametrize("name", READERS)
def test_no_input_of_a_reader_is_a_defect(name, tmp_path):
    """Its own is taken, kept and changed ones are taken or refused."""
    reader, kept = READERS[name], fuzz.read_kept(fuzz.KEPT, name)
    assert kept
    reader.write(tmp_path)
    drawn = [fuzz_inputs.input_of(1, name, reader, n) for n in range(60)]
    for content in (*drawn, *kept):
        outcome = fuzz_inputs.try_input(reader, tmp_path, content)
        is_own = content is drawn[0]
        assert outcome in ((TAKEN,) if is_own else (TAKEN, REFUSED)), content


def test_there_are_kept_inputs_of_readers_only():
    names = {f"{fuzz.file_name(name)}.json" for name in READERS}
    assert {path.name for path in fuzz.KEPT.iterdir()} == names
    assert len(names) == len(READERS)


def test_inputs_are_the_same_each_time_and_differ():
    reader = READERS["squad"]
    inputs, again = (
        [fuzz_inputs.input_of(3, "squad", reader, n) for n in range(50)]
        for _ in range(2)
    )
    assert inputs == again and len(set(inputs)) > 40
    assert inputs[0] == reader.files["a.json"]
    assert inputs[1] != fuzz_inputs.input_of(4, "squad", reader, 1)


def test_what_a_reader_may_not_do_is_a_defect(tmp_path, monkeypatch):
    def fail(folder):
        raise KeyError("b")

    def leave(folder):
        (folder / "left").mkdir()
        raise ValueError("refused")

    def say_much(folder):
        raise ValueError("one\ntwo")

    assert try_one(tmp_path, lambda folder: None) == "taken"
    assert try_one(tmp_path, fail) == "KeyError: 'b'"
    refusing = {"raises": (ValueError,)}
    assert try_one(tmp_path, leave, **refusing) == "left is left behind"
    assert not (tmp_path / "left").exists()
    assert "several lines" in try_one(tmp_path, say_much, **refusing)

    class Panic(BaseException):
        """As of a library in another language."""

    def panic(folder):
        raise Panic("no")

    assert try_one(tmp_path, panic) == "Panic: no"
    monkeypatch.setattr(fuzz_inputs, "LONGEST", -1.0)
    assert "s for: taken" in try_one(tmp_path, lambda folder: None)


def test_memory_is_bounded_by_the_size_of_the_input(tmp_path):
    """Whatever is given back at once is counted too."""

    def take(megabytes):
        return try_one(
            tmp_path,
            lambda folder: bytearray(megabytes << 20).count(1),
            b"a" * 2**20,
        )

    assert fuzz_inputs.most_memory(2**20) == 228 * 2**20
    assert take(200) == "taken"
    assert take(300).endswith("MB for 1048576 bytes: taken")
    assert take(200) == "taken"


def test_inputs_are_read_as_they_were_kept(tmp_path):
    contents = [b"", bytes(range(256)), 'a "line"\n\u20ac'.encode()]
    fuzz.write_kept(tmp_path, "a reader's", contents)
    assert fuzz.read_kept(tmp_path, "a reader's") == contents
    assert len(read_lines(tmp_path / "a_reader_s.json")) == 5
    assert fuzz.read_kept(tmp_path, "another") == []


def test_only_what_reaches_new_lines_is_kept(tmp_path):
    """What was kept before comes first, then the shortest."""
    name, reader = "map of tags", READERS["map of tags"]
    old, kept = b"person PER", tmp_path / "kept"
    fuzz.write_kept(kept, name, [old])
    folder = tmp_path / fuzz.file_name(name)
    folder.mkdir()
    for number, content in enumerate(
        [b"person", b"a", b"a\tb\na\tc\n", b"a\tb\nb\tc\n"]
    ):
        (folder / str(number)).write_bytes(content)
    fuzz.keep(name, reader, tmp_path, kept)
    # That a tag is said twice has a line of its own.
    assert fuzz.read_kept(kept, name) == [old, b"a\tb\na\tc\n"]


@pytest.fixture
def lead(tmp_path):
    """Leads inputs of a reader whose function is given as source.

    It gives each defect that was found, and its input.
    """

    def lead(read, right, inputs):
        head = "import os, signal\nfrom lab.trials.fuzz_inputs import Reader\n"
        last = f"reader = Reader({{'a': {right!r}}}, 'a', read)\n"
        last += "readers = lambda: {'odd': reader}\n"
        path = tmp_path / "odd_readers.py"
        path.write_text(head + textwrap.dedent(read) + last)
        done = run_process(
            "-m", "lab.trials.fuzz", f"--inputs={inputs}",
            "--readers=odd_readers", f"--packages={fuzz.PACKAGES}",
            f"--output_dir={tmp_path / 'all'}", f"--kept={tmp_path / 'kept'}",
            program="-Wignore", check=False,
            env={**os.environ, "PYTHONPATH": str(tmp_path)},
        )  # fmt: skip
        defects = fuzz.defects_of(tmp_path / "all", "odd")
        assert bool(done.returncode) == bool(defects), done.stderr
        return [(text, open(path, "rb").read()) for text, path in defects]

    return lead


@needs_atheris
@pytest.mark.gate
def test_inputs_are_led_to_a_defect_that_chance_does_not_find(lead):
    """Eight letters in a row must be right; each has an `if` of its own."""
    read = """
        lines = ["def check(content):", " if len(content) < 16: return"]
        for n in range(1, 9):
            lines.append(" " * n + f"if 127 < content[{n}] < 144:")
        lines.append(" " * 9 + "raise KeyError('found')")
        exec("\\n".join(lines))
        checks = []

        def read(folder):
            if not checks:
                import atheris
                checks.append(atheris.instrument_func(check))
            checks[0]((folder / "a").read_bytes())
        """
    [(defect, content)] = lead(read, b"a" * 16, 10_000)
    assert defect == "KeyError: 'found'"
    assert all(127 < byte < 144 for byte in content[1:9])
    drawn = (
        fuzz_inputs.change(b"a" * 16, random.Random(n)) for n in range(10_000)
    )
    assert not any(
        len(c) >= 16 and all(127 < byte < 144 for byte in c[1:9]) for c in drawn
    )


@needs_atheris
@pytest.mark.gate
def test_an_input_that_ends_the_process_is_there(lead):
    """The others are tried all the same."""
    read = """
        def read(folder):
            if len((folder / "a").read_bytes()) == 3:
                os.kill(os.getpid(), signal.SIGSEGV)
        """
    [(defect, content)] = lead(read, b"abcd", 200)
    assert defect == "the process ended: crash"
    assert len(content) == 3
