"""XLA's compilers for TPUs and GPUs, by JAX, which need no device.

JAX finds Google's in the package `libtpu`, NVIDIA's in `jax-cuda12-plugin` and
`nvidia-cuda-nvcc-cu12`. TensorFlow's package for CPUs translates operations for
CPUs alone, so a step is translated as for a CPU and compiled for the device.
"""

import importlib.metadata
import importlib.util
import os
import pathlib
import re
from collections.abc import Sequence
from typing import Any, Callable

# JAX computes nothing itself, and looks for no device: neither for a GPU's
# driver, nor for what Google Cloud says of this machine.
os.environ["JAX_PLATFORMS"] = "cpu"
os.environ["JAX_SKIP_CUDA_CONSTRAINTS_CHECK"] = "1"
os.environ["TPU_SKIP_MDS_QUERY"] = "1"
os.environ["TPU_WORKER_HOSTNAMES"] = "localhost"
# A compiler keeps no other process from compiling.
os.environ["ALLOW_MULTIPLE_LIBTPU_LOAD"] = "1"

import jax
import numpy as np
import tensorflow as tf
from jax import export
from jax.experimental import jax2tf, topologies
from jax.sharding import Mesh, PartitionSpec

from adapter_bert.accelerators.account import COUNTING, Compiled, bytes_of_calls
from adapter_bert.accelerators.devices import GPU, Device
from adapter_bert.accelerators.step import Step
from adapter_bert.errors import UserError

# Raised by a compiler that does not take a program.
Refusal = jax.errors.JaxRuntimeError
CORE = "core"
ALL, BY_ROWS = PartitionSpec(), PartitionSpec(CORE)
NVCC = "nvidia.cuda_nvcc"
# In StableHLO, and in the text of a compiled module.
LOOPS = ("stablehlo.while", " while(")
# As TensorFlow has XLA compile for GPUs where operations must be deterministic,
# which every run asks for.
DETERMINISM = {"xla_gpu_deterministic_ops": True}
# Variables by which users change what the compilers do.
OPTIONS = ("XLA_FLAGS", "LIBTPU_INIT_ARGS")
# In the errors of `call_tf`: an operation that XLA lacks, a shape that values
# decide.
NO_OPERATION = re.compile(r"No registered '(\w+)' OpKernel")
NOT_STATIC = "dynamic shape"


def versions(device: Device) -> dict[str, str]:
    """Gives the packages that translate for a device and compile."""
    packages = {p: importlib.metadata.version(p) for p in device.packages}
    return {"tensorflow": tf.__version__, **packages}


def settings(device: Device) -> dict[str, str]:
    """Lists what an account depends on besides the step."""
    options = {name: os.environ.get(name, "") for name in OPTIONS}
    basics = {"device": repr(device), "counting": str(COUNTING)}
    return {**basics, **versions(device), **options}


def lower(step: Step, device: Device) -> Any:
    """Translates a step for a device's compiler into a `jax.stages.Lowered`."""
    function, arguments = jitted(step, _topology(device, step.cores))
    return function.lower(*arguments)


def jitted(step: Step, cores: Sequence[Any]) -> tuple[Any, tuple]:
    """Makes a step a compiled function of JAX; gives its arguments' specs too.

    A training is a function of frozen values, trained values, slots, batch and
    steps done (int64 []). It gives the loss, float32 [], and the new trained
    values, slots and steps done, whose old ones it overwrites. A prediction is
    a function of values and batch. It gives the head's outputs. The first
    `step.cores` of JAX's devices are taken.
    """
    try:
        function, arguments, places = _program(step)
    except ValueError as error:
        why = _why_not_translated(str(error))
        if not why:
            raise
        raise UserError(
            f"the step of {step.job.table.method} cannot be compiled for TPUs "
            f"or by XLA: {why}; choose another --tuning_method"
        ) from error
    is_training = step.schedule is not None
    shared = jax.shard_map(
        function,
        mesh=Mesh(np.array(cores[: step.cores]), (CORE,)),
        in_specs=places,
        out_specs=ALL if is_training else BY_ROWS,
        check_vma=False,
    )
    overwritten = (1, 2) if is_training else ()
    return jax.jit(shared, donate_argnums=overwritten), arguments


