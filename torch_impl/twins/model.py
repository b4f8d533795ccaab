"""Runs a PyTorch model with random arrays, in both modes, and trains it; writes down what it computes."""

import zlib
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from torch import nn

from common.errors import UserError
from common.twins.adamw import AdamW
from common.twins.arrays import fingerprint
from common.twins.contract import Pair, targets, users_code
from common.twins.trace import ArrayFolder, Dropout
from torch_impl.twins.recorder import Origin, Recorder, named_arrays

# Some biases are so large that functions such as ReLU6 and hard swish reach all their parts.
FAR, FAR_SHARE = 7.0, 0.15


def checked_model(pair: Pair) -> nn.Module:
    """Return the model in float64 with random arrays.

    Raises:
        UserError: it is none, or cannot be used.
    """
    model = pair.build("torch")
    if not isinstance(model, nn.Module):
        raise UserError(
            f"torch_model() returns an nn.Module. Received: {type(model).__name__} from {pair.place}. Return one"
        )
    if any(isinstance(one, torch.jit.ScriptModule) for one in model.modules()):
        raise UserError(f"a scripted model shows no functions. Received: {type(model).__name__}. Return it unscripted")
    with users_code("torch_model()", pair.place):
        model = model.to("cpu", torch.float64)
        if any(isinstance(one, nn.parameter.UninitializedParameter) for one in model.parameters()):
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
    scales = {
        id(one)
        for module in model.modules()
        if "Norm" in type(module).__name__
        for name, one in module.named_parameters(recurse=False)
        if name == "weight"
    }
    parameters = {id(one) for one in model.parameters()}
    with torch.no_grad():
        for name, tensor in named_arrays(model):
            generator = np.random.default_rng(zlib.crc32(name.encode()))
            if id(tensor) in scales or name.endswith("running_var"):
                values = generator.uniform(0.5, 1.5, tensor.shape)
            elif name.endswith("running_mean"):
                values = generator.normal(0, 0.2, tensor.shape)
            elif id(tensor) in parameters and tensor.ndim <= 1:
                values = generator.normal(0, 0.2, tensor.shape)
                far = generator.random(tensor.shape) < FAR_SHARE
                values[far] = generator.choice([-FAR, FAR], int(far.sum()))
            elif id(tensor) in parameters:
                values = generator.standard_normal(tensor.shape)
                values *= (1.4 / np.prod(tensor.shape[1:])) ** 0.5
            else:
                continue  # a table of the user's
            tensor.copy_(torch.from_numpy(values))


def aliases(model: nn.Module) -> dict[str, str]:
    """Return further names of parameters that have two."""
    first: dict[int, str] = {}
    named = model.named_parameters(remove_duplicate=False)
    return {name: own for name, one in named if (own := first.setdefault(id(one), name)) != name}


