"""From a command line to the values of flags.

What `--help` prints: a program's own flags, by topic, on one page.
"""

import argparse
import functools
import os
import re
import sys
import unicodedata
from typing import Any, Dict, List, Optional, Sequence, Tuple

from absl import flags

from adapter_bert.errors import UserError

# Each topic's flags in the order in which they are shown.
TOPICS: Dict[str, Tuple[str, ...]] = {
    "What to do": (
        "do_train",
        "do_eval",
        "do_predict",
        "describe",
        "output_dir",
        "seed",
    ),
    "Task and data": (
        "task_name",
        "data_dir",
        "task_sampling",
        "train_file",
        "eval_file",
        "predict_file",
        "eval_split",
        "input",
        "output",
        "columns",
        "max_train_examples",
        "max_eval_examples",
        "max_seq_length",
        "doc_stride",
        "max_query_length",
        "version_2_with_negative",
        "token_column",
        "tag_column",
        "map_tags",
        "mlm_probability",
        "whole_word_masking",
        "verbose_logging",
    ),
    "Your own tables, with --task_name=custom": (
        "text_a_column",
        "text_b_column",
        "label_column",
        "id_column",
        "header",
        "dev_share",
        "split_seed",
        "regression",
        "multi_label",
        "label_separator",
        "label_threshold",
        "label_columns",
        "choice_columns",
    ),
    "Pretrained model": (
        "init_checkpoint",
        "bert_config_file",
        "vocab_file",
        "do_lower_case",
    ),
    "Tuning method and trained adapters": (
        "tuning_method",
        "adapter_size",
        "adapter_init_scale",
        "adapter",
        "library",
        "task",
        "exchange_part",
        "carry_parts",
    ),
    "Training": (
        "train_batch_size",
        "learning_rate",
        "num_train_epochs",
        "epochs",
        "count_steps_in",
        "warmup_proportion",
        "adam_bias_correction",
        "class_weights",
        "gradient_accumulation_steps",
        "length_pool_batches",
        "save_checkpoints_steps",
        "eval_steps",
        "keep_best",
        "early_stopping",
        "cache_frozen_layers",
        "frozen_layers_dir",
        "frozen_layers_gb",
    ),
    "Evaluation and prediction": (
        "eval_batch_size",
        "predict_batch_size",
        "predict_batch_tokens",
        "n_best_size",
        "max_answer_length",
        "null_score_diff_threshold",
    ),
    "Served model": ("model", "name", "host", "port"),
    "Limits of the server": (
        "max_body_mb",
        "max_held_mb",
        "max_rows",
        "max_text_kb",
        "max_waiting_rows",
        "max_batch_rows",
        "max_batch_kb",
        "timeout_s",
    ),
    "Hardware": (
        "engine",
        "compute_dtype",
        "adapter_dtype",
        "num_devices",
        "cpu_lanes",
        "use_xla",
        "use_tpu",
        "tpu_name",
        "num_tpu_cores",
        "iterations_per_loop",
        "tpu_zone",
        "gcp_project",
        "master",
    ),
}
# What stands for the value of each type of flag.
VALUES = {"int": "N", "float": "X", "comma separated list of strings": "A,B"}
END = """\
--helpfull also shows the flags of absl, as --flagfile=FILE, a file with one
flag per line."""


def page(program: str, doc: str, shown: Sequence[flags.Flag]) -> str:
    """The page: what the program does, then its flags.

    Args:
        program: its name, as run_classifier.py.
        doc: its docstring.
        shown: its own flags; those that are in no topic are left out.
    """
    parser = argparse.ArgumentParser(
        prog=program,
        usage="%(prog)s [flags]",
        description=doc.strip(),
        epilog=END,
        formatter_class=functools.partial(
            argparse.RawDescriptionHelpFormatter, width=80, max_help_position=30
        ),
        add_help=False,
    )
    by_name = {flag.name: flag for flag in shown}
    for topic, names in TOPICS.items():
        group = parser.add_argument_group(topic)
        for name in names:
            if name in by_name:
                _add(group, by_name[name])
    return parser.format_help()


