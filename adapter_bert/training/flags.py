"""The flags that the entry points share, and their way to plain dataclasses.

Names and defaults are google-research/bert's where it has the flag. FLAGS is
read here and in the entry points, nowhere else.
"""

import re
from typing import Any, Callable, Dict, List, Optional

from absl import app, flags

from adapter_bert import command_line, files
from adapter_bert.checkpoints import adapter_artifact
from adapter_bert.data.input_pipeline import POOL_BATCHES
from adapter_bert.errors import UserError
from adapter_bert.methods import registry
from adapter_bert.tasks.task import Task
from adapter_bert.training import experiment, help_page, parts
from adapter_bert.training.compute_dtype import DTYPES
from adapter_bert.training.data_flags import FILE_FLAGS
from adapter_bert.training.engines import ENGINES, Hardware
from adapter_bert.training.evaluation import EPOCH
from adapter_bert.training.settings import Experiment, Training
from adapter_bert.training.setup import describe_parameters

FLAGS = flags.FLAGS

# Flags of a method's arguments: flag -> name of the argument.
METHOD_FLAGS = {"adapter_size": "size", "adapter_init_scale": "init_scale"}
POSITIVE = (
    "save_checkpoints_steps",
    "iterations_per_loop",
    "length_pool_batches",
    "num_tpu_cores",
    "gradient_accumulation_steps",
)


