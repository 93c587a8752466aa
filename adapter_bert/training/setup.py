"""Opens what a run names, and checks that it all fits together.

`Model` holds the opened BERT and the method, `Setup` also what a task's labels
decide.
"""

import dataclasses
import os
from collections.abc import Mapping
from typing import Any, Optional

import numpy as np
from absl import logging

from adapter_bert import files
from adapter_bert.bert import encoder
from adapter_bert.bert.architectures import FIRST_OF_HEAD
from adapter_bert.bert.encoder import BertConfig
from adapter_bert.bert.hooks import layer_of
from adapter_bert.checkpoints import (
    adapter_artifact,
    run_record,
    training_state,
)
from adapter_bert.checkpoints import sources as sources_module
from adapter_bert.checkpoints.adapter_artifact import Artifact
from adapter_bert.checkpoints.sources import open_init_checkpoint
from adapter_bert.checkpoints.weights import (
    POOLER,
    Base,
    InitialValues,
    Pretrained,
    Weights,
    choose_initial_values,
    identify,
    rounded_to_int8,
    start_fingerprint,
)
from adapter_bert.data.added_tokens import (
    NewToken,
    content_of,
    read_new_tokens,
)
from adapter_bert.data.input_pipeline import Features
from adapter_bert.data.memory_rows import MemoryRows
from adapter_bert.data.tokenization import TextTokenizer
from adapter_bert.errors import UserError
from adapter_bert.flags import recorded
from adapter_bert.methods import registry
from adapter_bert.methods.base import TuningMethod
from adapter_bert.optimization import Schedule
from adapter_bert.tasks import task_model
from adapter_bert.tasks.kinds import ANSWERLESS
from adapter_bert.tasks.task import Task
from adapter_bert.training import (
    composition_parts,
    multi_worker,
    pretrained_head,
)
from adapter_bert.training.composition_parts import PartFolders
from adapter_bert.training.compute_dtype import FLOAT32, INT8
from adapter_bert.training.engines import Engine
from adapter_bert.training.settings import Experiment


@dataclasses.dataclass(frozen=True)
class Sources:
    """Holds the sources of a run's values.

    Attributes:
        opened: what `--init_checkpoint` names, or None if nothing does.
        trained: values of an adapter or a training checkpoint, or None.
        new_head: whether another task begins with those, with its own head.
    """

    opened: Optional[Pretrained]
    trained: Optional[Weights]
    description: Optional[dict[str, Any]]
    step: int
    new_head: bool = False


@dataclasses.dataclass(frozen=True)
class Model:
    """Holds the opened BERT and the tuning method.

    Attributes:
        task: may lack its labels.
        learning_rate: peak of the schedule.
        parts: the trained adapters that the method is made of.
        part_weights: of those with a folder of their own, or None.
    """

    config: BertConfig
    tokenizer: TextTokenizer
    base: Base
    sources: Sources
    task: Task
    method: TuningMethod
    learning_rate: float
    parts: PartFolders
    part_weights: Optional[Weights]


@dataclasses.dataclass(frozen=True)
class Setup:
    """Holds a model for a task with its labels, found to fit together.

    Attributes:
        table: every variable.
        start: fingerprint of the trained values that training starts from, or
            None.
        quantized: names of the variables that are kept in int8.
    """

    experiment: Experiment
    model: Model
    task: Task
    table: task_model.ParameterTable
    start: Optional[str]
    initial_values: InitialValues
    quantized: frozenset[str]


def lowest_layer(table: task_model.ParameterTable, layers: int) -> int:
    """Finds the lowest of L layers that differs from BERT's own, or may change.

    It is 0 also if anything acts on embeddings or on all layers, L if only the
    head, or BERT's pooler, is trained.
    """
    lowest = layers if table.hooks.by_values else 0
    for p in table.parameters:
        is_above = p.group == "head" or p.name.startswith(POOLER)
        if (p.trained or p.is_added) and not is_above:
            lowest = min(lowest, layer_of(p.name) or 0)
    return lowest


