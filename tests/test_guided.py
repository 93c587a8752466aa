"""What looks for inputs that lead to new code, and the inputs it has kept."""

import json
import os
import sys
import textwrap

import pytest
from conftest import own_lines, run_process
from task_files import refusal

from lab.trials import flag_readers, fuzz, guided

READERS = fuzz.readers()
needs_atheris = pytest.mark.skipif(
    not os.path.isdir(guided.PACKAGES), reason="`make fuzz` installs Atheris"
)


@pytest.fixture(autouse=True)
def no_flags_are_left():
    """Other tests define theirs."""
    yield
    flag_readers.forget()


@pytest.mark.parametrize("name", READERS)
def test_what_was_kept_is_taken_or_refused(name, tmp_path):
    reader = READERS[name]
    kept = guided.read_kept(guided.KEPT, name)
    assert kept
    for file, content in reader.files.items():
        (tmp_path / file).write_bytes(content)
    for content in kept:
        found = fuzz.try_input(reader, tmp_path, content)
        assert found in ("taken", "refused"), content


def test_there_are_kept_inputs_of_readers_only():
    names = {f"{guided.file_name(name)}.json" for name in READERS}
    assert {path.name for path in guided.KEPT.iterdir()} == names
    assert len(names) == len(READERS)


def test_inputs_are_read_as_they_were_kept(tmp_path):
    contents = [b"", bytes(range(256)), 'a "line"\n\u20ac'.encode()]
    guided.write_kept(tmp_path, "a reader's", contents)
    assert guided.read_kept(tmp_path, "a reader's") == contents
    assert len((tmp_path / "a_reader_s.json").read_text().splitlines()) == 5
    assert guided.read_kept(tmp_path, "another") == []


def test_only_what_reaches_new_lines_is_kept(tmp_path):
    """What was kept before comes first, then the shortest."""
    session = guided.Session(fuzz, tmp_path / "all", tmp_path / "kept")
    name, reader = "map of tags", READERS["map of tags"]
    old = b"person PER"
    guided.write_kept(session.kept, name, [old])
    session.begin(name, reader)
    for number, content in enumerate(
        [b"person", b"a", b"a\tb\na\tc\n", b"a\tb\nb\tc\n"]
    ):
        (session.folder(name) / str(number)).write_bytes(content)
    session.keep(name, reader)
    # That a tag is said twice has a line of its own.
    assert guided.read_kept(session.kept, name) == [old, b"a\tb\na\tc\n"]


def test_atheris_must_be_installed(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "atheris", None)
    assert "`make fuzz` installs Atheris" in refusal(
        lambda: guided.load(str(tmp_path))
    )


def defects_of(tmp_path, read, right, inputs, main="guided"):
    """What a program finds of a reader: what it is, and the input if it lies.

    Args:
        tmp_path: an empty folder.
        read: source of the reader's function.
        right: what the reader takes.
        inputs: how many it is given.
        main: the program's module.
    """
    program = "\n".join(
        [
            "import atheris, os, signal",
            "from lab.trials.readers import Reader",
            textwrap.dedent(read),
            f"reader = Reader({{'a': {right!r}}}, 'a', read)",
            "fuzz.readers = lambda: {'odd': reader}",
            f"{main}.main()",
        ]
    )
    program = f"from lab.trials import guided\nfuzz = guided.load()\n{program}"
    path = tmp_path / "found.json"
    words = [f"--inputs={inputs}", f"--output={path}"]
    if main == "guided":
        words += [f"--output_dir={tmp_path}", f"--kept={tmp_path / 'kept'}"]
    done = run_process("-c", program, *words, program="-Wignore", check=False)
    found = json.loads(path.read_text())["readers"]["odd"]
    assert found["inputs"] == inputs
    assert bool(done.returncode) == bool(found["defects"])
    if found["defects"]:
        assert "1 kinds of defects" in own_lines(done.stderr)[-1]
    return [
        (defect["found"], [f.read_bytes() for f in tmp_path.glob(name)])
        for defect in found["defects"]
        for name in [f"odd-{defect['number']}-*"]
    ]


@needs_atheris
@pytest.mark.gate
@pytest.mark.newer_stack
def test_inputs_are_led_to_a_defect_that_chance_does_not_find(tmp_path):
    """Eight letters in a row must be right; each has an `if` of its own."""
    read = """
        lines = ["def check(content):", " if len(content) < 16: return"]
        for n in range(1, 9):
            lines.append(" " * n + f"if 127 < content[{n}] < 144:")
        lines.append(" " * 9 + "raise KeyError('found')")
        exec("\\n".join(lines))
        check = atheris.instrument_func(check)

        def read(folder):
            check((folder / "a").read_bytes())
        """
    right = b"a" * 16
    [(found, [content])] = defects_of(tmp_path, read, right, 10_000)
    assert found == "KeyError: 'found'"
    assert all(127 < byte < 144 for byte in content[1:9])
    assert not defects_of(tmp_path, read, right, 10_000, "fuzz")


@needs_atheris
@pytest.mark.gate
@pytest.mark.newer_stack
def test_an_input_that_ends_the_process_is_there(tmp_path):
    """The others are tried all the same."""
    read = """
        def read(folder):
            if len((folder / "a").read_bytes()) == 3:
                os.kill(os.getpid(), signal.SIGSEGV)
        """
    [(found, [content])] = defects_of(tmp_path, read, b"abcd", 200)
    assert found == "the process died of SIGSEGV"
    assert len(content) == 3


@needs_atheris
@pytest.mark.gate
@pytest.mark.newer_stack
def test_without_an_end_it_does_not_begin():
    done = run_process(
        "-m", "lab.trials.guided", program="-Wignore", check=False
    )
    assert "without --minutes or --inputs" in own_lines(done.stderr)[-1]
    done = run_process(
        "-c",
        "import lab.trials.guided, sys; print('storage' in sys.modules)",
        program="-Wignore",
    )
    # Else `load` could not have it looked at.
    assert done.stdout == "False\n"


@needs_atheris
@pytest.mark.gate
@pytest.mark.newer_stack
def test_the_program_keeps_inputs(tmp_path):
    done = run_process(
        "-m", "lab.trials.guided", "--reader=map of tags", "--inputs=3000",
        f"--output_dir={tmp_path / 'all'}", f"--kept={tmp_path / 'kept'}",
        program="-Wignore",
    )  # fmt: skip
    assert "| map of tags | 3,000 |" in done.stdout
    kept = guided.read_kept(tmp_path / "kept", "map of tags")
    assert kept and READERS["map of tags"].files["map.tsv"] not in kept
    assert (tmp_path / "all" / "map_of_tags").is_dir()
