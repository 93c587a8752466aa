"""Tuning methods. Each is a small dataclass; this table makes it known."""

from typing import Dict, Type

from methods.adapters import AdapterDrop, Bapna, Houlsby, Parallel, Pfeiffer
from methods.base import TuningMethod
from methods.compacter import Compacter
from methods.ia3 import Ia3
from methods.lora import Lora
from methods.pals import Pals
from methods.parts import BitFit, Full, HeadOnly, LayerNormOnly, TopLayers
from methods.prefix import Prefix
from methods.sparse import DiffPruning, LtSft

METHODS: Dict[str, Type[TuningMethod]] = {
    method.name: method
    for method in (
        Houlsby,
        Pfeiffer,
        Bapna,
        Parallel,
        AdapterDrop,
        Compacter,
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
    )
}