def define_flags() -> None:
    """Defines the flags of every entry point."""
    string, integer = flags.DEFINE_string, flags.DEFINE_integer
    boolean, floating = flags.DEFINE_bool, flags.DEFINE_float

    string("bert_config_file", None, "BERT's sizes; default: beside the model.")
    string("vocab_file", None, "The vocabulary; default: beside the model.")
    string("output_dir", None, "Folder for checkpoints and results.")
    string(
        "init_checkpoint",
        None,
        "The pretrained BERT: a TensorFlow checkpoint of Google's BERT or of "
        "adapter-bert, a Hugging Face folder or .safetensors file of a BERT, a "
        "RoBERTa or an XLM-R, a module of TF-Hub or Kaggle, or a training "
        "checkpoint of this program.",
    )
    boolean(
        "do_lower_case",
        True,
        "Lower-case the text, as uncased models need. Default: what the model "
        "or its vocabulary says.",
    )
    boolean("do_train", False, "Train.")
    boolean("do_eval", False, "Score the model on labelled data.")
    boolean("do_predict", False, "Predict, and write the predictions.")
    integer("train_batch_size", 32, "Examples of a training step.")
    integer("predict_batch_size", 8, "Examples predicted at once.")
    integer(
        "predict_batch_tokens",
        4096,
        "Short examples share larger batches of evaluation and prediction, up "
        "to this many tokens; 0 keeps the batch sizes as they are.",
    )
    floating(
        "learning_rate", None, "Peak learning rate; default: the method's own."
    )
    boolean(
        "adam_bias_correction",
        False,
        "Correct Adam's averages in the first steps. Most programs do, BERT's "
        "does not.",
    )
    floating("num_train_epochs", 3.0, "Passes over the training set.")
    flags.DEFINE_alias("epochs", "num_train_epochs")
    floating("warmup_proportion", 0.1, "Share of the steps that warm up (0-1).")
    integer("save_checkpoints_steps", 1000, "Steps between two checkpoints.")
    string(
        "eval_steps",
        "",
        "Steps between two scorings of the dev set in training, or epoch. "
        "Default: epoch with --keep_best or --early_stopping, else no scoring.",
    )
    string(
        "keep_best",
        "",
        "Score that chooses the step to keep, as f1 or loss. Default: the "
        "task's main score with --early_stopping, else the last step is kept.",
    )
    integer(
        "early_stopping",
        0,
        "Scored steps in a row without a new best that end training; 0: never.",
    )
    integer(
        "max_train_examples",
        None,
        "Train on the first N examples only; default: all.",
    )
    integer(
        "max_eval_examples",
        None,
        "Score the first N examples only; default: all.",
    )
    integer("iterations_per_loop", 1000, "Steps of one call to the TPU.")
    boolean("use_tpu", False, "Run on a TPU instead of a GPU or the CPU.")
    string(
        "tpu_name",
        None,
        "The TPU: local on a TPU VM, or the name of that VM's own TPU. The "
        "error for any other TPU tells its state.",
    )
    string("tpu_zone", None, "Google Cloud zone of that other TPU.")
    string("gcp_project", None, "Google Cloud project of that other TPU.")
    string("master", None, "Another --tpu_name, for published commands.")
    integer(
        "num_tpu_cores",
        8,
        "TPU cores (8 on a v2-8 or v3-8). The error for a wrong number states "
        "the right one.",
    )

    string(
        "tuning_method",
        "houlsby",
        "Method that decides what is added and trained, with its arguments "
        f"as in houlsby(size=64); one of {', '.join(registry.METHODS)}.",
    )
    integer(
        "adapter_size",
        None,
        "Bottleneck size; default: the method's, 64 for houlsby.",
    )
    floating(
        "adapter_init_scale",
        None,
        "Standard deviation of fresh adapter weights; default: the method's, "
        "0.01 for houlsby.",
    )
    string(
        "adapter",
        None,
        "Folder of a trained adapter to evaluate, predict with or train on.",
    )
    string(
        "library",
        None,
        "Folder of the trained adapters that a composition names, as in "
        "--tuning_method='fusion(mrpc, rte)'.",
    )
    flags.DEFINE_list(
        "exchange_part",
        [],
        "Trained adapters that take the places of others in a composition: "
        "english=german puts german in the place of english.",
    )
    boolean(
        "carry_parts",
        True,
        "Store a composition's trained adapters within the new adapter, which "
        "needs --library otherwise.",
    )
    integer(
        "length_pool_batches",
        POOL_BATCHES,
        "Training batches within which rows of similar length are grouped. 1 "
        "groups none: more padding, more shuffling.",
    )
    integer("seed", 1, "Seed of all random choices.")
    boolean(
        "cache_frozen_layers",
        False,
        "Compute the layers below everything trained once per row, without "
        "dropout, and keep their outputs in a file.",
    )
    string(
        "frozen_layers_dir",
        None,
        "Folder of the files of --cache_frozen_layers; default: frozen_layers "
        "beside the training file.",
    )
    floating(
        "frozen_layers_gb",
        20.0,
        "Most that this folder may hold, in 10^9 bytes.",
    )
    string(
        "engine",
        "auto",
        f"Engine that trains and predicts: auto or {', '.join(ENGINES)}.",
    )
    integer(
        "num_devices",
        0,
        "GPUs to train on, 0 for all; logical CPU devices without a GPU.",
    )
    integer(
        "cpu_lanes",
        0,
        "Groups of a batch's rows that CPU cores compute at the same time; 0: "
        "one group per core, at most 8.",
    )
    integer(
        "gradient_accumulation_steps",
        1,
        "Parts of a training batch that are computed one after the other, for "
        "the same update in less memory.",
    )
    boolean(
        "use_xla",
        False,
        "Compile the model with XLA; pads every batch to --max_seq_length.",
    )
    flags.DEFINE_enum(
        "compute_dtype",
        "float32",
        DTYPES,
        "Type of products and activations; trained weights stay float32. auto "
        "measures which type is faster when a run begins.",
    )
    boolean(
        "describe",
        False,
        "Print what would be added, trained and frozen, then stop.",
    )


def tuning_method() -> Dict[str, Any]:
    """The method that the flags name.

    Returns:
        `method`; `named_method` and `named_arguments`, what of it the user
        named.

    Raises:
        UserError: no such method, or two flags contradict each other.
    """
    named = {
        argument: FLAGS[flag].value
        for flag, argument in METHOD_FLAGS.items()
        if FLAGS[flag].present
    }
    method = registry.parse(FLAGS.tuning_method, named)
    for flag, argument in METHOD_FLAGS.items():
        value = getattr(method, argument, None)
        if FLAGS[flag].present and value != FLAGS[flag].value:
            raise UserError(
                f"--{flag}={FLAGS[flag].value} does not fit "
                f"--tuning_method={FLAGS.tuning_method}: "
                + (
                    f"{argument} is {value} there"
                    if hasattr(method, argument)
                    else f"the method has no {argument}"
                )
            )
    return {
        "method": method,
        "named_method": FLAGS.tuning_method
        if FLAGS["tuning_method"].present
        else None,
        "named_arguments": named,
    }


