"""Specs of methods in other programs, which are read and written by them.

A `Spec` says which fields and tensors of a program hold which arguments and
variables of a method. `read` takes the first spec whose constants a
description has, `find` the one of a method. What no spec holds is refused here.
"""

import dataclasses
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple, Optional

import numpy as np

from adapter_bert.bert.encoder import BertConfig
from adapter_bert.checkpoints import foreign_fields
from adapter_bert.checkpoints.foreign_tensors import Tensors
from adapter_bert.errors import UserError
from adapter_bert.exchange.foreign_base import Exported
from adapter_bert.methods.base import Declared, TuningMethod

Arrays = dict[str, np.ndarray]


class Adapter(NamedTuple):
    """Another program's adapter.

    Attributes:
        fields: its description.
        tensors: of its file.
        config: of its BERT.
        path: of the description, for messages.
        name: in the names of tensors.
    """

    fields: Mapping[str, Any]
    tensors: Tensors
    config: BertConfig
    path: str
    name: str = ""


class Field(NamedTuple):
    """A field that holds an argument.

    Attributes:
        argument: of the method.
        ours: their value -> ours, if they differ.
        theirs: our value -> theirs.
        matters: whether the argument changes what is computed; else it is
            written alone.
    """

    argument: str
    ours: Optional[Mapping[Any, Any]] = None
    theirs: Mapping[Any, Any] = {}
    matters: bool = True

    def read(self, fields: Mapping[str, Any], key: str, path: str) -> Any:
        value = fields.get(key)
        if self.ours is None:
            if value is None:
                raise UserError(
                    f"{path} has no {key}, which the adapter follows from"
                )
            return value
        word = value.lower() if isinstance(value, str) else value
        if not isinstance(word, (str, type(None))) or word not in self.ours:
            raise UserError(
                f"{path}: {key} is {value!r:.80}, expected one of "
                f"{', '.join(map(str, self.ours))}"
            )
        return self.ours[word]


