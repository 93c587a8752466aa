"""BitFit: the biases are trained."""

import dataclasses
from typing import ClassVar

from methods.base import FROZEN_BERT, TuningMethod


@dataclasses.dataclass(frozen=True)
class BitFit(TuningMethod):
    """Every bias is trained, those of LayerNorms (beta) and the pooler too.

    BERT-base: 12 (4 x 768 + 3,072 + 768 + 2 x 768) + 768 + 768 = 102,912.

    Source: Ben Zaken et al. 2022, whose code includes the pooler's bias.
    """

    name: ClassVar[str] = "bitfit"
    # Ben Zaken et al. 2022, the published code's default.
    learning_rate: ClassVar[float] = 1e-3

    def rules(self, config):
        """Biases."""
        return ((r"bert/.*/(bias|beta)", True), FROZEN_BERT)