def _open_sources(experiment: Experiment) -> Sources:
    path = experiment.init_checkpoint
    begun = run_record.read_run(experiment.output_dir)
    if begun and path:
        path = run_record.as_recorded(path, begun["base"].get("hub"))
    elif begun:
        path = run_record.place_of_base(experiment.output_dir)
    opened = open_init_checkpoint(path) if path else None
    if experiment.adapter_folder:
        artifact = adapter_artifact.read(
            experiment.adapter_folder, opened.weights if opened else None
        )
        step = training_state.step_of(str(artifact.config.get("checkpoint")))
        return Sources(
            opened,
            artifact.weights,
            artifact.config,
            step,
            new_head=bool(experiment.init_adapter),
        )
    if opened is None or opened.trained is None:
        return Sources(opened, None, None, 0)
    step = training_state.step_of(opened.path)
    return Sources(opened, opened.trained, opened.run, step)


def _new_tokens(experiment: Experiment, sources: Sources) -> list[NewToken]:
    listed, before = [], None
    if experiment.new_tokens:
        listed = read_new_tokens(experiment.new_tokens)
        if experiment.task.name in ANSWERLESS:
            raise UserError(
                "--new_tokens is for tasks that answer texts, and a masked-LM "
                "head guesses BERT's own tokens alone; leave it out"
            )
    if sources.description is not None:
        source = sources.trained.source
        before = run_record.new_tokens(sources.description, source)
        if listed not in ([], before):
            raise UserError(
                f"{source} was trained with {len(before)} new tokens, and "
                f"{experiment.new_tokens} has others; leave out --new_tokens"
            )
    return listed or before or []


def _task_and_method(
    experiment: Experiment, sources: Sources
) -> tuple[Task, PartFolders]:
    task = experiment.task
    new = len(_new_tokens(experiment, sources))
    method = experiment.method
    if new:
        from adapter_bert.methods import new_words

        method = new_words.with_new_words(method, new)
    begun = run_record.read_run(experiment.output_dir)
    is_new = sources.description is None or sources.new_head
    if is_new and sources.opened is not None:
        task = task.fit_base(sources.opened)
    if is_new and begun:
        task = task.go_on(begun["task"], experiment.output_dir)
        extended = (begun.get("training") or {}).get("extend_labels")
        if extended and not experiment.do_train:
            # The training file may have no row of an old label.
            task = task.restore(begun["task"], experiment.output_dir)
    if sources.description is not None:
        source = sources.trained.source
        if "tasks" in sources.description["task"] and "" in task.members:
            flag = "--init_adapter" if sources.new_head else "--adapter"
            raise UserError(
                f"{source} is of several tasks, "
                f"{sources.description['task']['name']}; pass the folder "
                f"tasks/<name>/adapter of their run as {flag}, for one of "
                "them"
            )
        if not is_new:
            task = task.restore(sources.description["task"], source)
        method = _trained_method(experiment, sources.description, source)
    elif sources.opened is not None and not (begun or experiment.do_train):
        task = pretrained_head.label(sources.opened, task, experiment.data_dir)
    if method.new_words != new:
        raise UserError(
            f"{method} has {method.new_words} new words, but there "
            f"are {new} new tokens; --new_tokens adds the words to the method"
        )
    if task.trained_together:
        method = method.for_tasks(task.trained_together)
    if not (method.parts or experiment.exchange_part):
        return task, PartFolders(method, {}, {}, experiment.library)
    return task, composition_parts.find(
        method,
        experiment.exchange_part,
        experiment.library,
        _places_of_parts(experiment, sources),
        sources.description,
    )


def _places_of_parts(
    experiment: Experiment, sources: Sources
) -> Mapping[str, str]:
    place = experiment.adapter_folder
    place = place and files.absolute(place)
    if not place and sources.trained is not None:
        place = sources.trained.source
    places: dict[str, str] = {}
    for folder in filter(None, (experiment.output_dir, os.path.dirname(place))):
        places.update(run_record.places_of_parts(folder))
    return places


def describe_parameters(experiment: Experiment) -> str:
    """Gives the table of parameters; needs no checkpoint, no rows."""
    sources = _open_sources(experiment)
    config = sources_module.read_config(
        sources.opened, experiment.bert_config_file
    )
    task, parts = _task_and_method(experiment, sources)
    task, _ = task.read(experiment.data_dir, ())
    return task_model.list_parameters(
        config, parts.method, task.build_head
    ).to_text()


