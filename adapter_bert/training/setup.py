"""Opens what a run names, and checks that it all fits together."""

import dataclasses
import functools
from collections.abc import Mapping
from typing import Any, Optional

from absl import logging

from adapter_bert.bert import encoder, onednn
from adapter_bert.bert.architectures import FIRST_OF_HEAD
from adapter_bert.bert.encoder import BertConfig
from adapter_bert.checkpoints import (
    adapter_artifact,
    run_record,
    sources,
    training_state,
    weights,
)
from adapter_bert.checkpoints.adapter_artifact import Artifact
from adapter_bert.checkpoints.weights import (
    OUTPUTS,
    Base,
    Pretrained,
    Weights,
)
from adapter_bert.data.tokenization import TextTokenizer
from adapter_bert.errors import UserError
from adapter_bert.flags import recorded
from adapter_bert.methods.base import TuningMethod
from adapter_bert.tasks import task_model
from adapter_bert.tasks.kinds import ANSWERLESS
from adapter_bert.tasks.task import Task
from adapter_bert.training import devices
from adapter_bert.training.engines import Engine
from adapter_bert.training.settings import FLOAT32, INT8, LAYERS, Experiment
from adapter_bert.training.training_step import Job


@dataclasses.dataclass(frozen=True)
class Model:
    """Holds the opened BERT, the tuning method, and the task.

    Attributes:
        opened: what `--init_checkpoint` names.
        trained: adapter or training checkpoint whose values it has, or None.
        task: may lack its labels.
        part_hashes: SHA-256 of each trained adapter that the method is made
            of, by name.
        part_folders: those that lie in folders of their own.
        part_weights: values of these, or None.
    """

    experiment: Experiment
    opened: Pretrained
    trained: Optional[Artifact]
    config: BertConfig
    tokenizer: TextTokenizer
    base: Base
    task: Task
    method: TuningMethod
    part_hashes: Mapping[str, str]
    part_folders: Mapping[str, str]
    part_weights: Optional[Weights]

    @property
    def learning_rate(self) -> float:
        rate = self.experiment.training.learning_rate
        return rate or self.method.learning_rate

    @property
    def new_head(self) -> bool:
        """Tells whether another task begins with `trained`, but its head."""
        return bool(self.trained and self.experiment.init_adapter)

    @property
    def step(self) -> int:
        """Gives the step of the training that `trained` comes from."""
        if self.trained is None:
            return 0
        path = self.opened.path
        if self.experiment.adapter or self.experiment.init_adapter:
            path = str(self.trained.config.get("checkpoint"))
        return training_state.step_of(path)


# The opened BERT, trained values, and the folder's `run.json`, or None.
_Start = tuple[
    Optional[Pretrained], Optional[Artifact], Optional[dict[str, Any]]
]


def _open(experiment: Experiment) -> _Start:
    path = experiment.init_checkpoint
    begun = run_record.read_run(experiment.output_dir)
    if begun and path:
        path = run_record.as_recorded(path, begun["base"].get("hub"))
    elif begun:
        path = run_record.place_of_base(experiment.output_dir)
    opened = sources.open_init_checkpoint(path) if path else None
    trained = None
    folder = experiment.adapter or experiment.init_adapter
    if folder:
        trained = adapter_artifact.read(
            folder, opened.weights if opened else None
        )
    elif opened is not None and opened.trained is not None:
        trained = Artifact(opened.run, opened.trained)
    return opened, trained, begun


def _new_tokens(experiment: Experiment, trained: Optional[Artifact]) -> list:
    """Gives the `NewToken`s of `--new_tokens`, or of trained values."""
    listed, before = [], None
    if experiment.new_tokens:
        from adapter_bert.data.added_tokens import read_new_tokens

        listed = read_new_tokens(experiment.new_tokens)
        if experiment.task.name in ANSWERLESS:
            raise UserError(
                "--new_tokens is for tasks that answer texts, and a masked-LM "
                "head guesses BERT's own tokens alone; leave it out"
            )
    if trained is not None:
        source = trained.weights.source
        before = run_record.new_tokens(trained.config, source)
        if listed not in ([], before):
            raise UserError(
                f"{source} was trained with {len(before)} new tokens, and "
                f"{experiment.new_tokens} has others; leave out --new_tokens"
            )
    return listed or before or []


