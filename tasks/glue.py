"""The tasks of GLUE (Wang et al. 2019) that are declared so far.

Column numbers are those of the published TSV files.
"""

from tasks.text_classification import Layout, TextClassification

MRPC = TextClassification(
    "mrpc",
    labels=("0", "1"),
    labelled=Layout(text_a=3, text_b=4, label=0),
    unlabelled=Layout(text_a=3, text_b=4),
    metrics=("accuracy", "f1"),
)
COLA = TextClassification(
    "cola",
    labels=("0", "1"),
    labelled=Layout(text_a=3, label=1, header=False),
    unlabelled=Layout(text_a=1),
    metrics=("matthews_correlation", "accuracy"),
)
SST_2 = TextClassification(
    "sst-2",
    labels=("0", "1"),
    labelled=Layout(text_a=0, label=1),
    unlabelled=Layout(text_a=1),
)
RTE = TextClassification(
    "rte",
    labels=("entailment", "not_entailment"),
    labelled=Layout(text_a=1, text_b=2, label=3),
    unlabelled=Layout(text_a=1, text_b=2),
)
