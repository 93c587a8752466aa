"""A shadow's answers are counted, and no client sees or waits for them."""

import asyncio
import collections
import contextlib
import re
import threading

import pytest
from absl.testing import flagsaver
from conftest import entry_point
from exported_models import mixed_questions
from sweep_stand_in import wait_for
from test_http_api import Server, metrics
from test_live_library import Only

from adapter_bert.commands import serve
from adapter_bert.errors import UserError
from adapter_bert.serving import shadow as shadow_module
from adapter_bert.serving.answers import Answer
from adapter_bert.serving.batching import Bounds
from adapter_bert.serving.exported import SIGNATURE
from adapter_bert.serving.library import AdapterLibrary
from adapter_bert.serving.request_metrics import RequestMetrics
from adapter_bert.serving.served import AskedRow, Question, ServedModel
from adapter_bert.serving.shadow import Answered, Shadow, distance

pytestmark = pytest.mark.newer_stack

LABELS = ["bad", "good"]
KINDS = {
    "films": {"kind": "classification", "labels": LABELS},
    "stars": {"kind": "regression"},
    "texts": {"kind": "vectors"},
}


def described(kinds=KINDS):
    """Descriptions of tasks."""
    return {n: {"name": n, "texts": [1], **one} for n, one in kinds.items()}


class Fake(ServedModel):
    """Answers "good" to texts of some words, and their length as a value."""

    version = "1"
    signatures = {SIGNATURE: {}}
    tasks = {}

    def __init__(self, *good, more=0.0, tasks=None):
        self.good, self.more = good, more
        self.tasks = tasks or described()
        self.may_go = threading.Event()
        self.may_go.set()
        self.batches = []

    def accept(self, row, for_vector=False):
        text = row.text.decode()
        if self.more and text == "refused":
            raise UserError("refused is not read")
        name = row.task.decode()
        return Question(name, self.tasks[name], text, len(text))

    def compute(self, questions):
        self.batches.append([question.row for question in questions])
        assert self.may_go.wait(10)
        if self.more and "defect" in self.batches[-1]:
            raise RuntimeError("a defect")
        return [
            {"label": "good" if question.row in self.good else "bad"}
            if question.of["kind"] == "classification"
            else {"value": len(question.row) + self.more}
            for question in questions
        ]

    def outputs(self, questions, results):
        return results

    def answer(self, question, result):
        return Answer(result)


def shadowed(model, other, **options):
    """The shadow of a model, both by their versions."""
    return Shadow("tiny", Only(model), Only(other), "new", **options)


@contextlib.contextmanager
def serving(model, other=None, **options):
    shadow = other and shadowed(model, other, **options)
    made = Server(models={"tiny": Only(model)}, shadow=shadow)
    with contextlib.closing(made):
        yield made


def counted(server):
    """Rows by task and outcome, where there are any."""
    found = re.findall(
        r'^adapter_bert_shadow_rows_total\{model="tiny",outcome="(\w+)",'
        r'task="(\w+)"\} (\S+)$',
        metrics(server).decode(),
        re.M,
    )
    return {
        (task, outcome): float(count)
        for outcome, task, count in found
        if float(count)
    }


def ask(server, *texts, task="films"):
    """The bytes of the answers."""
    rows = [{"task": task, "text": text} for text in texts]
    path = "/v1/models/tiny:answer"
    code, _, found = server.whole({"instances": rows}, path=path)
    assert code == 200, found
    return found


def test_answers_are_the_same_bytes_and_differences_are_counted():
    texts = ["a", "b", "c", "d"]
    with serving(Fake("a", "b", "c")) as alone:
        expected = ask(alone, *texts), ask(alone, "abc", task="stars")
    model, other = Fake("a", "b", "c"), Fake("a", more=0.25)
    with serving(model, other) as server:
        assert ask(server, *texts) == expected[0]
        assert ask(server, "abc", task="stars") == expected[1]
        wait_for(lambda: sum(counted(server).values()) == 5)
        assert counted(server) == {
            ("films", "equal"): 2,
            ("films", "different"): 2,
            ("stars", "different"): 1,
        }
        told = metrics(server).decode()
    none = 'outcome="dropped",task="stars"} 0.0'
    assert f'adapter_bert_shadow_rows_total{{model="tiny",{none}' in told
    of_stars = '{model="tiny",task="stars"}'
    assert f"shadow_distance_sum{of_stars} 0.25" in told
    assert f"shadow_distance_count{of_stars} 1.0" in told
    seconds = 'adapter_bert_shadow_batch_seconds_count{model="tiny"}'
    count = re.search(rf"^{re.escape(seconds)} (\S+)$", told, re.M)
    assert float(count.group(1)) == len(other.batches)


