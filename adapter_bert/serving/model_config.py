"""TensorFlow Serving's file of the models that a server has.

Source: TensorFlow Serving, "Configuration", and its `ModelServerConfig`, which
`tensorflow-serving-api` declares.

    model_config_list {
      config {
        name: "support"
        base_path: "/models/support"
        model_platform: "tensorflow"
        model_version_policy { specific { versions: 3 versions: 4 } }
        version_labels { key: "stable" value: 3 }
      }
    }
"""

import re
from typing import Any

from google.protobuf import text_format
from tensorflow_serving.config import model_server_config_pb2

from adapter_bert import files
from adapter_bert.errors import UserError, first_line
from adapter_bert.serving.model_versions import VersionPolicy
from adapter_bert.serving.served_models import ModelEntry

WHAT = "the file of models"
NAME = re.compile(r"[\w.-]+", re.ASCII)
PLATFORM = "tensorflow"
# The older field's number for the same; 0 is for none.
TYPES = (0, 1)


def read_config(path: str) -> list[ModelEntry]:
    """The models of a file in protobuf's text format."""
    config = model_server_config_pb2.ModelServerConfig()
    try:
        text_format.Parse(files.read_text(path, WHAT), config)
    # A number may be too large for its field.
    except (text_format.ParseError, ValueError, RecursionError) as error:
        raise UserError(
            f"{path} is no model_config_list in protobuf's text format: "
            f"{first_line(error)}"
        ) from error
    if config.HasField("custom_model_config"):
        raise UserError(f"{path}: custom_model_config is not supported")
    found = [_entry(path, one) for one in config.model_config_list.config]
    if not found:
        raise UserError(f"{path} names no model, expected model_config_list")
    names = [one.name for one in found]
    for name in names:
        if names.count(name) > 1:
            raise UserError(f"{path} has two models of the name {name}")
    return found


def _entry(path: str, model: Any) -> ModelEntry:
    """A model as the file has it; raises UserError."""
    if not NAME.fullmatch(model.name):
        raise UserError(
            f"{path} has a model of the name {model.name[:80]!r}, expected "
            "letters, digits, _ . -"
        )
    where = f"{path}: the model {model.name}"
    if not model.base_path:
        raise UserError(f"{where} has no base_path")
    platform = model.model_platform
    if platform not in ("", PLATFORM) or model.model_type not in TYPES:
        raise UserError(f'{where} has no model_platform: "{PLATFORM}"')
    if model.HasField("logging_config"):
        raise UserError(
            f"{where} has a logging_config; requests are not logged"
        )
    labels = {name: str(n) for name, n in model.version_labels.items()}
    return ModelEntry(
        model.name, model.base_path, _policy(where, model), labels
    )


def _policy(where: str, model: Any) -> VersionPolicy:
    """A model's policy, by default the newest version."""
    policy = model.model_version_policy
    kind = policy.WhichOneof("policy_choice")
    if kind == "all":
        return VersionPolicy(None)
    if kind == "specific":
        versions = tuple(map(str, policy.specific.versions))
        if not versions:
            raise UserError(f"{where} has no versions in its policy specific")
        return VersionPolicy(None, versions)
    # None is 0 here, as there.
    return VersionPolicy(policy.latest.num_versions or 1)
