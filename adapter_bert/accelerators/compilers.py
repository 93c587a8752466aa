"""XLA's compilers for TPUs and GPUs, by JAX, which need no device.

JAX finds Google's compiler in the package `libtpu`, NVIDIA's in
`jax-cuda12-plugin` and `nvidia-cuda-nvcc-cu12`. TensorFlow translates the
step's operations as for a CPU: the package for CPUs knows no others.
"""

import dataclasses
import functools
import importlib.util
import os
import pathlib
import time
from typing import Any, Dict, Optional, Tuple

# JAX computes nothing itself; TPUs are not looked for.
os.environ["JAX_PLATFORMS"] = "cpu"
os.environ["TPU_SKIP_MDS_QUERY"] = "1"
os.environ["TPU_WORKER_HOSTNAMES"] = "localhost"
os.environ.setdefault("TPU_ACCELERATOR_TYPE", "v5litepod-8")

import jax
import numpy as np
import tensorflow as tf
from jax import export
from jax.experimental import jax2tf, topologies
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from adapter_bert.accelerators.devices import GPU, Device
from adapter_bert.accelerators.step import Step

CORE = "core"
EVERYWHERE, BY_ROWS = PartitionSpec(), PartitionSpec(CORE)
NVCC = "nvidia.cuda_nvcc"


@dataclasses.dataclass(frozen=True)
class Compiled:
    """A compiler's account of a step, of one core.

    Attributes:
        seconds: of compiling.
        arguments: bytes of values that the step reads.
        reused: bytes of arguments whose place outputs take.
        outputs: bytes of outputs.
        temporaries: bytes of everything between.
        code: bytes of the program.
        flops: floating-point operations.
        moved: bytes that the step reads and writes.
        counted_by: "compiler", or "XLA" if the compiler counts nothing.
    """

    seconds: float
    arguments: int
    reused: int
    outputs: int
    temporaries: int
    code: int
    flops: float
    moved: float
    counted_by: str

    @property
    def memory(self) -> int:
        """Bytes of a core that the step takes."""
        own = self.outputs - self.reused
        return self.arguments + own + self.temporaries + self.code


def specs(values: Dict[str, np.ndarray], rows: int = 1) -> Dict[str, Any]:
    """Shapes and dtypes of arrays, of which a core gets a share of the rows."""
    return {
        name: jax.ShapeDtypeStruct(
            (x.shape[0] // rows, *x.shape[1:]) if rows > 1 else x.shape, x.dtype
        )
        for name, x in values.items()
    }


def translated(function: Any, *arguments: Any) -> Any:
    """A TensorFlow function as one of JAX, for any platform."""
    called = jax2tf.call_tf(
        tf.function(function, autograph=False, jit_compile=True)
    )
    exported = export.export(
        jax.jit(called),
        platforms=["cpu"],
        disabled_checks=[export.DisabledSafetyCheck.platform()],
    )(*arguments)
    return exported.call


def program(step: Step) -> Tuple[Any, Tuple[Any, ...], Tuple[Any, ...]]:
    """The step of one core, with its arguments.

    Returns:
        A function of a core's arguments, their shapes and dtypes for all
        cores, and how cores divide them.
    """
    frozen, own = specs(step.frozen), specs(step.batch, step.cores)
    batch = specs(step.batch)
    if step.update is None:
        predict = translated(step.compute, frozen, own)
        return predict, (frozen, batch), (EVERYWHERE, BY_ROWS)
    trained, slots = specs(step.trained), specs(step.slots)
    number = jax.ShapeDtypeStruct((), np.int64)
    compute = translated(step.compute, frozen, trained, own, number)
    update = translated(step.update, trained, slots, trained, number)

    def train(frozen, trained, slots, batch, number):
        found = compute(frozen, trained, batch, number)
        if step.cores > 1:
            found = jax.lax.psum(found, CORE)
        loss, gradients = found
        return loss, *update(trained, slots, gradients, number), number + 1

    arguments = (frozen, trained, slots, batch, number)
    return train, arguments, (*[EVERYWHERE] * 3, BY_ROWS, EVERYWHERE)


def compile_step(step: Step, device: Device) -> Compiled:
    """Compiles a step for a device."""
    jax.config.update("jax_enable_x64", True)
    tf.random.set_seed(1)
    options = {}
    if device.platform == GPU:
        found = importlib.util.find_spec(NVCC).submodule_search_locations[0]
        path = str(pathlib.Path(found) / "bin")
        os.environ["PATH"] = os.pathsep.join([path, os.environ["PATH"]])
        options = {
            "target_config": device.target,
            "topology": f"1x{step.cores}x1",
        }
    topology = topologies.get_topology_desc(
        topology_name=device.topology, platform=device.platform, **options
    )
    cores = np.array(topology.devices[: step.cores])
    mesh = Mesh(cores, (CORE,))
    function, arguments, places = program(step)
    is_training = step.update is not None
    compiled = jax.jit(
        jax.shard_map(
            function,
            mesh=mesh,
            in_specs=places,
            out_specs=EVERYWHERE if is_training else BY_ROWS,
            check_vma=False,
        ),
        donate_argnums=(1, 2) if is_training else (),
    )
    lowered = compiled.lower(*arguments)
    began = time.monotonic()
    made = lowered.compile()
    seconds = time.monotonic() - began
    memory, cost = made.memory_analysis(), made.cost_analysis() or {}
    counted_by = "compiler"
    if "flops" not in cost:
        cost, counted_by = lowered.cost_analysis(), "XLA"
    return Compiled(
        seconds,
        memory.argument_size_in_bytes,
        memory.alias_size_in_bytes,
        memory.output_size_in_bytes,
        memory.temp_size_in_bytes,
        memory.generated_code_size_in_bytes,
        cost["flops"],
        cost["bytes accessed"],
        counted_by,
    ), made