def evaluation_from_flags(task: Task) -> Dict[str, Any]:
    """When dev sets are scored while training, and what follows from it.

    Returns:
        Fields of `Training`.

    Raises:
        UserError: a flag is out of range, or needs another.
    """
    every, keep_best = FLAGS.eval_steps, FLAGS.keep_best
    if every not in ("", EPOCH) and not re.fullmatch("[1-9][0-9]{0,8}", every):
        raise UserError(
            f"--eval_steps is {every!r}, expected a number of steps or {EPOCH}"
        )
    if FLAGS.early_stopping < 0:
        raise UserError(
            f"--early_stopping is {FLAGS.early_stopping}, expected >= 0"
        )
    if FLAGS.early_stopping and not keep_best:
        keep_best = task.score_names[0]
    if keep_best and keep_best not in task.dev_score_names:
        raise UserError(
            f"--keep_best is {keep_best!r}, expected a score of the task "
            f"{task.name}: {', '.join(task.dev_score_names)}"
        )
    every = every or (EPOCH if keep_best else "")
    if every and FLAGS.do_train and not FLAGS.do_eval:
        raise UserError(
            "--eval_steps, --keep_best and --early_stopping need the dev set: "
            "pass --do_eval=true"
        )
    return {
        "eval_steps": every,
        "keep_best": keep_best,
        "early_stopping": FLAGS.early_stopping,
    }


def experiment_from_flags(
    task: Task, data_dir: str, eval_batch_size: int
) -> Experiment:
    """The experiment that the flags describe.

    Args:
        task: what to learn.
        data_dir: folder of its data.
        eval_batch_size: examples evaluated at once.

    Raises:
        UserError: a flag is missing or out of range.
    """
    for name in (*POSITIVE, "max_train_examples", "max_eval_examples"):
        value = FLAGS[name].value
        if value is not None and value < 1:
            raise UserError(f"--{name} is {value}, expected >= 1")
    for name in ("learning_rate", "num_train_epochs", "frozen_layers_gb"):
        value = FLAGS[name].value
        if value is not None and not 0 < value < float("inf"):
            raise UserError(f"--{name} is {value}, expected a positive number")
    if not 0 <= FLAGS.warmup_proportion <= 1:
        raise UserError(
            f"--warmup_proportion is {FLAGS.warmup_proportion}, expected a "
            "number from 0 to 1"
        )
    for name in ("num_devices", "cpu_lanes", "predict_batch_tokens"):
        if FLAGS[name].value < 0:
            raise UserError(f"--{name} is {FLAGS[name].value}, expected >= 0")
    if not 0 <= FLAGS.seed < 2**31:
        raise UserError(f"--seed is {FLAGS.seed}, expected 0 to 2147483647")
    sizes = {
        "train_batch_size": FLAGS.train_batch_size,
        "eval_batch_size": eval_batch_size,
        "predict_batch_size": FLAGS.predict_batch_size,
    }
    for name, size in sizes.items():
        if size < 1:
            raise UserError(f"--{name} is {size}, expected >= 1")
        if FLAGS.use_tpu and size % FLAGS.num_tpu_cores:
            raise UserError(
                f"--{name} {size} is not a multiple of --num_tpu_cores "
                f"{FLAGS.num_tpu_cores}"
            )
    if not FLAGS.describe and not FLAGS.output_dir:
        raise UserError("--output_dir is missing: the folder for the results")
    return Experiment(
        task=task,
        **tuning_method(),
        training=Training(
            batch_size=FLAGS.train_batch_size,
            learning_rate=FLAGS.learning_rate,
            adam_bias_correction=FLAGS.adam_bias_correction,
            epochs=FLAGS.num_train_epochs,
            warmup_proportion=FLAGS.warmup_proportion,
            save_checkpoints_steps=FLAGS.save_checkpoints_steps,
            length_pool_batches=FLAGS.length_pool_batches,
            gradient_accumulation_steps=FLAGS.gradient_accumulation_steps,
            seed=FLAGS.seed,
            **evaluation_from_flags(task),
        ),
        hardware=Hardware(
            use_tpu=FLAGS.use_tpu,
            tpu_name=FLAGS.tpu_name or "",
            tpu_zone=FLAGS.tpu_zone or "",
            gcp_project=FLAGS.gcp_project or "",
            master=FLAGS.master or "",
            num_tpu_cores=FLAGS.num_tpu_cores,
            iterations_per_loop=FLAGS.iterations_per_loop,
            num_devices=FLAGS.num_devices,
            cpu_lanes=FLAGS.cpu_lanes,
        ),
        engine=FLAGS.engine,
        use_xla=FLAGS.use_xla,
        compute_dtype=FLAGS.compute_dtype,
        data_dir=data_dir,
        output_dir=FLAGS.output_dir or "",
        init_checkpoint=FLAGS.init_checkpoint or "",
        adapter=FLAGS.adapter or "",
        bert_config_file=FLAGS.bert_config_file or "",
        vocab_file=FLAGS.vocab_file or "",
        do_lower_case=(
            None
            if FLAGS["do_lower_case"].using_default_value
            else FLAGS.do_lower_case
        ),
        max_seq_length=max_seq_length(),
        do_train=FLAGS.do_train,
        do_eval=FLAGS.do_eval,
        do_predict=FLAGS.do_predict,
        eval_batch_size=eval_batch_size,
        predict_batch_size=FLAGS.predict_batch_size,
        max_train_examples=FLAGS.max_train_examples,
        max_eval_examples=FLAGS.max_eval_examples,
        library=_library(),
        exchange_part=parts.exchanged(FLAGS.exchange_part),
        carry_parts=FLAGS.carry_parts,
        predict_batch_tokens=FLAGS.predict_batch_tokens,
        cache_frozen_layers=FLAGS.cache_frozen_layers,
        frozen_layers_dir=FLAGS.frozen_layers_dir or "",
        frozen_layers_gb=FLAGS.frozen_layers_gb,
    )


