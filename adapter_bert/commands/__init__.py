"""Command `adapter-bert`: one file for each subcommand."""

import difflib
import importlib
import os
import sys
from typing import Any

import adapter_bert
from adapter_bert import command_line
from adapter_bert.errors import UserError

# Subcommands in the order of --help.
PROGRAMS: dict[str, str] = {
    "run_classifier": "Train and evaluate classification, regression, choices.",
    "run_squad": "Train and evaluate question answering.",
    "run_tagger": "Train and evaluate tagging.",
    "run_mlm": "Train and evaluate masked language modelling.",
    "run_vectors": "Train and evaluate vectors of texts.",
    "create_pretraining_data": "Write rows for pretraining, from raw text.",
    "run_pretraining": "Pretrain BERT or an adapter on such rows.",
    "extract_features": "Write BERT's hidden states of texts.",
    "predict": "Answer texts with one or many adapters.",
    "library": "Manage a folder of adapters; import and export them.",
    "export": "Write a SavedModel that takes text; TensorFlow Lite; ONNX.",
    "serve": "Serve a library or an exported model over HTTP.",
    "beam": "Predict files of rows with Apache Beam.",
    "merge": "Merge an adapter into a plain BERT, or several into one.",
    "convert": "Write a BERT in another format.",
    "compile": "Compile a run's step for a TPU or GPU, without one.",
    "summarize": "Print tables of the scores of runs.",
    "plot": "Draw figures of the scores of runs.",
    "plot_fusion": "Draw the attention weights of AdapterFusion runs.",
    "report": "Write a page of HTML about a run or a sweep.",
    "audit": "Find rows whose labels are probably wrong.",
    "mine": "Find texts that are like a match and are none.",
    "select": "Choose the rows of a pool to label next.",
    "baseline": "Score a task without BERT.",
    "minilm": "Fetch the small pretrained BERT; print its folder.",
    "mpnet": "Fetch the pretrained MPNet; print its folder.",
    "sample": "Write small data sets: tickets.csv, new.csv, data/.",
    "env": "Print versions and the machine, for a report about a fault.",
}
# Steps of scripts/.
STEPS: dict[str, str] = {
    "ablate": "Write an adapter without the layers of each span.",
    "glue_submission": "Write the file that GLUE's leaderboard takes.",
    "grid_status": "Print the state of a sweep's runs.",
    "make_mrpc": "Write GLUE's MRPC from the published corpus.",
    "paper": "Divide rows, collect runs, show tables and figures of the paper.",
    "show": "Print answers and scores for people.",
    "unpack_bert": "Unpack an archive of one of Google's BERTs.",
}


def page() -> str:
    """Returns the text of `adapter-bert --help`."""
    lines = ["usage: adapter-bert PROGRAM [arguments]"]
    width = max(map(len, (*PROGRAMS, *STEPS)))
    for title, programs in ("Programs", PROGRAMS), ("Steps of scripts/", STEPS):
        lines += ["", f"{title}:"]
        lines += [f"  {name:{width}} {what}" for name, what in programs.items()]
    lines += ["", "adapter-bert PROGRAM --help shows a program's arguments."]
    return "\n".join(lines) + "\n"


def main() -> None:
    """Runs the subcommand that the command line names.

    Raises:
        SystemExit: the subcommand is missing, unknown, or fails.
    """
    words = sys.argv[1:]
    if not words or words[0] in ("-h", "--help", "help"):
        print(page(), end="")
        raise SystemExit(0 if words else 1)
    if words[0] == "--version":
        print(adapter_bert.__version__)
        return
    name = words[0]
    programs = {**PROGRAMS, **STEPS}
    if name not in programs:
        near = difflib.get_close_matches(name, programs, 1)
        raise SystemExit(
            f"error: unknown program {name!a}; "
            + (f"did you mean {near[0]}? " if near else "")
            + "`adapter-bert --help` lists the programs"
        )
    sys.argv = [f"adapter-bert {name}", *words[1:]]
    run(name)


def run(name: str, **options: Any) -> None:
    """Runs a subcommand, whose arguments are in `sys.argv`.

    A subcommand is a module's `main`, which takes `options`. If the module has
    `SETTINGS`, dataclasses that declare flags, the flags are parsed first.

    Raises:
        SystemExit: as from `command_line.run`.
    """
    try:
        module = importlib.import_module(f"{__name__}.{name}")
    except ModuleNotFoundError as error:
        raise SystemExit(
            f"error: this Python lacks {error.name}; docs/install.md tells "
            "what to install, of beam docs/predict.md"
        ) from error
    with command_line.run():
        if not hasattr(module, "SETTINGS"):
            is_page = sys.argv[1:] in (["-h"], ["--help"])
            if is_page and name in {*STEPS, "env"}:
                print(module.__doc__.strip())
            else:
                module.main(**options)
            return
        from absl import app

        from adapter_bert import flags

        flags.define(module.SETTINGS)
        app.define_help_flags()
        if any(map(flags.HELP.fullmatch, sys.argv[1:])):
            from adapter_bert.flag_page import page_of

            print(page_of(module, os.path.basename(sys.argv[0])), end="")
            return
        _parse(sys.argv)

        def begin(_: list[str]) -> None:
            # absl would take what `main` returns for an exit code.
            module.main(**options)

        app.run(begin, argv=sys.argv[:1])


def _parse(arguments: list[str]) -> None:
    import absl.flags

    from adapter_bert import flags

    values = absl.flags.FLAGS
    try:
        flags.parse(values, arguments)
        return
    except UserError as error:
        if not isinstance(error.__cause__, absl.flags.UnrecognizedFlagError):
            raise
    # It may be one of those that TensorFlow defines.
    import adapter_bert.start_tensorflow  # noqa: F401

    values.unparse_flags()
    flags.parse(values, arguments)
