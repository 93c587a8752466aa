"""Adapters one upon the other."""

import dataclasses
from typing import Any, ClassVar, Optional

import tensorflow as tf

from bert.hooks import Context
from methods.composition import ComposedHooks, Composition, PartHooks


class StackHooks(ComposedHooks):
    """Each part acts on what the parts before it give."""

    def embeddings(self, hidden, context):
        """One after the other; shapes as in `Hooks`, as of all that follow."""
        for part in self.parts:
            hidden = part.embeddings(hidden, context)
        return hidden

    def project(self, name, inputs, dense, context):
        """Each part takes what comes before it for the kernel."""
        for part in self.acting_at("project"):
            dense = _bind(part, name, dense, context)
        return dense(inputs)

    def key_value(self, layer, key, value, attention_bias, context):
        """One after the other."""
        found = key, value, attention_bias
        for part in self.parts:
            found = part.key_value(layer, *found, context)
        return found

    def before_norm(self, layer, site, inputs, outputs, layer_norm, context):
        """Each part reads the outputs with what was added before."""
        whole = None
        for part in self.parts:
            reads = outputs if whole is None else outputs + whole
            added = part.before_norm(
                layer, site, inputs, reads, layer_norm, context
            )
            whole = _sum(whole, added)
        return whole

    def after_norm(self, layer, site, hidden, context):
        """Each part reads what the parts before it have made."""
        whole = None
        for part in self.parts:
            reads = hidden if whole is None else hidden + whole
            added = part.after_norm(layer, site, reads, context)
            whole = _sum(whole, added)
        return whole

    def vocabulary(self, hidden, context):
        """The last part first: what it did to embeddings, it did last."""
        for part in reversed(self.parts):
            hidden = part.vocabulary(hidden, context)
        return hidden


def _bind(part: PartHooks, name: str, dense: Any, context: Context) -> Any:
    """What a part makes of a kernel, as a kernel."""
    return lambda x: part.project(name, x, dense, context)


def _sum(x: Optional[tf.Tensor], y: Optional[tf.Tensor]) -> Optional[tf.Tensor]:
    """Their sum, where None is nothing."""
    return y if x is None else x if y is None else x + y


@dataclasses.dataclass(frozen=True)
class Stack(Composition):
    """Adapters one upon the other: each acts on what those before it give.

    Trained adapters stay as they are, and what they have changed of BERT is
    added up. So `stack(language, pfeiffer)` trains a task's adapter upon a
    language's, and `stack(full, pals)` both at once.

    BERT-base: the sum of the parts that are trained.

    Attributes:
        parts: names of trained adapters, and methods that are trained.

    Raises:
        UserError: no parts, or a name twice.

    Source: Pfeiffer et al. 2020 (MAD-X), language and task adapters.
    """

    name: ClassVar[str] = "stack"

    def compose(self, config, create, parts):
        """The hooks of the parts, one after the other."""
        return StackHooks(parts)
