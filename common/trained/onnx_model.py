"""The model of a run as ONNX, from its spec and its weights: needs NumPy and the package `onnx`, and no framework.

The operators are ONNX's own, one per layer and with its name: https://onnx.ai/onnx/operators/
"""

from pathlib import Path
from typing import Any

import numpy as np

from common.errors import HOW_TO_GET_EXTRAS, UserError
from common.model.layers import (
    Activation,
    Add,
    BatchNorm,
    Convolution,
    Dense,
    Dropout,
    Flatten,
    GlobalMean,
    Layer,
    SlidingWindow,
)
from common.model.specs import LayerRow
from common.trained.export import description
from common.trained.trained_model import TrainedModel

OPSET, IR_VERSION = 17, 8  # of 2022: read by programs that are older than the newest


def require_onnx() -> None:
    """Raise UserError unless the package is there."""
    try:
        import onnx  # noqa: F401
    except ImportError as error:
        raise UserError(
            f"ONNX files need the onnx package ({error}). Received: --to onnx. {HOW_TO_GET_EXTRAS}"
        ) from None


def write_onnx(trained: TrainedModel, file: Path) -> None:
    """Write the model: "images" (batch, channels, height, width) float32 -> "outputs" (batch, outputs) float32."""
    import onnx
    from onnx import helper, numpy_helper

    nodes = []

    def add_node(row: LayerRow, *inputs: str) -> str:
        """Return the name of the tensor that a layer makes of others."""
        if isinstance(row.layer, Dropout):  # passes everything on outside training
            return inputs[0]
        kind, attributes = _operator(row.layer)
        name = row.layer.name
        output = "outputs" if row is trained.spec.rows[-1] else name
        arrays = [weight.name for weight in row.weights]
        nodes.append(helper.make_node(kind, [*inputs, *arrays], [output], name=name, **attributes))
        return output

    trained.spec.walk("images", add_node)
    float32 = onnx.TensorProto.FLOAT
    graph = helper.make_graph(
        nodes,
        trained.spec.name,
        [helper.make_tensor_value_info("images", float32, ["batch", *trained.spec.input_shape])],
        [helper.make_tensor_value_info("outputs", float32, ["batch", trained.spec.outputs])],
        [numpy_helper.from_array(array.astype(np.float32), name) for name, array in trained.weights.items()],
    )
    model = helper.make_model(
        graph, opset_imports=[helper.make_opsetid("", OPSET)], ir_version=IR_VERSION, producer_name="horovod-twins"
    )
    helper.set_model_props(model, {"use": description(trained), "classes": ", ".join(trained.data.class_names)})
    onnx.checker.check_model(model)
    onnx.save(model, file)


def _operator(layer: Layer) -> tuple[str, dict[str, Any]]:
    """Return the name of a layer's operator and its attributes."""
    match layer:
        case SlidingWindow():
            kind = "Conv" if isinstance(layer, Convolution) else "MaxPool"
            sides = {"kernel_shape": [layer.kernel] * 2, "strides": [layer.stride] * 2, "pads": [layer.padding] * 4}
            return kind, sides
        case BatchNorm():
            return "BatchNormalization", {"epsilon": layer.epsilon}
        case Activation():
            return {"relu": "Relu", "sigmoid": "Sigmoid"}[layer.function], {}
        case GlobalMean():
            return "ReduceMean", {"axes": [2, 3], "keepdims": 0}
        case Dense():
            return "Gemm", {"transB": 1}
    return {Flatten: "Flatten", Add: "Add"}[type(layer)], {}