def _task_of(experiment: Experiment, start: _Start) -> Task:
    task, folder = experiment.task, experiment.output_dir
    opened, trained, begun = start
    if trained is None or experiment.init_adapter:
        if opened is not None:
            task = task.fit_base(opened)
        if begun:
            task = task.go_on(begun["task"], folder)
            training = begun.get("training") or {}
            # The training file may have no row of an old label.
            is_other = {"extend_labels", "few_shot"} & training.keys()
            if is_other and not experiment.do_train:
                task = task.restore(begun["task"], folder)
    if trained is None:
        if opened is not None and not (begun or experiment.do_train):
            from adapter_bert.training import pretrained_head

            task = pretrained_head.label(opened, task, experiment.data_dir)
        return task
    source, description = trained.weights.source, trained.config["task"]
    if "tasks" in description and "" in task.members:
        flag = "--init_adapter" if experiment.init_adapter else "--adapter"
        raise UserError(
            f"{source} is of several tasks, {description['name']}; pass the "
            f"folder tasks/<name>/adapter of their run as {flag}, for one of "
            "them"
        )
    if experiment.init_adapter:
        held_out = task.held_out and dataclasses.asdict(task.held_out)
        if held_out and held_out != description.get("held_out"):
            logging.warning(
                "%s held out other rows, or none; if its training file was "
                "this one, it has learned rows that are held out now",
                source,
            )
        return task
    if description["name"] in ANSWERLESS and task.name not in ANSWERLESS:
        raise UserError(
            f"{source} has learned {description['name']} alone; pass its BERT "
            "as --init_checkpoint and its folder adapter as --init_adapter, or "
            "a BERT that adapter-bert merge makes of both"
        )
    return task.restore(description, source)


def _method_of(
    experiment: Experiment, trained: Optional[Artifact], task: Task
) -> tuple[TuningMethod, Any, list[str]]:
    """Gives the method, and of a composition what `find_parts` gives."""
    parts, around = None, []
    method, new = experiment.method, len(_new_tokens(experiment, trained))
    if trained is not None:
        from adapter_bert.training import from_trained

        method = from_trained.method_of(experiment, trained)
    elif new:
        from adapter_bert.methods import new_words

        method = new_words.with_new_words(method, new)
    if method.new_words != new:
        raise UserError(
            f"{method} has {method.new_words} new words, but there "
            f"are {new} new tokens; --new_tokens adds the words to the method"
        )
    if task.trained_together:
        method = method.for_tasks(task.trained_together)
    if method.parts or experiment.exchange_part:
        from adapter_bert.training import from_trained

        parts, around = from_trained.find_parts(experiment, trained, method)
        method = parts.method
    return method, parts, around


def describe_parameters(experiment: Experiment) -> str:
    """Gives the table of parameters; needs no checkpoint, no rows."""
    start = _open(experiment)
    opened, trained, _ = start
    config = sources.read_config(opened, experiment.bert_config_file)
    task = _task_of(experiment, start)
    method, _, _ = _method_of(experiment, trained, task)
    task, _ = task.read(experiment.data_dir, ())
    table = task_model.list_parameters(config, method, task.build_head)
    return table.to_text()


def open_model(experiment: Experiment) -> Model:
    """Opens model, vocabulary and adapter, and checks that they fit."""
    start = _open(experiment)
    opened, trained, _ = start
    if opened is None:
        raise UserError(
            "--init_checkpoint is missing: the pretrained BERT to start from"
        )
    config = sources.read_config(opened, experiment.bert_config_file)
    tokenizer = sources.read_tokenizer(
        opened,
        config,
        experiment.vocab_file,
        experiment.do_lower_case,
        _new_tokens(experiment, trained),
    )
    task = _task_of(experiment, start)
    method, parts, around = _method_of(experiment, trained, task)
    part_weights = None
    sources.check_length(
        experiment.max_seq_length, task.least_length, config, tokenizer
    )
    task = task.fit_tokenizer(tokenizer, experiment.max_seq_length)
    base = weights.identify(opened.weights, encoder.list_variables(config))
    if trained is not None:
        source = trained.weights.source
        from adapter_bert.checkpoints import same_model
        from adapter_bert.training import from_trained

        same_model.check(trained.config, source, base, config, tokenizer)
        supplied = from_trained.supplied(
            trained.config,
            experiment.max_seq_length,
            is_adapter=bool(experiment.adapter),
        )
        if experiment.init_adapter:
            supplied = f"method {method}, and first values but the head's"
        logging.info("%s supplies without flags: %s", source, supplied)
    if parts:
        from adapter_bert.training import composition_parts

        part_weights, values = composition_parts.open_weights(
            parts,
            trained,
            around,
            base,
            opened.weights,
            config,
            tokenizer,
        )
        trained = trained and dataclasses.replace(trained, weights=values)
    return Model(
        experiment,
        opened,
        trained,
        config,
        tokenizer,
        base,
        task,
        method,
        parts.hashes if parts else {},
        parts.folders if parts else {},
        part_weights,
    )


