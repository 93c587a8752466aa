"""Methods that add nothing and train some of BERT's own variables."""

import dataclasses

from adapter_bert.errors import UserError
from adapter_bert.methods.base import LAYER_NORMS, TuningMethod


@dataclasses.dataclass(frozen=True)
class FineTuning(TuningMethod):
    """A method that adds nothing to BERT."""

    def merge(self, config, read, values):
        return {n: v for n, v in values.items() if n.startswith("bert/")}


@dataclasses.dataclass(frozen=True)
class Full(FineTuning):
    """Every parameter is trained, as Devlin et al. 2019 do."""

    name = "full"
    # google-research/bert's default.
    learning_rate = 5e-5
    trained_names = "bert/.*"


@dataclasses.dataclass(frozen=True)
class TopLayers(FineTuning):
    """Trains the `k` uppermost layers and the pooler.

    BERT-base: 7,087,872 k + 590,592.

    Source: Houlsby et al. 2019, section 3.1 ("variable fine-tuning").
    """

    name = "top_layers"
    # Better than full's on most tasks of docs/reproduction.md.
    learning_rate = 1e-4
    positive = ("k",)
    k: int = 1

    def check(self, config):
        if config.num_hidden_groups:
            raise UserError(
                "top_layers: the layers of this model share their variables, "
                "so that none can be trained alone; pass full, or a method "
                "that adds values to layers"
            )
        if self.k > config.num_hidden_layers:
            raise UserError(
                f"top_layers: k is {self.k}, but the model has only "
                f"{config.num_hidden_layers} layers"
            )

    def trains(self, config):
        top = range(config.num_hidden_layers - self.k, config.num_hidden_layers)
        layers = "|".join(str(layer) for layer in top)
        return rf"bert/(encoder/layer_({layers})|pooler)/.*"


@dataclasses.dataclass(frozen=True)
class HeadOnly(FineTuning):
    """Only the head is trained: BERT as a fixed feature extractor."""

    name = "head"
    # results/methods.md: the better of two on most tasks.
    learning_rate = 1e-3


@dataclasses.dataclass(frozen=True)
class BitFit(FineTuning):
    """Every bias is trained, those of LayerNorms (beta) and the pooler too.

    BERT-base: 12 (4 x 768 + 3,072 + 768 + 2 x 768) + 768 + 768 = 102,912.

    Source: Ben Zaken et al. 2022, whose code includes the pooler's bias.
    """

    name = "bitfit"
    # Ben Zaken et al. 2022, the published code's default.
    learning_rate = 1e-3
    trained_names = r"bert/.*/(bias|beta)"


@dataclasses.dataclass(frozen=True)
class LayerNormOnly(FineTuning):
    """Every LayerNorm is trained: 38,400 parameters of BERT-base.

    Source: Houlsby et al. 2019, section 3.4.
    """

    name = "layernorm"
    # As of bitfit, which trains as little.
    learning_rate = 1e-3
    trained_names = LAYER_NORMS
