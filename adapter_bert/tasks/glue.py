"""Tasks of GLUE (Wang et al. 2019), with their published files.

Columns have the names of the published headers, so that a file without its
header is refused. CoLA's training and dev files are published without one.
STS-B is in `text_regression.py`.
"""

from adapter_bert.data.tables import Layout
from adapter_bert.tasks.text_classification import TextClassification

ENTAILMENT = ("entailment", "not_entailment")
NLI_LABELS = ("contradiction", "entailment", "neutral")

COLA = TextClassification(
    "cola",
    columns=("sentence",),
    labels=("0", "1"),
    labelled=Layout(text_a=3, label=1, header=False),
    unlabelled=Layout("sentence"),
    metrics=("matthews_correlation", "accuracy"),
)
SST_2 = TextClassification(
    "sst-2", labels=("0", "1"), labelled=Layout("sentence", label="label")
)
MRPC = TextClassification(
    "mrpc",
    labels=("0", "1"),
    labelled=Layout("#1 String", "#2 String", "Quality"),
    metrics=("accuracy", "f1"),
)
QQP = TextClassification(
    "qqp",
    labels=("0", "1"),
    # Three rows of the published training file are broken.
    labelled=Layout(
        "question1", "question2", "is_duplicate", skips_broken_rows=True
    ),
    unlabelled=Layout("question1", "question2"),
    metrics=("accuracy", "f1"),
)
MNLI = TextClassification(
    "mnli",
    labels=NLI_LABELS,
    # gold_label is column 11 of the training file, 15 of the dev files.
    labelled=Layout("sentence1", "sentence2", "gold_label"),
    dev_splits=(("", "dev_matched"), ("mismatched", "dev_mismatched")),
    test_splits=(("", "test_matched"), ("mismatched", "test_mismatched")),
)
QNLI = TextClassification(
    "qnli", labels=ENTAILMENT, labelled=Layout("question", "sentence", "label")
)
RTE = TextClassification(
    "rte", labels=ENTAILMENT, labelled=Layout("sentence1", "sentence2", "label")
)
WNLI = TextClassification(
    "wnli",
    labels=("0", "1"),
    labelled=Layout("sentence1", "sentence2", "label"),
)
# The diagnostic set: a trained MNLI model answers it.
AX = TextClassification(
    "ax",
    columns=("sentence1", "sentence2"),
    labels=NLI_LABELS,
    labelled=Layout("Premise", "Hypothesis", "Label"),
    unlabelled=Layout("sentence1", "sentence2"),
    metrics=("matthews_correlation",),
    dev_splits=(("", "diagnostic-full"),),
    test_splits=(("", "diagnostic"),),
    trained_as="mnli",
)