class Run:
    """One model, run in both modes and trained."""

    def __init__(self, model: nn.Module, *, pair: Pair, arrays: ArrayFolder) -> None:
        self.model, self.pair, self.arrays = model, pair, arrays
        self.dropouts: list[Dropout] = []
        self.always: list[str] = []  # that drop in inference, too
        self.results: dict[str, int] = {}  # mode -> number of the call that made the output
        self._last: Any = None
        for name, one in named_arrays(model):
            arrays[f"weights/{name}"] = one.detach().numpy()
        self._rates = self._switch_off_stochastic_depth()

    def _switch_off_stochastic_depth(self) -> dict[str, float]:
        """Set what drops whole branches to 0; return the rates. The recorder switches off other dropout."""
        rates = {}
        for name, module in self.model.named_modules():
            if type(module).__name__ in ("StochasticDepth", "DropPath"):
                for attribute in ("p", "drop_prob"):
                    if isinstance(getattr(module, attribute, None), float):
                        rates[name] = getattr(module, attribute)
                        setattr(module, attribute, 0.0)
        return rates

    def _output(self, number: int, recorder: Recorder) -> torch.Tensor:
        samples = batch_of(self.pair, number)
        samples._twins = Origin(-1, None)  # type: ignore[attr-defined]
        with users_code("torch_model()'s forward", self.pair.place), recorder:
            return checked_output(self.model(samples))

    def forward(self, mode: str) -> list[Any]:
        """Run the first batch; return the calls. Inputs, outputs and statistics go into the folder."""
        self.model.train(mode == "training")
        recorder = Recorder(self.model, arrays=self.arrays, mode=mode)
        hooks = [
            module.register_forward_pre_hook(self._note_branch(name))
            for name, module in self.model.named_modules()
            if name in self._rates and mode == "training"
        ]
        output = self._output(0, recorder)
        recorder.close()
        for hook in hooks:
            hook.remove()
        if mode == "inference":
            self.always = [one.layer for one in recorder.dropouts]
        else:
            self.dropouts += [replace(one, always=one.layer in self.always) for one in recorder.dropouts]
        self.results[mode] = getattr(output, "_twins", Origin(-1, None)).order
        self.arrays[f"{mode}/output"] = output.detach().numpy()
        self._last = (output.detach().numpy().copy(), recorder.random)
        if not np.isfinite(output.detach().numpy()).all():
            raise UserError(
                f"PyTorch's model returns what is no number. Received: NaN or infinity in {mode} with random arrays, "
                f"in {self.pair.place}. Check divisions, roots and logarithms"
            )
        if mode == "training":
            for name, one in named_arrays(self.model):
                if "running_" in name:
                    self.arrays[f"statistics/{name}"] = one.detach().numpy()
        return recorder.calls

    def _note_branch(self, name: str) -> Any:
        def note(module: nn.Module, arguments: Any) -> None:
            print_ = fingerprint(arguments[0].detach().numpy())
            self.dropouts.append(Dropout(layer=name, rate=self._rates[name], input=print_))

        return note

    def train(self, *, updates: int) -> list[float]:
        """Write the gradients of the first batch; make updates; return their losses."""
        for name, one in self.model.named_buffers():  # as they were before the recorded pass in training mode
            if one.is_floating_point():
                one.copy_(torch.from_numpy(self.arrays[f"weights/{name}"].copy()))
        optimizer, losses = AdamW(updates=updates), []
        for number in range(updates):
            recorder = Recorder(self.model, arrays=None, mode="training")
            output = self._output(number, recorder)
            recorder.close()
            if number == 0:
                self._check_repeated(output)
            loss = ((output - torch.from_numpy(targets(tuple(output.shape), number))) ** 2).mean()
            self.model.zero_grad(set_to_none=True)
            if loss.requires_grad:
                with users_code("the backward pass of torch_model()", self.pair.place):
                    loss.backward()
            losses.append(loss.item())
            optimizer.start_update()
            for name, one in self.model.named_parameters():
                if one.grad is None:
                    continue
                if number == 0:
                    self.arrays[f"gradients/{name}"] = one.grad.numpy()
                weights = np.ascontiguousarray(one.detach().numpy())
                optimizer.update(name, weights, np.ascontiguousarray(one.grad.numpy()))
                one.detach().copy_(torch.from_numpy(weights))
                one.grad = None
        for name, one in named_arrays(self.model):
            self.arrays[f"trained/{name}"] = one.detach().numpy()
        return losses

    def _check_repeated(self, output: torch.Tensor) -> None:
        """Raise UserError if the same batch had other outputs in the last pass."""
        before, drawn = self._last
        if not np.array_equal(before, output.detach().numpy()):
            raise UserError(
                "PyTorch's model draws random numbers outside dropout. Received: two passes of the same batch that "
                f"differ{': ' + drawn[0] if drawn else ''}, in {self.pair.place}. Leave them out for the comparison"
            )


def checked_output(output: Any) -> torch.Tensor:
    """Return the output.

    Raises:
        UserError: it is not one floating tensor.
    """
    if not isinstance(output, torch.Tensor):
        number = f" of {len(output)}" if isinstance(output, tuple | list | dict) else ""
        raise UserError(
            f"a model returns one tensor. Received: a {type(output).__name__}{number} from PyTorch's model. Return the "
            "tensor that is compared, such as the logits"
        )
    if output.dtype is not torch.float64:
        raise UserError(
            f"models are compared in float64. Received: {output.dtype} from PyTorch's model. Leave out casts"
        )
    return output