def test_no_client_waits_and_what_is_too_much_is_dropped():
    model, other = Fake("a"), Fake("a")
    other.may_go.clear()
    with serving(model, other, bounds=Bounds(1, 1000, 3)) as server:
        try:
            ask(server, "a", "b")
            wait_for(lambda: other.batches)
            # All are answered while the shadow computes its first row.
            ask(server, "a", "b", "a")
            assert counted(server) == {("films", "dropped"): 2}
            assert other.batches == [["a"]]
        finally:
            other.may_go.set()
        wait_for(lambda: ("films", "equal") in counted(server))
        wait_for(lambda: counted(server)["films", "equal"] == 3)
        assert counted(server)["films", "dropped"] == 2
    assert other.batches == [["a"], ["b"], ["a"]]


def test_bytes_that_wait_are_bounded(monkeypatch):
    monkeypatch.setattr(shadow_module, "WAITING_BYTES", 5)
    model, other = Fake(), Fake()
    other.may_go.clear()
    with serving(model, other) as server:
        try:
            ask(server, "abc", "def", "gh")
            assert counted(server) == {("films", "dropped"): 1}
        finally:
            other.may_go.set()
        wait_for(lambda: counted(server).get(("films", "equal")) == 2)
        # What was compared makes room.
        ask(server, "abcde")
        wait_for(lambda: counted(server).get(("films", "equal")) == 3)


def test_errors_of_the_shadow_reach_no_client(caplog):
    caplog.set_level("INFO", logger="absl")
    model, other = Fake("a"), Fake("a", more=1.0)
    texts = ["a", "defect", "refused", "b"]
    with serving(Fake("a")) as alone:
        expected = ask(alone, *texts)
    with serving(model, other) as server:
        for _ in range(2):
            assert ask(server, *texts) == expected
        wait_for(lambda: sum(counted(server).values()) == 8)
        # Rows next to a wrong one are compared.
        assert counted(server) == {
            ("films", "equal"): 4,
            ("films", "failed"): 4,
        }
    assert caplog.text.count("Traceback") == 1
    assert "refused" not in caplog.text
    summary = "shadow new: 4 equal, 0 different, 0 dropped, 4 failed"
    assert summary in caplog.text


def answered(model, *texts, task="films"):
    rows = [AskedRow(task.encode(), text.encode()) for text in texts]
    questions = list(map(model.accept, rows))
    results = model.compute(questions)
    return [
        Answered(row, model, question, result)
        for row, question, result in zip(rows, questions, results)
    ]


def run(shadow, test, is_busy=lambda: False):
    """Runs a test of a shadow in a loop of its own; gives its counts."""
    made = RequestMetrics(lambda: {}, lambda: 0)
    found = []
    made.count_shadow = lambda *labels: found.append(labels)

    async def main():
        async with shadow.live(is_busy, made):
            await test()

    asyncio.run(asyncio.wait_for(main(), 30))
    return [(task, outcome) for _, task, outcome in found]


def test_rows_of_clients_are_computed_first():
    """The shadow begins when none waits."""
    model, other = Fake(), Fake()
    shadow = shadowed(model, other)
    waiting = [3, 2, 1]
    seen = []

    def is_busy():
        seen.append(list(other.batches))
        return bool(waiting and waiting.pop())

    async def test():
        shadow.offer(answered(model, "a"))

    assert run(shadow, test, is_busy) == [("films", "equal")]
    assert seen == [[]] * 4
    assert other.batches == [["a"]]


def test_rows_that_wait_at_the_end_have_a_time(monkeypatch):
    monkeypatch.setattr(shadow_module, "END_S", 0)
    model, other = Fake(), Fake()
    other.may_go.clear()
    shadow = shadowed(model, other, bounds=Bounds(1, 1000, 10))
    dropped, kept = [], []

    async def test():
        shadow.offer(answered(model, "a", "b", "c"))
        while not other.batches:
            await asyncio.sleep(0.001)

        async def release():
            while len(dropped) < 3:
                await asyncio.sleep(0.001)
            other.may_go.set()

        count = shadow._count
        shadow._count = lambda *one: (dropped.append(one), count(*one))
        kept.append(asyncio.ensure_future(release()))

    assert run(shadow, test) == [("films", "dropped")] * 3
    # What was begun ends, what was not is not begun.
    assert other.batches == [["a"]]


def test_tasks_come_and_go(caplog):
    model, other = Fake(), Fake()
    del other.tasks["stars"]
    shadow = shadowed(model, other)
    assert shadow.kinds == {"films": "classification"}
    tags = {"kind": "tagging", "types": ["LOC"]}
    model.tasks = described({**KINDS, "names": tags})
    other.tasks = described({**KINDS, "names": {**tags, "types": ["PER"]}})
    for _ in range(2):
        shadow.look()
    assert set(shadow.kinds) == {"films", "stars"}
    why = "types of entities of names: found PER, expected LOC"
    assert caplog.text.count(why) == 1
    del model.tasks["films"]
    shadow.look()
    assert set(shadow.kinds) == {"stars"}

    async def test():
        # Its task is compared no more; vectors never are.
        shadow.offer(answered(Fake(), "a"))
        shadow.offer(answered(Fake(), "a", task="texts"))
        shadow.offer(answered(model, "a", task="stars"))

    assert run(shadow, test) == [("stars", "equal")]


