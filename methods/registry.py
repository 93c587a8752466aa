"""The tuning methods that `--tuning_method` knows, by name."""

from typing import Dict, Type

from adapter_modeling import Houlsby
from methods.adapter_variants import Bapna, Parallel, Pfeiffer
from methods.adapterdrop import AdapterDrop
from methods.average import Average
from methods.base import TuningMethod
from methods.bitfit import BitFit
from methods.compacter import Compacter
from methods.fine_tuning import Full, HeadOnly, TopLayers
from methods.fusion import Fusion
from methods.ia3 import Ia3
from methods.invertible import MadX
from methods.layer_norm import LayerNormOnly
from methods.lora import Lora
from methods.pals import Pals
from methods.per_task import PerTask
from methods.prefix import Prefix
from methods.sparse import DiffPruning, LtSft
from methods.stack import Stack

METHODS: Dict[str, Type[TuningMethod]] = {
    method.name: method
    for method in (
        Houlsby,
        Pfeiffer,
        Bapna,
        Parallel,
        AdapterDrop,
        Compacter,
        MadX,
        Pals,
        Lora,
        Prefix,
        Ia3,
        BitFit,
        LayerNormOnly,
        DiffPruning,
        LtSft,
        Full,
        TopLayers,
        HeadOnly,
        Stack,
        Average,
        Fusion,
        PerTask,
    )
}