def _library() -> str:
    """The folder of adapters, or "".

    Raises:
        UserError: it is no folder.
    """
    library = FLAGS.library or ""
    if library and not files.is_folder(library):
        raise UserError(
            f"--library is {library}, where there is no folder of adapters"
        )
    return library


def run_or_describe(task: Task, eval_batch_size: int) -> None:
    """Runs what the flags say of a task, or with `--describe` describes it.

    Args:
        task: what to learn; its data are in `--data_dir`, if there is such a
            flag, or in the files that it names.
        eval_batch_size: examples evaluated at once.

    Raises:
        UserError: anything that the user can mend.
    """
    has_folder = "data_dir" in FLAGS
    data_dir = (has_folder and FLAGS.data_dir) or ""
    settings = experiment_from_flags(task, data_dir, eval_batch_size)
    if FLAGS.describe:
        print(describe_parameters(settings))
        return
    named = any(name in FLAGS and FLAGS[name].value for name in FILE_FLAGS)
    if has_folder and not data_dir and not named:
        raise UserError(
            "--data_dir is missing: the folder of the task's files; your own "
            "files can be named too, as --train_file"
        )
    experiment.run(settings)


def adapter_description() -> Optional[Dict[str, Any]]:
    """What `--adapter` says of its training, or None without one.

    Raises:
        UserError: it is missing or damaged.
    """
    return (
        adapter_artifact.read_config(FLAGS.adapter) if FLAGS.adapter else None
    )


def max_seq_length() -> int:
    """Longest input in tokens: the user's, else the adapter's, else a default.

    Raises:
        UserError: it is too small, or the adapter is missing or damaged.
    """
    length, source = FLAGS.max_seq_length, "--max_seq_length"
    description = adapter_description() or {}
    known = description.get("training", {}).get("max_seq_length")
    # Adapters of other programs do not say.
    if known is not None and not FLAGS["max_seq_length"].present:
        length = known
        source = f"--adapter={FLAGS.adapter}: training.max_seq_length"
    if length < 3:
        raise UserError(f"{source} is {length}, expected at least 3")
    return length


def run_app(main: Callable[[], None]) -> None:
    """Parses the flags and runs `main`.

    It ends as `command_line.run` says.
    """
    app.define_help_flags()
    help_page.define_help(FLAGS, main.__module__)

    def parse(given: List[str]) -> List[str]:
        return help_page.parse(FLAGS, given)

    command_line.run(lambda: app.run(lambda _: main(), flags_parser=parse))
