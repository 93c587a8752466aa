"""Benches of the soak, whose program is a stand-in."""

from lab.trials import trial
from lab.trials.runs import ProgramRun


def make_bench(folder, source, *words):
    """A stand-in of the program, and the reference of its run."""
    program = folder / "program.py"
    program.write_text(source)
    run = ProgramRun("stand-in", str(program), ("{place}/out", *words))
    (folder / "data").mkdir(exist_ok=True)
    trial.make_reference(folder, run)
    reference = trial.read_reference(folder, run)
    return trial.Bench(folder, reference, folder / "trial")