def _add(group: argparse._ArgumentGroup, flag: flags.Flag) -> None:
    """Adds a flag's line."""
    meaning = flag.help
    is_told = "default:" in meaning.lower()
    # An empty default, as a list's, would say nothing.
    if flag.default not in (None, "", []) and not is_told:
        shown = flag.default_as_str.strip("'")
        meaning = f"{meaning.rstrip('.')}; default: {shown}."
    meaning = meaning.replace("%", "%%")
    if flag.boolean:
        name = f"--[no]{flag.name}"
        group.add_argument(name, action="store_true", help=meaning)
    else:
        value = VALUES.get(flag.flag_type(), "TEXT")
        group.add_argument(f"--{flag.name}", metavar=value, help=meaning)


class HelpFlag(flags.BooleanFlag):
    """Prints the program's own flags and ends it, as soon as it is read.

    It takes the place of absl's flag of the same name.
    """

    def __init__(
        self,
        known: flags.FlagValues,
        module: str,
        name: str,
        short: Optional[str],
    ):
        """Takes all flags, the program's module, and this flag's names."""
        super().__init__(name, False, "", short_name=short, allow_override=True)
        self._known = known
        self._module = module

    def parse(self, argument: Any) -> None:
        """Reads its value."""
        super().parse(argument)
        if self.value:
            shown = self._known.get_key_flags_for_module(self._module)
            doc = sys.modules[self._module].__doc__
            print(page(os.path.basename(sys.argv[0]), doc, shown), end="")
            sys.exit(0)


# By a flag's type, which values there are.
EXPECTED = {
    "bool": "true or false",
    "int": "a whole number",
    "float": "a number",
}
# More than any flag's name has, in characters.
LONGEST_NAME = 40
# Categories of characters: bytes that are no text, and what would break a line
# of the log.
BROKEN = {"Cc", "Cs", "Zl", "Zp"}


def define_help(known: flags.FlagValues, module: str) -> None:
    """Defines the flags that show what flags a program's module has."""
    for name, short in (("help", "?"), ("helpshort", None)):
        flags.DEFINE_flag(HelpFlag(known, module, name, short))


def parse(known: flags.FlagValues, arguments: List[str]) -> List[str]:
    """Gives flags the values that a command line says.

    Args:
        known: the flags.
        arguments: the program's name and what is said to it.

    Returns:
        The program's name.

    Raises:
        UserError: there is no such flag, or no such value of it, or a word is
            no flag.
    """
    for argument in arguments:
        if BROKEN & set(map(unicodedata.category, argument)):
            raise UserError(f"unreadable argument {argument[:200]!a}")
    try:
        arguments = known.read_flags_from_files(arguments, force_gnu=False)
        for argument in arguments[1:]:
            if argument == "--":
                break
            # Else absl looks for long which names are like it.
            name = argument.partition("=")[0]
            if name.startswith("-") and len(name) > LONGEST_NAME:
                raise UserError(
                    f"no flag has so long a name as {name[:LONGEST_NAME]}..."
                )
        left = known(arguments)
    except UnicodeError as error:
        raise UserError(f"the --flagfile is not UTF-8 text: {error}") from error
    except flags.IllegalFlagValueError as error:
        named = re.match(r"flag --(\w+)=", str(error))
        expected = EXPECTED.get(named and known[named[1]].flag_type())
        if expected is None:
            raise UserError(str(error)) from error
        given = str(error).removesuffix(str(error.__context__))
        raise UserError(f"{given}expected {expected}") from error
    # A flag with "no" before its name that has a value, too.
    except (flags.Error, ValueError, OSError) as error:
        raise UserError(str(error)) from error
    if left[1:]:
        for flag, word in zip(arguments, arguments[1:]):
            for name in (flag.lstrip("-"), flag.lstrip("-").removeprefix("no")):
                if word == left[1] and name in known and known[name].boolean:
                    raise UserError(
                        f"unexpected: {word} after {flag}; write --{name}=true "
                        f"or --{name}=false"
                    )
        raise UserError(
            f"unexpected: {left[1]}; expected --name=value, with commas "
            "between several values"
        )
    return left
