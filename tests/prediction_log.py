"""TensorFlow Serving's `PredictionLog`, by the fields that warm-up has.

Source: `prediction_log.proto`, `predict.proto` and `model.proto` there.
"""

from google.protobuf import descriptor_pb2, descriptor_pool, message_factory
from google.protobuf.text_format import Parse
from tensorflow.core.framework import tensor_pb2

PROTO = """
name: "prediction_log" package: "serving" syntax: "proto3"
dependency: "%s"
message_type { name: "ModelSpec"
  field { name: "name" number: 1 label: LABEL_OPTIONAL type: TYPE_STRING }
  field { name: "signature_name" number: 3 label: LABEL_OPTIONAL
          type: TYPE_STRING } }
message_type { name: "PredictRequest"
  field { name: "model_spec" number: 1 label: LABEL_OPTIONAL
          type: TYPE_MESSAGE type_name: ".serving.ModelSpec" }
  field { name: "inputs" number: 2 label: LABEL_REPEATED type: TYPE_MESSAGE
          type_name: ".serving.PredictRequest.InputsEntry" }
  nested_type { name: "InputsEntry" options { map_entry: true }
    field { name: "key" number: 1 label: LABEL_OPTIONAL type: TYPE_STRING }
    field { name: "value" number: 2 label: LABEL_OPTIONAL type: TYPE_MESSAGE
            type_name: ".tensorflow.TensorProto" } } }
message_type { name: "PredictLog"
  field { name: "request" number: 1 label: LABEL_OPTIONAL type: TYPE_MESSAGE
          type_name: ".serving.PredictRequest" } }
message_type { name: "PredictionLog"
  field { name: "predict_log" number: 6 label: LABEL_OPTIONAL
          type: TYPE_MESSAGE type_name: ".serving.PredictLog" } }
"""


def _message():
    pool = descriptor_pool.Default()
    file = PROTO % tensor_pb2.DESCRIPTOR.name
    described = Parse(file, descriptor_pb2.FileDescriptorProto())
    pool.AddSerializedFile(described.SerializeToString())
    name = "serving.PredictionLog"
    return message_factory.GetMessageClass(pool.FindMessageTypeByName(name))


PredictionLog = _message()