def _why_not_translated(error: str) -> str:
    """Tells why TensorFlow does not translate, "" for a defect."""
    unknown = NO_OPERATION.search(error)
    if unknown:
        return f"XLA has no operation {unknown[1]}"
    return "it has no static shapes" if NOT_STATIC in error else ""


def export_step(step: Step) -> export.Exported:
    """Writes the step that `jitted` makes for one core, for any platform."""
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


def compile_lowered(lowered: Any, device: Device) -> Compiled:
    """Compiles what `lower` gave; raises `Refusal` if the compiler does."""
    made = lowered.compile(DETERMINISM if device.platform == GPU else None)
    memory, cost = made.memory_analysis(), made.cost_analysis() or {}
    flops, moved = cost.get("flops"), cost.get("bytes accessed")
    counter, text = "the compiler", lowered.as_text()
    if flops is None:
        # JAX cannot read all compiled modules of TPUs.
        [module] = made.runtime_executable().hlo_modules()
        text += module.to_string()
        flops, moved = _count(lowered, module)
        counter = "XLA"
    if any(loop in text for loop in LOOPS):
        # Both counters count the body of a loop once.
        flops = moved = None
    return Compiled(
        arguments=memory.argument_size_in_bytes,
        reused=memory.alias_size_in_bytes,
        outputs=memory.output_size_in_bytes,
        temporaries=memory.temp_size_in_bytes,
        code=memory.generated_code_size_in_bytes,
        flops=flops,
        moved=moved,
        counter=counter,
    )


def _count(lowered: Any, module: Any) -> tuple[float, float]:
    """Counts operations and moved bytes for GPUs, as XLA does itself.

    Their compiler counts nothing without a GPU. Operations are those before XLA
    optimizes, since it makes products calls of cuBLAS, which have no count.
    Bytes are those of the compiled module, and of what these calls move.
    """
    from jax._src.lib import xla_client

    def count(module: Any) -> dict[str, float]:
        client = jax.devices("cpu")[0].client
        return xla_client._xla.hlo_module_cost_analysis(client, module)

    before = lowered.compiler_ir("hlo").as_hlo_module()
    moved = count(module)["bytes accessed"]
    return count(before)["flops"], moved + bytes_of_calls(module.to_string())


def _topology(device: Device, cores: int) -> Any:
    options = {}
    if device.platform == GPU:
        # XLA calls `ptxas`, which it looks for in PATH.
        nvcc = importlib.util.find_spec(NVCC).submodule_search_locations[0]
        tools = str(pathlib.Path(nvcc) / "bin")
        if not os.environ["PATH"].startswith(tools):
            os.environ["PATH"] = os.pathsep.join([tools, os.environ["PATH"]])
        # Slices, hosts of a slice, GPUs of a host.
        options = {"target_config": device.target, "topology": f"1x1x{cores}"}
    return topologies.get_topology_desc(
        topology_name=device.topology, platform=device.platform, **options
    ).devices


def _program(step: Step) -> tuple[Callable, tuple, tuple]:
    jax.config.update("jax_enable_x64", True)
    # Deterministic operations ask for a seed, which no operation here reads.
    tf.random.set_seed(1)
    frozen, trained, slots = map(_specs, step.shapes())
    batch, core_batch = _specs(step.batch), _specs(step.batch, step.cores)
    if step.schedule is None:
        predict = _translate(step.predict, frozen, core_batch)
        return predict, (frozen, batch), (ALL, BY_ROWS)
    done = jax.ShapeDtypeStruct((), np.int64)
    differentiate = _translate(
        step.differentiate, frozen, trained, core_batch, done
    )
    update = _translate(step.update, trained, slots, trained, done)

    def train(frozen, trained, slots, batch, done):
        whole = differentiate(frozen, trained, batch, done)
        if step.cores > 1:
            whole = jax.lax.psum(whole, CORE)
        loss, gradients = whole
        return loss, *update(trained, slots, gradients, done), done + 1

    arguments = (frozen, trained, slots, batch, done)
    return train, arguments, (ALL, ALL, ALL, BY_ROWS, ALL)


def _specs(values: dict[str, np.ndarray], cores: int = 1) -> dict[str, Any]:
    return {
        name: jax.ShapeDtypeStruct(
            (x.shape[0] // cores, *x.shape[1:]) if cores > 1 else x.shape,
            x.dtype,
        )
        for name, x in values.items()
    }


def _translate(function: Callable, *arguments: Any) -> Callable:
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
