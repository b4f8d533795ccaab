"""Runs the cases of `rule_cases` with torch itself, on a server of ranks (`frameworks.results`)."""

import numpy as np
import torch
from rule_cases import BATCH_NORM_CASES, OPTIMIZER_CASES, START, STEPS, batch_norm_data, gradients

CLASSES = {
    "sgd": torch.optim.SGD,
    "adam": torch.optim.Adam,
    "adamw": torch.optim.AdamW,
    "rmsprop": torch.optim.RMSprop,
}
LAYERS = {"dense": torch.nn.BatchNorm1d, "image": torch.nn.BatchNorm2d, "one_dimensional": torch.nn.BatchNorm1d}


def optimizers(results):
    """Weights after each step and the slots at the end, for every case."""
    for name, case in OPTIMIZER_CASES.items():
        parameters = [torch.nn.Parameter(torch.from_numpy(start.copy())) for start in START]
        optimizer = CLASSES[case.rule](parameters, lr=case.base_lr, **case.settings)
        weights = []
        for step, lr in enumerate(case.learning_rates()):
            optimizer.param_groups[0]["lr"] = lr
            of_step = gradients([parameter.detach().numpy() for parameter in parameters], step)
            for parameter, gradient in zip(parameters, of_step, strict=True):
                parameter.grad = torch.from_numpy(gradient)
            optimizer.step()
            weights.append(np.concatenate([parameter.detach().numpy().ravel() for parameter in parameters]))
        results[f"{name}/weights"] = np.stack(weights)
        for index, parameter in enumerate(parameters):
            for slot, value in optimizer.state[parameter].items():
                if slot == "step":
                    assert int(value) == STEPS
                elif value is not None:
                    results[f"{name}/slot/{index}/{slot}"] = value.numpy()


def batch_norm(results):
    """Outputs, gradients and running statistics of training steps, then an inference batch; channels last."""
    for key, (kind, decay, eps) in BATCH_NORM_CASES.items():
        data = batch_norm_data(kind)
        layer = LAYERS[kind](data.gamma.size, momentum=1 - decay, eps=eps).double()
        with torch.no_grad():
            layer.weight.copy_(torch.from_numpy(data.gamma))
            layer.bias.copy_(torch.from_numpy(data.beta))
            layer.running_mean.copy_(torch.from_numpy(data.running_mean))
            layer.running_var.copy_(torch.from_numpy(data.running_variance))
        for step, (x, output_gradient) in enumerate(zip(data.x, data.output_gradient, strict=True)):
            inputs = torch.from_numpy(x).movedim(-1, 1).requires_grad_()
            layer.zero_grad()
            y = layer(inputs)
            (y * torch.from_numpy(output_gradient).movedim(-1, 1)).sum().backward()
            results[f"{key}/{step}/y"] = y.detach().movedim(1, -1).numpy()
            results[f"{key}/{step}/x_gradient"] = inputs.grad.movedim(1, -1).numpy()
            results[f"{key}/{step}/gamma_gradient"] = layer.weight.grad.numpy().copy()
            results[f"{key}/{step}/beta_gradient"] = layer.bias.grad.numpy().copy()
            results[f"{key}/{step}/running_mean"] = layer.running_mean.numpy().copy()
            results[f"{key}/{step}/running_variance"] = layer.running_var.numpy().copy()
        layer.eval()
        y = layer(torch.from_numpy(data.x[0]).movedim(-1, 1))
        results[f"{key}/inference"] = y.detach().movedim(1, -1).numpy()


def write(file):
    collected = {}
    optimizers(collected)
    batch_norm(collected)
    np.savez(file, **collected)
