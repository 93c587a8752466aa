"""BERT's `run_squad.py`, as adapter_bert/upstream/ has it."""

if __name__ == "__main__":
    from adapter_bert.commands import run

    run("run_squad")
else:
    from adapter_bert.upstream.run_squad import *  # noqa: F403
    from adapter_bert.upstream.run_squad import (  # noqa: F401
        _check_is_max_context,
        _compute_softmax,
        _get_best_indexes,
        _improve_answer_span,
    )
