"""What only a process with PyTorch can try: see tests/support/frameworks.py."""

import sys
from dataclasses import replace

import numpy as np
import torch
from fake_ranks import alone
from frameworks import run_checks

from common.config import Config, DeviceConfig, OptimizerConfig, ScheduleConfig
from common.training.schedule import learning_rates
from torch_impl import distributed
from torch_impl.optimizers import build_optimizer
from torch_impl.train import main

RULES = {
    "sgd": (torch.optim.SGD, {"momentum": 0.9}),
    "adam": (torch.optim.Adam, {"betas": (0.9, 0.999), "eps": 1e-8}),
    "adamw": (torch.optim.AdamW, {"betas": (0.9, 0.999), "eps": 1e-8}),
    "rmsprop": (torch.optim.RMSprop, {"alpha": 0.99, "eps": 1e-8}),
}


def updated(rule, *, ours):
    """Return the weights of a layer after some updates, by our optimizer or by PyTorch's own."""
    torch.manual_seed(1)
    model = torch.nn.Linear(5, 3)
    if ours:
        config = replace(Config(), optimizer=OptimizerConfig(optimizer=rule, weight_decay=0.125))
        optimizer = build_optimizer(model, config, learning_rates=np.array([0.01]))
    else:
        kind, settings = RULES[rule]
        optimizer = kind(model.parameters(), lr=0.01, weight_decay=0.125, **settings)
    for _ in range(4):
        optimizer.zero_grad()
        (model(torch.ones(2, 5)) ** 2).sum().backward()
        optimizer.step()
        optimizer.load_state_dict(optimizer.state_dict())
    return model.weight.tolist()


def check_optimizers_compute_what_pytorchs_own_do_and_no_run_loads_its_compiler(folder):
    data = ["--model", "mlp", "--dataset", "synthetic:64x28x28x1x10", "--max-steps", "1"]
    main([*data, "--runs-folder", str(folder)])
    weights = {rule: updated(rule, ours=True) for rule in RULES}
    assert "torch._dynamo" not in sys.modules, "no optimizer here needs it"
    assert weights == {rule: updated(rule, ours=False) for rule in RULES}


def check_settings_of_gpus_reach_pytorch(folder):
    cudnn, products = torch.backends.cudnn, torch.backends.cuda.matmul
    for is_tried in (True, False):
        distributed.pin_device(DeviceConfig(device="cpu", cudnn_benchmark=is_tried, tf32=is_tried), alone())
        # On a GPU, other algorithms add in another order each time: no training would repeat bit for bit.
        assert (cudnn.benchmark, cudnn.deterministic) == (is_tried, not is_tried)
        assert {cudnn.conv.fp32_precision, products.fp32_precision} == {"tf32" if is_tried else "ieee"}


BASE, STEPS, STEPS_PER_EPOCH, DECAY_STEPS = 0.01, 40, 8, 16


def rates_of_pytorch(*, decay, size, warmup_steps):
    """Return the rates of a linear warm-up from the base to `size` times it, then a decay, by PyTorch's schedulers."""
    schedulers = torch.optim.lr_scheduler
    optimizer = torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=BASE * size)
    start = (1 + (size - 1) / warmup_steps) / size
    ramp = schedulers.LinearLR(optimizer, start_factor=start, end_factor=1.0, total_iters=warmup_steps - 1)
    if decay == "cosine":
        after = schedulers.CosineAnnealingLR(optimizer, T_max=STEPS - warmup_steps)
    else:
        after = schedulers.StepLR(optimizer, step_size=DECAY_STEPS, gamma=0.1)
    both = schedulers.SequentialLR(optimizer, [ramp, after], milestones=[warmup_steps])
    rates = []
    for _ in range(STEPS):
        rates.append(optimizer.param_groups[0]["lr"])
        optimizer.step()
        both.step()
    return rates


def check_learning_rates_are_those_of_pytorchs_schedulers(folder):
    for decay, size, warmup_steps in (("cosine", 4, 8), ("step", 4, 8), ("cosine", 2, 20)):
        schedule = ScheduleConfig(
            warmup_epochs=warmup_steps / STEPS_PER_EPOCH,
            decay=decay,
            decay_epochs=DECAY_STEPS / STEPS_PER_EPOCH,
            decay_factor=0.1,
        )
        ours = learning_rates(schedule, base=BASE, size=size, steps=STEPS, steps_per_epoch=STEPS_PER_EPOCH)
        theirs = rates_of_pytorch(decay=decay, size=size, warmup_steps=warmup_steps)
        np.testing.assert_allclose(ours, theirs, rtol=1e-12, err_msg=decay)


if __name__ == "__main__":
    run_checks(globals())
