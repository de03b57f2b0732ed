"""An ONNX file: for ONNX Runtime and the engines of hardware vendors."""

import json
from dataclasses import dataclass
from pathlib import Path

from stages.exporters.exporter import LOADERS, Exporter, probabilities_of
from stages.results import Dataset, Model


@dataclass(frozen=True, kw_only=True)
class OnnxFile(Exporter):
    """A file from `images` to `probabilities`, both float32, any batch size; its metadata have `class_names`, as JSON.

    A network of another precision is written in float32. opset: the version of ONNX's operators.
    """

    suffix = ".onnx"
    runtime = "onnxruntime"
    loader = LOADERS / "onnx_file.py"

    opset: int = 18

    def write(self, model: Model, dataset: Dataset, path: Path) -> None:
        """See `Exporter`."""
        import tf2onnx  # of the extra `onnx`

        function, _ = probabilities_of(model.in_float32, dataset.image_shape)
        converted, _ = tf2onnx.convert.from_function(function, function.input_signature, opset=self.opset)
        entry = converted.metadata_props.add()
        entry.key = "class_names"
        entry.value = json.dumps(dataset.class_names, ensure_ascii=False)
        path.write_bytes(converted.SerializeToString())
