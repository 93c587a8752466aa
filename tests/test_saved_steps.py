"""Steps that a training saves by beginning with an adapter.

tests/test_suggestion.py has the trainings.
"""

import pytest

from adapter_bert.training.saved_steps import compare, line

pytestmark = pytest.mark.newer_stack


def test_saved_steps_are_counted_to_the_best_score_from_nothing():
    from_nothing = {10: 0.5, 20: 0.75, 30: 0.75}
    saved = compare("accuracy", from_nothing, {10: 0.75, 20: 0.9, 30: 0.7})
    assert line(saved, "mnli") == (
        "from nothing the best accuracy of 30 steps is 0.7500, at step 20; "
        "from mnli it is reached at step 10: 10 saved"
    )
    assert saved["reached"] == 10
    saved = compare("accuracy", from_nothing, {10: 0.7, 20: 0.7})
    assert line(saved, "mnli").endswith("at most 0.7000, so no step is saved")
    assert saved["reached"] is None
