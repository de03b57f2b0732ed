"""An ONNX file: for ONNX Runtime and the engines of hardware vendors."""

import json
from dataclasses import dataclass
from typing import Any

import numpy as np

from stages.errors import UserError
from stages.exporters.exporter import LOADER, Exporter, answers_of
from stages.results import Dataset, Model


@dataclass(frozen=True, kw_only=True)
class OnnxFile(Exporter):
    """A file from `images` to `probabilities`, both float32, any batch size; its metadata have `class_names`, as JSON.

    A network of another precision is written in float32. opset: the version of ONNX's operators.
    """

    suffix = ".onnx"
    loader = LOADER
    takes_features = False

    opset: int = 18

    def converted(self, model: Model, dataset: Dataset) -> bytes:
        """See `Exporter`.

        Raises:
            UserError: where ONNX lacks an operation of the network, which tf2onnx then takes over under TensorFlow's
                name, or the network has constant tensors, which tf2onnx makes inputs.
        """
        import onnx  # of the extra `onnx`, as tf2onnx
        import tf2onnx

        function, _ = answers_of(model.in_float32, dataset)
        converted, _ = tf2onnx.convert.from_function(
            function, function.input_signature, opset=self.opset, custom_op_handlers={"Erfc": (_erfc, [])}
        )
        inputs = {spec.name for spec in function.input_signature}
        others = [given.name for given in converted.graph.input if given.name not in inputs]
        try:
            onnx.checker.check_model(converted)
            if others:
                raise onnx.checker.ValidationError(f"a constant tensor would become the input {others[0]}")
        except onnx.checker.ValidationError as error:  # such as "No Op registered for Erfc with domain_version of 18"
            raise UserError(
                f"ONNX does not support this network ({str(error).strip().splitlines()[0]})",
                "a format that supports this network",
                "export=saved_model",
            ) from error
        entry = converted.metadata_props.add()
        entry.key = "class_names"
        entry.value = json.dumps(dataset.task.names, ensure_ascii=False)
        return bytes(converted.SerializeToString())


def _erfc(graph: Any, node: Any, name: str, arguments: Any) -> None:
    """Replace TensorFlow's Erfc, which exact GELU consists of, by ONNX's Erf: erfc(x) = 1 - erf(x).

    A handler of tf2onnx 1.17, which knows Erf alone.
    """
    dtype = graph.get_dtype(node.output[0])
    shapes = [graph.get_shape(node.output[0])]
    outputs = list(node.output)
    inputs = list(node.input)
    graph.remove_node(node.name)
    error = graph.make_node("Erf", inputs, shapes=shapes, dtypes=[dtype])
    one = graph.make_const(f"{node.name}_one", np.array(1, np.float32))
    graph.make_node(
        "Sub", [one.output[0], error.output[0]], name=node.name, outputs=outputs, shapes=shapes, dtypes=[dtype]
    )