def make_job(engine: Engine, model: Model) -> Job:
    """Makes the job of a model: its variables and their first values."""
    experiment, config, method = model.experiment, model.config, model.method
    task, base, trained = model.task, model.opened.weights, None
    has_outputs = any(name in base.shapes for name in OUTPUTS)
    if has_outputs or model.opened.head or model.opened.labels:
        from adapter_bert.training import pretrained_head

        base = pretrained_head.fit(model.opened, task)
    base = task.begin_head(base)
    if model.trained is not None:
        trained = task.begin_from(model.trained.weights)
    if model.tokenizer.new_tokens:
        from adapter_bert.training import from_trained

        base = from_trained.begin_words(model, base)
    table = task_model.list_parameters(config, method, task.build_head)
    if experiment.do_train and not table.trained:
        raise UserError(
            f"{method} trains the task's head alone, and the task "
            f"{task.name} has none; pass another --tuning_method"
        )
    if model.new_head and {p.group for p in table.trained} == {"head"}:
        raise UserError(
            f"{trained.source} holds nothing but a head of its own task "
            f"({method}); leave out --init_adapter"
        )
    quantized: frozenset[str] = frozenset()
    if experiment.base_dtype == INT8:
        quantized = task_model.int8_variables(table)
        from adapter_bert.checkpoints import changed_weights

        base = changed_weights.rounded_to_int8(base, quantized)
    layer = FIRST_OF_HEAD.format(end="weights")
    is_new = experiment.do_train and trained is None
    has_layer = any(name.endswith(layer) for name in table.saved)
    if not config.pooler and is_new and has_layer:
        logging.warning(
            "%s was saved without BERT's pooler; the head gets a new one, "
            "which is trained with it and kept in the adapter",
            model.opened.path,
        )
    initial_values = weights.choose_initial_values(
        table.parameters,
        base,
        trained,
        experiment.training.seed,
        fresh_head=experiment.do_train,
        parts=model.part_weights,
        new_head=model.new_head,
    )
    has_steps = training_state.latest_step(experiment.output_dir)[1]
    if not (experiment.do_train or has_steps):
        if trained is None:
            from adapter_bert.training import pretrained_head

            pretrained_head.check(model.opened, base, table, task)
        values = trained or base
        task_model.check_is_trained(table, values.shapes, values.source)
    is_compiled = experiment.hardware.use_tpu or experiment.use_xla
    parts = experiment.training.gradient_accumulation_steps
    if not is_compiled:
        rows = experiment.training.batch_size // engine.shards // parts
        parts *= devices.divide(rows, engine.lanes)
    return Job(
        build_model=functools.partial(
            task_model.TaskModel, config, method, task.build_head
        ),
        about=repr((task.describe_named(), task.training_settings)),
        table=table,
        initial_values=initial_values,
        start=weights.start_fingerprint(
            table.parameters, base, trained, model.new_head
        ),
        output_dir=experiment.output_dir,
        seed=experiment.training.seed,
        # Compilers need one shape.
        length=experiment.max_seq_length if is_compiled else None,
        parts=parts,
        lanes=engine.lanes,
        share_layers=not experiment.hardware.use_tpu,
        # A TPU's graph is compiled as it is.
        use_xla=experiment.use_xla and not experiment.hardware.use_tpu,
        for_accelerator=is_compiled and engine.has_accelerators,
        use_onednn=not is_compiled
        and onednn.is_available(experiment.compute_dtype),
        recompute_layers=experiment.recompute == LAYERS,
        compute_dtype=experiment.compute_dtype,
        adam_bias_correction=experiment.training.adam_bias_correction,
        observes=bool(method.observes),
        # Workers send one another first values, which they cannot in bfloat16.
        narrow=frozenset()
        if engine.workers > 1
        else task_model.narrow_variables(table),
        quantized=quantized,
        predict_tokens=experiment.predict_batch_tokens,
    )


def describe_settings(
    model: Model, job: Optional[Job] = None
) -> dict[str, Any]:
    """Describes for `run.json` what is known before the data, and `job`."""
    experiment = model.experiment
    training = recorded(experiment.training)
    # What does not decide the result may change while the run goes on.
    if not experiment.training.keep_best:
        del training["eval_steps"]
    training.update(model.task.training_settings)
    training["learning_rate"] = model.learning_rate
    if job:
        training["start"] = job.start
    if model.new_head:
        training["new_head"] = True
    training.update(recorded(experiment))
    # Runs before there was a choice say nothing.
    if experiment.base_dtype == FLOAT32:
        del training["base_dtype"]
    if experiment.do_train:
        training["max_seq_length"] = experiment.max_seq_length
    return {
        "base": model.base.describe(),
        "tokenizer": model.tokenizer.describe(),
        "method": str(model.method),
        "parts": dict(model.part_hashes),
        "task": model.task.describe_named(),
        "bert_config": dataclasses.asdict(model.config),
        "training": training,
    }