def open_model(experiment: Experiment) -> Model:
    """Opens model, vocabulary and adapter, and checks that they fit."""
    sources = _open_sources(experiment)
    opened, trained = sources.opened, sources.trained
    if opened is None:
        raise UserError(
            "--init_checkpoint is missing: the pretrained BERT to start from"
        )
    config = sources_module.read_config(opened, experiment.bert_config_file)
    tokenizer = sources_module.read_tokenizer(
        opened,
        config,
        experiment.vocab_file,
        experiment.do_lower_case,
        _new_tokens(experiment, sources),
    )
    task, parts = _task_and_method(experiment, sources)
    sources_module.check_length(
        experiment.max_seq_length, task.least_length, config, tokenizer
    )
    task = task.fit_tokenizer(tokenizer, experiment.max_seq_length)
    method = parts.method
    if experiment.do_train and method.first_phase:
        _check_two_phases(method, trained)
    base = identify(opened.weights, encoder.list_variables(config))
    if sources.description is not None:
        sources_module.check_same_model(
            sources.description, trained.source, base, config, tokenizer
        )
        supplied = run_record.supplied(
            sources.description,
            experiment.max_seq_length,
            is_adapter=bool(experiment.adapter),
        )
        if sources.new_head:
            supplied = f"method {method}, and first values but the head's"
        logging.info("%s supplies without flags: %s", trained.source, supplied)
        if method.parts:
            sources = _with_parts(experiment, sources, parts, config)
    part_weights = None
    if method.parts:
        part_weights = composition_parts.open_weights(
            parts, base, opened.weights, config, tokenizer
        )
    return Model(
        config,
        tokenizer,
        base,
        sources,
        task,
        method,
        experiment.training.learning_rate or method.learning_rate,
        parts,
        part_weights,
    )


def _with_parts(
    experiment: Experiment,
    sources: Sources,
    parts: PartFolders,
    config: BertConfig,
) -> Sources:
    place = experiment.adapter_folder or sources.trained.source
    places = [*_places_of_parts(experiment, sources).values()]
    folders = {os.path.dirname(f) for f in (*places, files.absolute(place))}
    folders.add(experiment.library)
    trained = composition_parts.complete(
        Artifact(sources.description, sources.trained),
        parts,
        sorted(folders - {""}),
        sources.opened.weights,
        config,
    )
    return dataclasses.replace(sources, trained=trained)


def complete(experiment: Experiment, model: Model, task: Task) -> Setup:
    """Lists a model's variables for its task with labels, and their values."""
    opened, trained = model.sources.opened, model.sources.trained
    base = opened.weights
    if opened.head or opened.labels:
        base = pretrained_head.fit(opened, task)
    base = task.begin_head(base)
    if trained is not None:
        trained = task.begin_from(trained)
    if model.tokenizer.new_tokens:
        base = _begin_words(experiment, model, base)
    table = task_model.list_parameters(
        model.config, model.method, task.build_head
    )
    if experiment.do_train and not table.trained:
        raise UserError(
            f"{model.method} trains the task's head alone, and the task "
            f"{task.name} has none; pass another --tuning_method"
        )
    if model.sources.new_head and {p.group for p in table.trained} == {"head"}:
        raise UserError(
            f"{trained.source} holds nothing but a head of its own task "
            f"({model.method}); leave out --init_adapter"
        )
    quantized: frozenset[str] = frozenset()
    if experiment.base_dtype == INT8:
        quantized = task_model.int8_variables(table)
        base = rounded_to_int8(base, quantized)
    layer = FIRST_OF_HEAD.format(end="weights")
    is_new = experiment.do_train and trained is None
    has_layer = any(name.endswith(layer) for name in table.saved)
    if not model.config.pooler and is_new and has_layer:
        logging.warning(
            "%s was saved without BERT's pooler; the head gets a new one, "
            "which is trained with it and kept in the adapter",
            opened.path,
        )
    initial_values = choose_initial_values(
        table.parameters,
        base,
        trained,
        experiment.training.seed,
        fresh_head=experiment.do_train,
        parts=model.part_weights,
        new_head=model.sources.new_head,
    )
    if not experiment.do_train:
        weights = trained or base
        if not training_state.latest_step(experiment.output_dir)[1]:
            if trained is None:
                pretrained_head.check(opened, base, table, task)
            task_model.check_is_trained(table, weights.shapes, weights.source)
    return Setup(
        experiment,
        model,
        task,
        table,
        start_fingerprint(
            table.parameters, base, trained, model.sources.new_head
        ),
        initial_values,
        quantized,
    )


