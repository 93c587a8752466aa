"""What `--help` prints: a program's own flags, by topic, on one page."""

import argparse
import functools
import os
import sys
from typing import Any, Dict, Optional, Sequence, Tuple

from absl import flags

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
        self, known: flags.FlagValues, name: str, short: Optional[str]
    ):
        """Takes all flags, and this one's name and short name."""
        super().__init__(name, False, "", short_name=short, allow_override=True)
        self._known = known

    def parse(self, argument: Any) -> None:
        """Reads its value."""
        super().parse(argument)
        if self.value:
            program = sys.argv[0]
            shown = self._known.get_key_flags_for_module(program)
            doc = sys.modules["__main__"].__doc__
            print(page(os.path.basename(program), doc, shown), end="")
            sys.exit(0)
