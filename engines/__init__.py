"""How training and prediction run on devices.

An engine is a class with `check_devices`, `train` and `predict`; all see the
same batches, model, optimizer and initial values, which a `Job` holds.
"""

import dataclasses
import importlib
from typing import Callable, Dict, Optional

from checkpoints import InitialValues
from errors import UserError
from modeling import CreateVariable
from task_model import ParameterTable, TaskModel

# Engine name -> module and class.
ENGINES: Dict[str, str] = {"estimator": "engines.estimator.EstimatorEngine"}


@dataclasses.dataclass(frozen=True)
class Hardware:
    """The devices, under the names of google-research/bert's flags.

    Attributes:
        use_tpu: whether to run on a TPU, else on a GPU or the CPU.
        tpu_name: `local` on a TPU VM, a TPU's name, or a `grpc://` address.
        tpu_zone: Google Cloud zone of a named TPU.
        gcp_project: Google Cloud project of a named TPU.
        master: TensorFlow master's address, if not found by name.
        num_tpu_cores: cores of the TPU.
        iterations_per_loop: steps between returns from the TPU to the host.
    """

    use_tpu: bool = False
    tpu_name: str = ""
    tpu_zone: str = ""
    gcp_project: str = ""
    master: str = ""
    num_tpu_cores: int = 8
    iterations_per_loop: int = 1000


@dataclasses.dataclass(frozen=True)
class Job:
    """What an engine needs to build a model.

    Attributes:
        build_model: makes the model's variables with the given `create`.
        table: those variables, and which are trained.
        initial_values: their first values.
        output_dir: folder of the training checkpoints `model.ckpt-<step>`.
        seed: of dropout.
        length: static number of tokens of every batch, or None to pad each
            batch to its longest row.
    """

    build_model: Callable[[CreateVariable], TaskModel]
    table: ParameterTable
    initial_values: InitialValues
    output_dir: str
    seed: int
    length: Optional[int]


def engine_class(name: str) -> type:
    """The engine called `name`; `auto` takes the first that can run.

    Raises:
        UserError: no engine has this name.
    """
    if name == "auto":
        name = next(iter(ENGINES))
    if name not in ENGINES:
        raise UserError(
            f"unknown engine {name!r}; expected auto or one of "
            f"{', '.join(ENGINES)}"
        )
    module, _, attribute = ENGINES[name].rpartition(".")
    return getattr(importlib.import_module(module), attribute)
