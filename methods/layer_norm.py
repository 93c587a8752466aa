"""Only the LayerNorms are trained."""

import dataclasses
from typing import ClassVar

from methods.base import FROZEN_BERT, LAYER_NORMS, TuningMethod


@dataclasses.dataclass(frozen=True)
class LayerNormOnly(TuningMethod):
    """Every LayerNorm is trained: 38,400 parameters of BERT-base.

    Source: Houlsby et al. 2019, section 3.4.
    """

    name: ClassVar[str] = "layernorm"
    # As of bitfit, which trains as little.
    learning_rate: ClassVar[float] = 1e-3

    def rules(self, config):
        """LayerNorms."""
        return (LAYER_NORMS, FROZEN_BERT)
