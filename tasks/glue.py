"""The tasks of GLUE (Wang et al. 2019), with their published files.

Columns are named where the published headers are the same in all files, else
numbered from 0. Metrics are GLUE's.
"""

from tasks.table_files import Layout
from tasks.text_classification import TextClassification
from tasks.text_regression import TextRegression

ENTAILMENT = ("entailment", "not_entailment")
NLI_LABELS = ("contradiction", "entailment", "neutral")

COLA = TextClassification(
    "cola",
    columns=("sentence",),
    labels=("0", "1"),
    labelled=Layout(text_a=3, label=1, header=False),
    unlabelled=Layout(text_a=1),
    metrics=("matthews_correlation", "accuracy"),
)
SST_2 = TextClassification(
    "sst-2",
    columns=("sentence",),
    labels=("0", "1"),
    labelled=Layout(text_a=0, label=1),
    unlabelled=Layout(text_a=1),
)
MRPC = TextClassification(
    "mrpc",
    columns=("#1 String", "#2 String"),
    labels=("0", "1"),
    labelled=Layout(text_a=3, text_b=4, label=0),
    unlabelled=Layout(text_a=3, text_b=4),
    metrics=("accuracy", "f1"),
)
STS_B = TextRegression(
    "sts-b",
    columns=("sentence1", "sentence2"),
    labelled=Layout(text_a=7, text_b=8, label=9),
    unlabelled=Layout(text_a=7, text_b=8),
    scale=(0.0, 5.0),
)
QQP = TextClassification(
    "qqp",
    columns=("question1", "question2"),
    labels=("0", "1"),
    # Three rows of the published training file are broken.
    labelled=Layout(text_a=3, text_b=4, label=5, skips_short_rows=True),
    unlabelled=Layout(text_a=1, text_b=2),
    metrics=("accuracy", "f1"),
)
MNLI = TextClassification(
    "mnli",
    columns=("sentence1", "sentence2"),
    labels=NLI_LABELS,
    # gold_label is column 11 of the training file, 15 of the dev files.
    labelled=Layout("sentence1", "sentence2", "gold_label"),
    unlabelled=Layout("sentence1", "sentence2"),
    dev_splits=(("", "dev_matched"), ("mismatched", "dev_mismatched")),
    test_splits=(("", "test_matched"), ("mismatched", "test_mismatched")),
)
QNLI = TextClassification(
    "qnli",
    columns=("question", "sentence"),
    labels=ENTAILMENT,
    labelled=Layout(text_a=1, text_b=2, label=3),
    unlabelled=Layout(text_a=1, text_b=2),
)
RTE = TextClassification(
    "rte",
    columns=("sentence1", "sentence2"),
    labels=ENTAILMENT,
    labelled=Layout(text_a=1, text_b=2, label=3),
    unlabelled=Layout(text_a=1, text_b=2),
)
WNLI = TextClassification(
    "wnli",
    columns=("sentence1", "sentence2"),
    labels=("0", "1"),
    labelled=Layout(text_a=1, text_b=2, label=3),
    unlabelled=Layout(text_a=1, text_b=2),
)
# The diagnostic set: a trained MNLI model answers it.
AX = TextClassification(
    "ax",
    columns=("sentence1", "sentence2"),
    labels=NLI_LABELS,
    labelled=Layout("Premise", "Hypothesis", "Label"),
    unlabelled=Layout(text_a=1, text_b=2),
    metrics=("matthews_correlation",),
    dev_splits=(("", "diagnostic-full"),),
    test_splits=(("", "diagnostic"),),
    trained_as="mnli",
)
GLUE = (COLA, SST_2, MRPC, STS_B, QQP, MNLI, QNLI, RTE, WNLI, AX)
