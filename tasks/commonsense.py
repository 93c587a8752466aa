"""SWAG (Zellers et al. 2018) and COPA (Roemmele et al. 2011).

With their published files; COPA's are those of SuperGLUE.
"""

from tasks.multiple_choice import MultipleChoice
from tasks.table_files import Layout

ENDINGS = ("ending0", "ending1", "ending2", "ending3")
ALTERNATIVES = ("choice1", "choice2")

# The second sentence is a noun phrase that each ending goes on with.
SWAG = MultipleChoice(
    "swag",
    labelled=Layout("sent1", "sent2", "label", choices=ENDINGS),
    unlabelled=Layout("sent1", "sent2", choices=ENDINGS),
    dev_splits=(("", "val"),),
)
COPA = MultipleChoice(
    "copa",
    labelled=Layout("premise", "question", "label", choices=ALTERNATIVES),
    unlabelled=Layout("premise", "question", choices=ALTERNATIVES),
    dev_splits=(("", "val"),),
    # As the original files ask them.
    questions=(
        ("cause", "What was the cause of this?"),
        ("effect", "What happened as a result?"),
    ),
)
COMMONSENSE = (SWAG, COPA)