def test_what_a_look_cannot_see_keeps_the_comparison():
    class Gone(Only):
        def look(self):
            raise UserError("new holds no version any more")

    model = Fake()
    shadow = Shadow("tiny", Only(model), Gone(Fake()), "new")
    del model.tasks["stars"]
    with pytest.raises(UserError, match="no version any more"):
        shadow.look()
    assert set(shadow.kinds) == {"films"}


@pytest.mark.gate
def test_a_library_is_the_shadow_of_an_export(
    tiny_bert, tiny_exported, tiny_adapters, tmp_path
):
    """Of the same adapters, so that all answers are equal."""
    shelf = AdapterLibrary(str(tmp_path / "shelf"), create=True)
    for name, folder in tiny_adapters.items():
        shelf.add(folder, name)
    given = {"model": str(tiny_exported), "shadow": shelf.path}
    given.update(shadow_init_checkpoint=str(tiny_bert), name="tiny")
    with entry_point(serve), flagsaver.flagsaver(**given):
        models = serve.open_models()
    with contextlib.closing(
        Server(models=models.models, shadow=models.shadow)
    ) as server:
        questions = mixed_questions()
        for task, texts in questions:
            row = dict(zip(("text", "text_b"), texts), task=task)
            code, _ = server.ask({"instances": [row]})
            assert code == 200
        wait_for(lambda: sum(counted(server).values()) == len(questions))
        outcomes = counted(server)
        told = metrics(server).decode()
    # Values may differ in their last bits.
    values = [outcomes.pop(("score", x), 0) for x in ("equal", "different")]
    expected = collections.Counter(task for task, _ in questions)
    assert sum(values) == expected.pop("score")
    assert outcomes == {(n, "equal"): count for n, count in expected.items()}
    (total,) = re.findall(r"^\w+_shadow_distance_sum\{.*\} (\S+)$", told, re.M)
    assert float(total) == pytest.approx(0, abs=1e-4)


@pytest.mark.parametrize(
    "kinds, message",
    [
        ({}, "no task to compare; its tasks: none; expected one of: films, s"),
        ({"texts": KINDS["texts"]}, "no task to compare; its tasks: texts; "),
        (
            {"films": {**KINDS["films"], "labels": ["bad", "fine"]}},
            "labels of films: found bad, fine, expected bad, good",
        ),
        (
            {"films": {"kind": "regression"}},
            "the kind of films: found regression, expected classification",
        ),
        (
            {"films": {**KINDS["films"], "texts": [2]}},
            "the number of texts of films: found 2, expected 1",
        ),
        (
            {"stars": KINDS["films"], "films": KINDS["stars"]},
            "the kind of films.*; the kind of stars",
        ),
    ],
)
def test_models_that_cannot_be_compared(kinds, message):
    other = Fake()
    other.tasks = described(kinds)
    with pytest.raises(UserError, match=message) as found:
        shadowed(Fake(), other)
    assert "\n" not in str(found.value)


def test_the_order_of_labels_is_no_difference():
    other = Fake()
    turned = {**KINDS["films"], "labels": LABELS[::-1]}
    other.tasks = described({**KINDS, "films": turned})
    assert "films" in shadowed(Fake(), other).kinds


def test_a_task_that_is_left_out_is_told():
    class Empty(Only):
        left_out = {"films": "it is damaged"}

    other = Fake()
    other.tasks = {}
    with pytest.raises(UserError, match="; films is left out: it is damaged"):
        Shadow("tiny", Only(Fake()), Empty(other), "new")


@pytest.mark.parametrize(
    "kind, answer, other, expected",
    [
        ("classification", {"label": "a"}, {"label": "a"}, 0),
        ("classification", {"label": "a"}, {"label": "b"}, 1),
        ("classification", {"label": None}, {"label": None}, 0),
        ("classification", {"label": "a"}, {"label": None}, 1),
        ("multi-label", {"labels": ["a", "b"]}, {"labels": ["b", "a"]}, 0),
        ("multi-label", {"labels": ["a"]}, {"labels": []}, 1),
        ("regression", {"value": 1.5}, {"value": 3.0}, 1.5),
        ("multiple choice", {"choice": 0}, {"choice": 0}, 0),
        ("multiple choice", {"choice": 0}, {"choice": None}, 1),
        ("tagging", {"tags": ["O", "B-A"]}, {"tags": ["O", "B-A"]}, 0),
        ("tagging", {"tags": ["O"]}, {"tags": ["B-A"]}, 1),
        (
            "questions",
            {"answer": "a", "start": 0, "end": 1},
            {"answer": "a", "start": 4, "end": 5},
            1,
        ),
        (
            "questions",
            {"answer": "", "start": None, "end": None},
            {"answer": "", "start": None, "end": None},
            0,
        ),
    ],
)
def test_the_distance_of_answers(kind, answer, other, expected):
    more = {"probability": 0.5}, {"probability": 0.75}
    found = [Answer({**x, **y}) for x, y in zip((answer, other), more)]
    assert distance(kind, *found) == expected
