"""XLA's compilers for TPUs and GPUs, by JAX, which need no device.

JAX finds Google's compiler in the package `libtpu`, NVIDIA's in
`jax-cuda12-plugin` and `nvidia-cuda-nvcc-cu12`. TensorFlow's package for CPUs
translates operations into XLA's for CPUs alone, so a step is translated as for
a CPU and compiled for the device.
"""

import dataclasses
import importlib.metadata
import importlib.util
import os
import pathlib
from typing import Any, Callable, Dict, Tuple

# JAX computes nothing itself, and looks for no device.
os.environ["JAX_PLATFORMS"] = "cpu"
os.environ["TPU_SKIP_MDS_QUERY"] = "1"
os.environ["TPU_WORKER_HOSTNAMES"] = "localhost"
os.environ["JAX_SKIP_CUDA_CONSTRAINTS_CHECK"] = "1"

import jax
import numpy as np
import tensorflow as tf
from jax import export
from jax.experimental import jax2tf, topologies
from jax.sharding import Mesh, PartitionSpec

from adapter_bert.accelerators.devices import GPU, Device
from adapter_bert.accelerators.step import Step

CORE = "core"
ALL, BY_ROWS = PartitionSpec(), PartitionSpec(CORE)
NVCC = "nvidia.cuda_nvcc"
PACKAGES = {
    "tpu": ("jax", "libtpu"),
    GPU: ("jax", "jax-cuda12-plugin", "nvidia-cuda-nvcc-cu12"),
}
# As the compilers say that memory is too small.
NO_ROOM = "RESOURCE_EXHAUSTED"


@dataclasses.dataclass(frozen=True)
class Compiled:
    """A compiler's account of a step, for one core.

    Attributes:
        arguments: bytes of values that the step reads.
        reused: bytes of arguments whose place outputs take.
        outputs: bytes of outputs.
        temporaries: bytes of everything between.
        code: bytes of the program.
        flops: floating-point operations, counted by `counter`.
        moved: bytes that the step reads and writes, counted by `counter`.
        counter: "the compiler", or "XLA, before it optimizes".
    """

    arguments: int
    reused: int
    outputs: int
    temporaries: int
    code: int
    flops: float
    moved: float
    counter: str

    @property
    def memory(self) -> int:
        """Bytes of a core that the step takes."""
        own = self.outputs - self.reused
        return self.arguments + own + self.temporaries + self.code


def versions(device: Device) -> Dict[str, str]:
    """The packages that compile for a device."""
    return {
        name: importlib.metadata.version(name)
        for name in PACKAGES[device.platform]
    }


def lower(step: Step, device: Device) -> Any:
    """Translates a step for a device's compiler; see `jax.stages.Lowered`."""
    jax.config.update("jax_enable_x64", True)
    # Deterministic operations ask for a seed, which no operation here reads.
    tf.random.set_seed(1)
    cores = np.array(_topology(device, step.cores)[: step.cores])
    function, arguments, places = _program(step)
    is_training = step.schedule is not None
    return jax.jit(
        jax.shard_map(
            function,
            mesh=Mesh(cores, (CORE,)),
            in_specs=places,
            out_specs=ALL if is_training else BY_ROWS,
            check_vma=False,
        ),
        donate_argnums=(1, 2) if is_training else (),
    ).lower(*arguments)


def compile_lowered(lowered: Any) -> Compiled:
    """Compiles; raises `jax.errors.JaxRuntimeError` if the compiler does."""
    made = lowered.compile()
    memory, cost = made.memory_analysis(), made.cost_analysis() or {}
    counter = "the compiler"
    if "flops" not in cost:
        cost, counter = _count(made), "XLA, on the compiled module"
    return Compiled(
        memory.argument_size_in_bytes,
        memory.alias_size_in_bytes,
        memory.output_size_in_bytes,
        memory.temp_size_in_bytes,
        memory.generated_code_size_in_bytes,
        cost["flops"],
        cost["bytes accessed"],
        counter,
    )


def export_step(step: Step) -> export.Exported:
    """A step of one core as a program that any platform's JAX loads."""
    jax.config.update("jax_enable_x64", True)
    tf.random.set_seed(1)
    function, arguments, _ = _program(step)
    return export.export(
        jax.jit(function),
        platforms=["cpu"],
        disabled_checks=[
            export.DisabledSafetyCheck.platform(),
            # StableHLO has no such operation; XLA knows it by this name.
            export.DisabledSafetyCheck.custom_call("mhlo.erf"),
        ],
    )(*arguments)


def _count(made: Any) -> Dict[str, float]:
    from jax._src.lib import xla_client

    module = made.runtime_executable().hlo_modules()[0]
    client = jax.devices("cpu")[0].client
    return xla_client._xla.hlo_module_cost_analysis(client, module)


def _topology(device: Device, cores: int) -> Any:
    """The cores of one host, as JAX's devices."""
    options = {}
    if device.platform == GPU:
        # XLA calls `ptxas`, which it looks for in PATH.
        nvcc = importlib.util.find_spec(NVCC).submodule_search_locations[0]
        tools = str(pathlib.Path(nvcc) / "bin")
        os.environ["PATH"] = os.pathsep.join([tools, os.environ["PATH"]])
        options = {"target_config": device.target, "topology": f"1x{cores}x1"}
    return topologies.get_topology_desc(
        topology_name=device.topology, platform=device.platform, **options
    ).devices


def _program(step: Step) -> Tuple[Callable, Tuple, Tuple]:
    """The step of one core.

    Returns:
        A function of a core's arguments; their shapes and dtypes, for all
        cores; how cores divide them.
    """
    frozen, trained, slots = map(_specs, step.values())
    batch, own = _specs(step.batch), _specs(step.batch, step.cores)
    if step.schedule is None:
        predict = _translate(step.predict, frozen, own)
        return predict, (frozen, batch), (ALL, BY_ROWS)
    done = jax.ShapeDtypeStruct((), np.int64)
    differentiate = _translate(step.differentiate, frozen, trained, own, done)
    update = _translate(step.update, trained, slots, trained, done)

    def train(frozen, trained, slots, batch, done):
        found = differentiate(frozen, trained, batch, done)
        if step.cores > 1:
            found = jax.lax.psum(found, CORE)
        loss, gradients = found
        return loss, *update(trained, slots, gradients, done), done + 1

    arguments = (frozen, trained, slots, batch, done)
    return train, arguments, (ALL, ALL, ALL, BY_ROWS, ALL)


def _specs(values: Dict[str, np.ndarray], cores: int = 1) -> Dict[str, Any]:
    """Shapes and dtypes of arrays, whose rows cores divide."""
    return {
        name: jax.ShapeDtypeStruct(
            (x.shape[0] // cores, *x.shape[1:]) if cores > 1 else x.shape,
            x.dtype,
        )
        for name, x in values.items()
    }


def _translate(function: Callable, *arguments: Any) -> Callable:
    """A function of TensorFlow as one of JAX, for any platform."""
    called = jax2tf.call_tf(
        tf.function(function, autograph=False, jit_compile=True),
        # Else JAX imports TensorFlow wherever the program is loaded.
        has_side_effects=False,
    )
    return export.export(
        jax.jit(called),
        platforms=["cpu"],
        disabled_checks=[export.DisabledSafetyCheck.platform()],
    )(*arguments).call
