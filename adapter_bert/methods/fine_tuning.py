"""Methods that add nothing: some of BERT's own variables are trained."""

import dataclasses
from typing import ClassVar

from adapter_bert.errors import UserError
from adapter_bert.methods import base
from adapter_bert.methods.base import FROZEN_BERT, LAYER_NORMS, TuningMethod


@dataclasses.dataclass(frozen=True)
class Full(TuningMethod):
    """Every parameter is trained, as Devlin et al. 2019 do."""

    name: ClassVar[str] = "full"
    # google-research/bert's default.
    learning_rate: ClassVar[float] = 5e-5

    def rules(self, config):
        """Everything."""
        return ((r"bert/.*", True),)


@dataclasses.dataclass(frozen=True)
class TopLayers(TuningMethod):
    """The `k` uppermost layers and the pooler are trained.

    BERT-base: 7,087,872 k + 590,592.

    Attributes:
        k: number of layers, counted from the top.

    Raises:
        UserError: k below 1, or above the model's number of layers.

    Source: Houlsby et al. 2019, section 3.1 ("variable fine-tuning").
    """

    name: ClassVar[str] = "top_layers"
    # Better than full's on most tasks of docs/reproduction.md.
    learning_rate: ClassVar[float] = 1e-4
    k: int = 1

    def __post_init__(self):
        base.check_positive(self, "k")

    def check(self, config):
        """Compares `k` with the number of layers."""
        if self.k > config.num_hidden_layers:
            raise UserError(
                f"top_layers: k is {self.k}, but the model has only "
                f"{config.num_hidden_layers} layers"
            )

    def rules(self, config):
        """The layers from L - k on, and the pooler."""
        top = range(config.num_hidden_layers - self.k, config.num_hidden_layers)
        layers = "|".join(str(layer) for layer in top)
        pooler = ((r"bert/pooler/.*", True),) if config.has_pooler else ()
        return (
            (rf"bert/encoder/layer_({layers})/.*", True),
            *pooler,
            FROZEN_BERT,
        )


@dataclasses.dataclass(frozen=True)
class HeadOnly(TuningMethod):
    """Only the head is trained: BERT as a fixed feature extractor."""

    name: ClassVar[str] = "head"
    # docs/methods.md: the better of two on most tasks.
    learning_rate: ClassVar[float] = 1e-3

    def rules(self, config):
        """Nothing outside the head."""
        return (FROZEN_BERT,)


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
