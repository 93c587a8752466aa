"""Features of texts by frozen layers: means of a middle layer, for novelty."""

import dataclasses

from absl import logging

from adapter_bert.bert.encoder import BertConfig, CreateVariable
from adapter_bert.errors import UserError
from adapter_bert.methods.fine_tuning import HeadOnly
from adapter_bert.tasks import novelty
from adapter_bert.tasks.task import Task
from adapter_bert.tasks.task_model import TaskModel
from adapter_bert.tasks.vector_form import unit_mean
from adapter_bert.training import frozen_outputs
from adapter_bert.training.extras import Fitting
from adapter_bert.training.run import Answers, Run

# Name of the model's output.
FEATURES = "features"


class MeanHead(frozen_outputs.FrozenHead):
    """Mean over a text's tokens, of length 1; it has no variables."""

    def __call__(self, bert, sequence_output, context):
        """float32 [B, T, D] -> {"features": float32 [B, D]}."""
        return {FEATURES: unit_mean(sequence_output, context.input_mask)}


def build_head(config: BertConfig, create: CreateVariable) -> MeanHead:
    """Gives the head of `model`."""
    return MeanHead()


def lower_half(config: BertConfig) -> BertConfig:
    """Gives the BERT up to its middle layer."""
    layers = (config.num_hidden_layers + 1) // 2
    return dataclasses.replace(config, num_hidden_layers=layers)


def model(config: BertConfig, create: CreateVariable) -> TaskModel:
    """Makes a model of `FEATURES`, float32 [B, D], on a BERT's variables."""
    return TaskModel(lower_half(config), HeadOnly(), build_head, create)


class Novelty(Fitting):
    """Describes the training rows, so that answers have a novelty."""

    flag, setting = "score_novelty", "novelty"

    def check_rows(self, run: Run) -> None:
        count = len(run.rows["train"])
        if count < novelty.LEAST_ROWS:
            raise UserError(
                f"--score_novelty: found {count} training rows, expected at "
                f"least {novelty.LEAST_ROWS}"
            )
        if run.model.tokenizer.new_tokens:
            raise UserError(
                "--score_novelty reads texts as BERT without the adapter does, "
                "which has no new tokens; leave out --score_novelty or "
                "--new_tokens"
            )

    def restore(self, run, settings, folder):
        return novelty.with_novelty(run.task, settings, folder)

    def fit(self, run: Run, answers: Answers) -> Task:
        texts = run.features["train"].unlabelled()
        distinct = novelty.distinct(texts)
        some = texts.take(distinct[novelty.evenly_spaced(len(distinct))])
        layers = lower_half(run.model.config).num_hidden_layers
        # One model in memory at a time.
        answers.predictor.close()
        with frozen_outputs.predictor(
            run.engine, run.model, run.job, layers, build_head
        ) as predictor:
            size = run.experiment.predict_batch_size
            features = predictor.predict(some, size, "novelty")[FEATURES]
        logging.info("answers have a novelty, by %d training texts", len(some))
        return dataclasses.replace(run.task, novelty=novelty.fit(features))
