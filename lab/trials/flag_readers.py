"""What users say on command lines and in files of flags: each program."""

import contextlib
import io
import pathlib
from types import ModuleType
from typing import Callable, Collection, Dict, List

from absl import flags
from absl.testing import flagsaver

from adapter_bert.commands import library as library_command
from adapter_bert.commands import (
    predict,
    run_classifier,
    run_mlm,
    run_squad,
    run_tagger,
    serve,
)
from adapter_bert.errors import UserError
from adapter_bert.serving import flags as adapter_flags
from adapter_bert.tasks.text_classification import weigh_classes
from adapter_bert.training import flags as run_flags
from adapter_bert.training import help_page
from lab.trials.readers import Reader

SHARED = (
    "--do_train=true --do_eval=true --init_checkpoint=bert --output_dir=out "
    "--learning_rate=3e-4 --num_train_epochs=3 --warmup_proportion=0.1 "
    "--train_batch_size=32 --max_seq_length=128 --seed=7 --eval_steps=epoch "
    "--tuning_method=houlsby(size=8) --exchange_part=a=b,c=d --num_devices=1 "
    "--compute_dtype=float32 --engine=strategy --keep_best=loss"
).split()

# The program whose flags are defined, and their names.
_DEFINED: Dict[str, Collection[str]] = {}


def _classifier() -> None:
    task = run_classifier.task_from_flags(run_flags.adapter_description())
    weights = flags.FLAGS["class_weights"].value
    if weights is not None:
        task = weigh_classes(task, weights)
    run_flags.experiment_from_flags(
        task, "", flags.FLAGS["eval_batch_size"].value
    )


def _squad() -> None:
    run_flags.experiment_from_flags(run_squad.task_from_flags(), "", 8)


def forget() -> None:
    """Removes the flags that a reader has defined."""
    flags.FLAGS.remove_flag_values(_DEFINED.pop("names", ()))
    flags.FLAGS.unparse_flags()
    _DEFINED.clear()


def _define(module: ModuleType) -> None:
    """Defines a program's flags, which takes a while, where they are not."""
    if module.__name__ in _DEFINED:
        return
    forget()
    before = set(flags.FLAGS)
    module.define_flags()  # type: ignore
    help_page.define_help(flags.FLAGS)
    _DEFINED.update({module.__name__: (), "names": set(flags.FLAGS) - before})


def _program(
    module: ModuleType, given: List[str], use: Callable[[], None]
) -> Dict[str, Reader]:
    """A program's command line, an argument on each line, and as a file."""

    def parse(given: List[str]) -> None:
        _define(module)
        with flagsaver.flagsaver():
            # Whoever asks for help gets a page.
            with contextlib.redirect_stdout(io.StringIO()):
                help_page.parse(flags.FLAGS, [module.__name__, *given])
            use()

    def read(folder: pathlib.Path) -> None:
        text = (folder / "given").read_bytes().decode("utf-8", "replace")
        parse(text.split("\n"))

    def read_file(folder: pathlib.Path) -> None:
        parse([f"--flagfile={folder / 'given'}"])

    content = "\n".join(given).encode()
    return {
        f"command line of {module.__name__}": _reader(content, read),
        f"flagfile of {module.__name__}": _reader(content, read_file),
    }


def _reader(content: bytes, read: Callable[[pathlib.Path], None]) -> Reader:
    """Of arguments, which are few: absl takes their number's square."""
    raises = (UserError, SystemExit)
    return Reader({"given": content}, "given", read, raises, grows=False)


def _library(folder: pathlib.Path) -> None:
    text = (folder / "given").read_bytes().decode("utf-8", "replace")
    page = io.StringIO()
    with contextlib.redirect_stdout(page), contextlib.redirect_stderr(page):
        library_command.parse(text.split("\n"))


def flag_readers() -> Dict[str, Reader]:
    """Readers of command lines, by name."""
    custom = [
        "--task_name=custom",
        "--label_column=label",
        "--dev_share=0.1",
        '--class_weights={"spam": 2.5}',
    ]
    squad = ["--n_best_size=20", "--doc_stride=64", "--max_query_length=64"]
    asked = "--library=shelf --task=a,b --init_checkpoint=bert".split()
    limits = ["--model=exported", "--port=8501", "--max_rows=10"]
    library = "import\nshelf\nfolder\n--name=a\n--init_checkpoint=b\n--label=c"
    return {
        **_program(run_classifier, [*SHARED, *custom], _classifier),
        **_program(run_squad, [*SHARED[:-1], *squad], _squad),
        **_program(run_tagger, SHARED, run_flags.tuning_method),
        **_program(run_mlm, SHARED, run_flags.tuning_method),
        **_program(predict, asked, adapter_flags.check_adapter_flags),
        **_program(serve, limits, serve.limits_from_flags),
        "command line of adapter_library": _reader(library.encode(), _library),
    }
