"""A kind of tasks of a user's own: one file, and one line in a table.

Its tasks rank three texts by how well they go with another one.
"""

import dataclasses
import functools

import numpy as np
import pytest
import refusals
import tensorflow as tf
from conftest import (
    cells,
    load_predictor,
    open_bert,
    read_adapter,
    read_json,
    trained_task,
    write_json_lines,
)

import adapter_bert as ab
from adapter_bert.answering.answers import from_outputs, output_fields
from adapter_bert.answering.predictor import Predictor
from adapter_bert.commands import merge
from adapter_bert.data.input_pipeline import make_batch
from adapter_bert.data.tables import Layout
from adapter_bert.errors import UserError
from adapter_bert.exchange import foreign_base
from adapter_bert.graph.exported import Row
from adapter_bert.graph.ids_model import INPUTS, IdsModel
from adapter_bert.graph.text_model import TextModel
from adapter_bert.library.adapter_library import AdapterLibrary
from adapter_bert.server.live_library import LiveLibrary
from adapter_bert.tasks import kinds
from adapter_bert.tasks.multiple_choice import ChoiceHead, MultipleChoice

pytestmark = [pytest.mark.gate, pytest.mark.newer_stack]


class RankingHead(ChoiceHead):
    """A logit for each text, greater for texts that stand before others."""

    def loss(self, predictions, features):
        """Negative log likelihood of the order (Xia et al. 2008, ListMLE)."""
        orders = features["orders"]
        logits = tf.reshape(predictions["logits"], tf.shape(orders))
        ranked = tf.gather(logits, orders, batch_dims=1)
        after = tf.math.cumulative_logsumexp(ranked, axis=1, reverse=True)
        return tf.reduce_sum(after - ranked, axis=1)


def right_firsts(labels, predictions):
    """Share of rows whose first text is right."""
    return float(np.mean(labels[:, 0] == predictions[:, 0]))


@dataclasses.dataclass(frozen=True)
class Ranking(MultipleChoice):
    """Ranks texts; a label, as `201`, numbers them from first to last."""

    metrics: tuple[str, ...] = ("right_firsts",)

    kind = kinds.Kind(
        "ranking",
        {"order": kinds.TEXTS, "logits": kinds.NUMBERS},
        {"logits": ("rows", "choices")},
        has_choices=True,
    )
    metric_table = {"right_firsts": right_firsts}
    chooses_one = False

    def describe(self):
        return {"kind": self.kind.name, **super().describe()}

    def check_label(self, label, where):
        if sorted(label) != list(map(str, range(self.choice_count))):
            raise UserError(f"{where}: the order is {label[:80]!r}")
        return label

    def label_features(self, labels):
        orders = [list(map(int, label)) for label in labels]
        return {"orders": np.array(orders, np.int32)}

    def build_head(self, config, create):
        return RankingHead(config, create, self.head)

    def results(self, predictions):
        return predictions["logits"].astype(np.float64)

    def compare(self, labels, predictions):
        logits = self.results(predictions)
        ranked = np.take_along_axis(logits, labels["orders"], 1)
        after = np.logaddexp.accumulate(ranked[:, ::-1], 1)[:, ::-1]
        orders = np.argsort(-logits, axis=1, kind="stable")
        return labels["orders"], orders, (after - ranked).sum(axis=1)

    def answer(self, rows, predictions):
        names = np.array(self.result_columns)
        return [
            {"order": names[np.argsort(-row)].tolist(), "logits": row.tolist()}
            for row in self.results(predictions)
        ]

    def cells(self, answer):
        return {"order": " ".join(answer["order"])}

    def runtime_outputs(self, outputs, rows):
        shape = rows, self.choice_count
        return {"logits": tf.reshape(outputs["logits"], shape)}


TEXTS = ("one", "two", "three")
RANKING = Ranking(
    "ranking", labelled=Layout("text", label="order", choices=TEXTS)
)
# The best text is one of a cat.
WORDS = ["the cat sat", "a dog ran", "the mat"]
ROWS = [
    {"text": "cat", **dict(zip(TEXTS, map(WORDS.__getitem__, order)))}
    | {"order": "".join(str(order.index(place)) for place in range(3))}
    for order in ([0, 1, 2], [1, 0, 2], [2, 1, 0], [0, 2, 1], [1, 2, 0])
]


def test_it_is_trained_asked_served_and_exported(
    classify, tiny_flags, tiny_bert, tmp_path, monkeypatch
):
    monkeypatch.setitem(kinds.DECLARED, "ranking", f"{__name__}:RANKING")
    for split in ("train", "dev", "test"):
        rows = [dict(row) for row in ROWS * 4]
        for row in rows if split == "test" else ():
            del row["order"]
        write_json_lines(tmp_path / f"{split}.jsonl", rows)
    tiny_flags.update(
        task_name="ranking",
        data_dir=tmp_path,
        do_eval=True,
        do_predict=True,
        num_train_epochs=20,
        learning_rate=1e-2,
    )
    classify(**tiny_flags)
    trained = tiny_flags["output_dir"]
    scores = read_json(trained, "eval_results.json")
    assert scores["eval_right_firsts"] == 1 and scores["eval_loss"] < 0.5
    lines = cells(trained / "test_predictions.tsv")
    assert lines[:2] == [["index", "prediction"], ["0", "one two three"]]
    texts = ("cat", *(ROWS[1][name] for name in TEXTS))
    predictor = load_predictor(tiny_bert, {"r": trained / "adapter"})
    answer = predictor("r", texts)
    assert answer.order == ["two", "one", "three"] == lines[2][1].split()
    # Over HTTP.
    shelf = AdapterLibrary(str(tmp_path / "shelf"), create=True)
    shelf.add(str(trained / "adapter"), "r")
    bert = open_bert(tiny_bert)
    live = LiveLibrary(shelf, Predictor(bert))
    row = [text.encode() for text in texts]
    question = live.accept(Row(row[0], b"", b"r", tuple(row[1:])))
    [outputs] = live.outputs([question], live.compute([question]))
    assert set(outputs) == {"adapter", *output_fields(["ranking"])}
    assert set(live.signatures["serving_default"]["outputs"]) == set(outputs)
    again = from_outputs(live.tasks["r"], outputs)
    assert again.order == answer.order
    np.testing.assert_allclose(again.logits, answer.logits, rtol=1e-5)
    # As ids, for other runtimes; a graph of texts has no rule for it.
    loaded = trained_task(bert, trained / "adapter")
    model = IdsModel(bert, loaded)
    features = loaded.task.featurize(
        loaded.task.make_rows([texts]), loaded.tokenizer, 16
    )
    batch = make_batch(features, np.arange(1), None)
    computed = model.compute(*map(batch.get, INPUTS))
    np.testing.assert_allclose(computed["logits"][0], answer.logits, rtol=1e-4)
    here, adapters = ab.load_bert(tiny_bert), {"r": trained / "adapter"}
    ab.export(here, adapters, tmp_path / "file", format="tflite")
    assert read_json(tmp_path / "file", "task.json")["kind"] == "ranking"
    refusals.check(
        lambda: TextModel(bert, {"r": loaded}, 4),
        "r is of the kind ranking, which cannot be exported",
    )
    # Other programs have no such head.
    artifact = read_adapter(trained / "adapter")
    config = merge.run_record.bert_config(artifact.config, "")
    for read_head in (foreign_base.head_of, merge.head_of):
        refusals.check(
            functools.partial(read_head, artifact, config),
            trained / "adapter",
            "of the kind ranking",
        )