def _begin_words(
    experiment: Experiment, model: Model, base: Weights
) -> Weights:
    from adapter_bert.methods import new_words

    tokens = model.tokenizer.new_tokens
    plain = sources_module.read_tokenizer(
        model.sources.opened,
        model.config,
        experiment.vocab_file,
        experiment.do_lower_case,
    )
    pieces = plain.encode_words([*map(content_of, tokens)])
    shape = len(tokens), model.config.embedding_width

    def read(name: str) -> np.ndarray:
        if name != new_words.NEW_WORDS:
            return base.read(name)
        return new_words.first_rows(base.read(new_words.WORDS), pieces)

    shapes = {**base.shapes, new_words.NEW_WORDS: shape}
    return dataclasses.replace(base, shapes=shapes, read=read)


def _check_two_phases(method: TuningMethod, trained: Optional[Weights]) -> None:
    if trained is not None:
        raise UserError(
            f"{trained.source} cannot be trained further with {method.name}, "
            "which compares with the pretrained BERT; pass that as "
            "--init_checkpoint"
        )
    if multi_worker.is_cluster():
        raise UserError(
            f"{method.name} trains in two phases, in one process only, but "
            "TF_CONFIG names several"
        )


def _trained_method(
    experiment: Experiment, description: dict[str, Any], source: str
) -> TuningMethod:
    # A training's result may have the form of another method.
    kept = registry.parse(description["method"])
    text = description.get("trained_with") or description["method"]
    method = registry.parse(text)
    for argument in experiment.named_arguments:
        if not experiment.named_method and not hasattr(method, argument):
            raise UserError(
                f"{source} was trained with {method}, which has no {argument}; "
                "leave out its flag"
            )
    arguments = {
        f.name: getattr(method, f.name) for f in dataclasses.fields(method)
    }
    wanted = registry.parse(
        experiment.named_method or text.split("(")[0],
        {**arguments, **experiment.named_arguments},
    )
    if kept.new_words:
        from adapter_bert.methods import new_words

        wanted = new_words.with_new_words(wanted, kept.new_words)
    wanted = composition_parts.by_name(
        wanted, method, description.get("parts") or {}
    )
    if wanted == method:
        if experiment.do_train and kept != method:
            raise UserError(
                f"{source} holds what {method} came to, in the form of {kept}; "
                f"pass --tuning_method='{kept}' to train that further"
            )
        return kept
    if not wanted.fits(kept):
        raise UserError(
            f"{source} was trained with {method}, but --tuning_method and its "
            f"flags say {wanted}"
        )
    return wanted


def describe_task(task: Task) -> dict[str, Any]:
    """A task in descriptions: its name, and what its head needs."""
    return {"name": task.name, **task.describe()}


def describe_settings(
    experiment: Experiment, model: Model, setup: Optional[Setup] = None
) -> dict[str, Any]:
    """Describes for `run.json` what is known before the data, and `setup`."""
    task = setup.task if setup else model.task
    training = recorded(experiment.training)
    # What does not decide the result may change while the run goes on.
    if not experiment.training.keep_best:
        del training["eval_steps"]
    training.update(task.training_settings)
    training["learning_rate"] = model.learning_rate
    if setup:
        training["start"] = setup.start
    if model.sources.new_head:
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
        "parts": dict(model.parts.hashes),
        "task": describe_task(task),
        "bert_config": dataclasses.asdict(model.config),
        "training": training,
    }


def describe_run(
    setup: Setup,
    engine: Engine,
    train_features: Optional[Features],
    schedule: Optional[Schedule],
) -> dict[str, Any]:
    """`run.json` of this run; the last two arguments are of its training."""
    experiment = setup.experiment
    record = describe_settings(experiment, setup.model, setup)
    if train_features is not None:
        record["training"].update(
            steps=schedule.num_train_steps,
            examples=len(train_features),
            data=train_features.fingerprint(),
        )
    place = experiment.task.train_file or experiment.data_dir
    if isinstance(place, MemoryRows):
        place = "train.jsonl"
    return {
        **record,
        "data_name": place
        and os.path.basename(os.path.normpath(files.absolute(place))),
        "parameters": {
            "total": setup.table.total_count,
            "trained": setup.table.trained_count,
        },
        "versions": {
            **run_record.versions(),
            "engine": type(engine).__name__,
            "devices": engine.shards,
            "cpu_lanes": engine.lanes,
            "gradient_accumulation_steps": (
                experiment.training.gradient_accumulation_steps
            ),
            "use_xla": experiment.use_xla,
        },
    }
