"""Runs a PyTorch model with random arrays, in both modes, and trains it; writes down what it computes."""

import zlib
from dataclasses import replace

import numpy as np
import torch
from torch import nn

from common.errors import UserError
from common.twins.adamw import AdamW
from common.twins.contract import Pair, check_output, targets, users_code
from common.twins.records import ArrayFolder, Dropout
from torch_impl.twins.recorder import Recorder, named_arrays

# Some biases are so large that functions such as ReLU6 and hard swish reach all their parts.
FAR, FAR_SHARE = 7.0, 0.15


def checked_model(pair: Pair) -> nn.Module:
    """Return the model in float64 with random arrays.

    Raises:
        UserError: it is none, or cannot be used.
    """
    model: nn.Module = pair.build("torch", nn.Module, kind_name="an nn.Module")
    if any(isinstance(module, torch.jit.ScriptModule) for module in model.modules()):
        raise UserError(f"a scripted model shows no functions. Received: {type(model).__name__}. Return it unscripted")
    with users_code("torch_model()", pair.place):
        model = model.to("cpu", torch.float64)
        if any(isinstance(parameter, nn.parameter.UninitializedParameter) for parameter in model.parameters()):
            with torch.no_grad():  # arrays of lazy modules are made by the first batch
                model.eval()(batch_of(pair, 0))
    randomize(model)
    return model


def batch_of(pair: Pair, number: int) -> torch.Tensor:
    """Return samples as PyTorch takes them: images with channels first."""
    samples = torch.from_numpy(pair.batch(number))
    return samples.permute(0, 3, 1, 2).contiguous() if samples.ndim == 4 else samples


def randomize(model: nn.Module) -> None:
    """Fill all arrays by their names: none is zero or one, scales are near 1, variances positive."""
    norms = [module for module in model.modules() if "Norm" in type(module).__name__]
    scales = {id(module.weight) for module in norms if isinstance(getattr(module, "weight", None), nn.Parameter)}
    parameters = {id(parameter) for parameter in model.parameters()}
    with torch.no_grad():
        for name, tensor in named_arrays(model):
            generator = np.random.default_rng(zlib.crc32(name.encode()))
            if id(tensor) in scales or name.endswith("running_var"):
                values = generator.uniform(0.5, 1.5, tensor.shape)
            elif name.endswith("running_mean"):
                values = generator.normal(0, 0.2, tensor.shape)
            elif id(tensor) not in parameters:
                continue  # a table of the user's
            elif tensor.ndim <= 1:
                values = generator.normal(0, 0.2, tensor.shape)
                far = generator.random(tensor.shape) < FAR_SHARE
                values[far] = generator.choice([-FAR, FAR], int(far.sum()))
            else:
                values = generator.standard_normal(tensor.shape)
                values *= (1.4 / np.prod(tensor.shape[1:])) ** 0.5
            tensor.copy_(torch.from_numpy(values))


class Run:
    """One model, run in both modes and trained."""

    def __init__(self, model: nn.Module, *, pair: Pair, arrays: ArrayFolder) -> None:
        self.model, self.pair, self.arrays = model, pair, arrays
        self.recorders: dict[str, Recorder] = {}  # mode -> what it recorded
        for name, tensor in named_arrays(model):
            arrays[f"weights/{name}"] = tensor.detach().numpy()

    def _output(self, number: int, recorder: Recorder) -> torch.Tensor:
        with users_code("torch_model()'s forward", self.pair.place):
            output = recorder.run(self.model, batch_of(self.pair, number))
        check_output(output, "torch", tensor_kind=torch.Tensor)
        return output

    def forward(self, mode: str) -> None:
        """Run the first batch. Inputs, outputs and statistics go into the folder."""
        self.model.train(mode == "training")
        self.recorders[mode] = Recorder(self.model, arrays=self.arrays, mode=mode)
        output = self._output(0, self.recorders[mode])
        for name, tensor in named_arrays(self.model):
            if "running_" in name and mode == "training":
                self.arrays[f"statistics/{name}"] = tensor.detach().numpy()
        values = self.arrays[f"{mode}/output"] = output.detach().numpy()
        if not np.isfinite(values).all():
            raise UserError(
                f"PyTorch's model returns what is no number. Received: NaN or infinity in {mode} with random arrays, "
                f"in {self.pair.place}. Check divisions, roots and logarithms"
            )

    def dropouts(self) -> list[Dropout]:
        """Return where entries are dropped in training, and whether they are in inference, too."""
        in_inference = [dropout.layer for dropout in self.recorders["inference"].dropouts]
        return [
            replace(dropout, always=dropout.layer in in_inference) for dropout in self.recorders["training"].dropouts
        ]

    def train(self, *, updates: int) -> list[float]:
        """Write the gradients of the first batch; make updates; return their losses."""
        for name, buffer in self.model.named_buffers():  # as they were before the recorded pass in training mode
            if buffer.is_floating_point():
                buffer.copy_(torch.from_numpy(self.arrays[f"weights/{name}"].copy()))
        optimizer, losses = AdamW(updates=updates), []
        for number in range(updates):
            output = self._output(number, Recorder(self.model, arrays=None, mode="training"))
            if number == 0:
                is_equal = np.array_equal(self.arrays["training/output"], output.detach().numpy())
                self.pair.check_repeated("torch", is_equal=is_equal, random=self.recorders["training"].random)
            loss = ((output - torch.from_numpy(targets(tuple(output.shape), number))) ** 2).mean()
            if loss.requires_grad:
                with users_code("the backward pass of torch_model()", self.pair.place):
                    loss.backward()
            losses.append(loss.item())
            for name, parameter in self.model.named_parameters():
                if parameter.grad is None:
                    continue
                gradient = np.ascontiguousarray(parameter.grad.numpy())
                if number == 0:
                    self.arrays[f"gradients/{name}"] = gradient
                weights = np.ascontiguousarray(parameter.detach().numpy())
                optimizer.update(name, weights, gradient, number=number + 1)
                parameter.detach().copy_(torch.from_numpy(weights))
                parameter.grad = None
        for name, tensor in named_arrays(self.model):
            self.arrays[f"trained/{name}"] = tensor.detach().numpy()
        return losses