@dataclasses.dataclass(frozen=True)
class Spec:
    """A method as a program has it; programs extend it.

    Attributes:
        method: that computes the same.
        constants: fields by which a description is known.
        fields: fields that hold one argument each.
        defaults: values of fields that a description lacks; these are written.
        others: fields that are read by a function of the program, or that
            have no effect.
        refused: fields that have to be off -> what no method here computes.
        fixed: arguments that no field holds, and the values that they have.
        is_written: whether adapters are written, too.
        is_transposed: whether tensors are.
    """

    method: type[TuningMethod]
    constants: Mapping[str, Any]
    fields: Mapping[str, Field] = dataclasses.field(default_factory=dict)
    defaults: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    others: str = ""
    refused: Mapping[str, str] = dataclasses.field(default_factory=dict)
    fixed: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    is_written: bool = True
    is_transposed: bool = True

    @property
    def names(self) -> foreign_fields.Fields:
        names = (*self.constants, *self.fields, *self.defaults)
        return {**dict.fromkeys((*names, *self.others.split())), **self.refused}

    def fits(self, fields: Mapping[str, Any]) -> bool:
        held = {k: v for k, v in fields.items() if v is not None}
        return all(
            held.get(key, self.defaults.get(key)) == value
            for key, value in self.constants.items()
        )

    def arguments(self, adapter: Adapter) -> dict[str, Any]:
        """Reads the method's arguments."""
        arguments = dict(self.fixed)
        for key, field in self.fields.items():
            if field.matters:
                arguments[field.argument] = field.read(
                    adapter.fields, key, adapter.path
                )
        return arguments

    def to_method(self, adapter: Adapter) -> TuningMethod:
        names = {field.name for field in dataclasses.fields(self.method)}
        arguments = self.arguments(adapter)
        for name in arguments.keys() - names:
            value = arguments.pop(name)
            if value != getattr(self.method, name):
                raise UserError(
                    f"{adapter.path}: the adapter is {self.method.name} with "
                    f"{name}={value!r:.80}, which no method of this project "
                    "computes"
                )
        return self.method(**arguments)

    def describe(
        self, method: TuningMethod, config: BertConfig
    ) -> dict[str, Any]:
        """Returns the fields of a method."""
        held = {}
        for key, field in self.fields.items():
            value = getattr(method, field.argument)
            held[key] = field.theirs.get(value, value)
        return {**self.defaults, **self.constants, **held}

    def lacks(self, method: TuningMethod, config: BertConfig) -> str:
        """Says what of a method the program's files cannot hold, or ""."""
        wrong = [
            f"{name}={value!r}"
            for name, value in self.fixed.items()
            if getattr(method, name) != value
        ]
        return f"expected {', '.join(wrong)}" if wrong else ""

    def tensor(self, variable: str, adapter: str, config: BertConfig) -> str:
        """Names the tensor of a variable."""
        raise NotImplementedError

    def shape(self, variable: str, shape: Sequence[int]) -> Sequence[int]:
        """Returns the shape of a variable's tensor."""
        return shape[::-1] if self.is_transposed else shape

    def take(
        self, adapter: Adapter, variables: Mapping[str, Declared]
    ) -> Arrays:
        """Takes the values of variables from a file's tensors."""
        values = {}
        for variable, declared in variables.items():
            name = self.tensor(variable, adapter.name, adapter.config)
            shape = self.shape(variable, declared.shape)
            value = adapter.tensors.take(name, *shape)
            value = value.T if self.is_transposed else value
            values[variable] = value.reshape(declared.shape)
        return values

    def give(self, exported: Exported, variables: Iterable[str]) -> Arrays:
        """Returns the tensors of variables."""
        tensors = {}
        for variable in variables:
            value = exported.read(variable)
            shape = self.shape(variable, value.shape)
            value = value.T if self.is_transposed else value
            name = self.tensor(variable, exported.name, exported.config)
            tensors[name] = value.reshape(shape)
        return tensors

    def values(self, adapter: Adapter, method: TuningMethod) -> Arrays:
        """Takes the values of a method."""
        return self.take(adapter, method.variables(adapter.config))

    def tensors(self, exported: Exported, method: TuningMethod) -> Arrays:
        """Returns the tensors of a method."""
        return self.give(exported, method.variables(exported.config))


def choose(specs: Sequence[Spec], fields: Mapping[str, Any], path: str) -> Spec:
    """Finds the spec that reads a description."""
    spec = next((spec for spec in specs if spec.fits(fields)), None)
    if spec is None:
        telling = dict.fromkeys(key for spec in specs for key in spec.constants)
        shown = [f"{k}={fields[k]!r:.80}" for k in telling if k in fields]
        names = dict.fromkeys(spec.method.name for spec in specs)
        raise UserError(
            f"{path}: no method of this project computes what "
            f"{', '.join(shown)} is; expected an adapter as {', '.join(names)}"
        )
    foreign_fields.check(fields, spec.names, path)
    return spec


def read(spec: Spec, adapter: Adapter) -> tuple[TuningMethod, Arrays]:
    """Reads the method of a description, and its float32 variables."""
    fields = {k: v for k, v in adapter.fields.items() if v is not None}
    adapter = adapter._replace(fields={**spec.defaults, **fields})
    method = spec.to_method(adapter)
    reason = spec.lacks(method, adapter.config)
    if reason:
        raise UserError(f"{adapter.path} is {method}: {reason}")
    return method, spec.values(adapter, method)


def find(specs: Sequence[Spec], method: TuningMethod) -> Optional[Spec]:
    """Finds the spec that writes a method."""
    return next(
        (s for s in specs if s.is_written and s.method is type(method)), None
    )


def lack(
    specs: Sequence[Spec], method: TuningMethod, config: BertConfig
) -> str:
    """Says why a method is not written, or ""."""
    spec = find(specs, method)
    if spec is None:
        names = [one.method.name for one in specs if one.is_written]
        reason = f"expected {', '.join(dict.fromkeys(names))}"
    else:
        reason = spec.lacks(method, config)
    return f"it is {method}; {reason}" if reason else ""
