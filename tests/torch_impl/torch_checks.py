"""What only a process with PyTorch can try: see tests/support/frameworks.py."""

import sys
from dataclasses import replace

import numpy as np
import torch
from fake_ranks import alone
from frameworks import run_checks

from common.config import Config, DeviceConfig, OptimizerConfig, ScheduleConfig, config_from_dict
from common.measurement.timing import Phases
from common.training.run_setup import prepare_run
from common.training.schedule import learning_rates
from torch_impl import distributed
from torch_impl.data import ShardedData
from torch_impl.loop import Trainer
from torch_impl.models import build_model
from torch_impl.optimizers import build_optimizer
from torch_impl.state import TrainingState
from torch_impl.train import main

RATES = np.array([0.1, 0.05, 0.025])
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


def check_nothing_is_left_of_a_rehearsal(folder):
    """With float16, which runs have on GPUs only, and BatchNorm; before the first update and after some."""
    settings = {"model": {"model": "resnet34"}, "training": {"batch_size": 4}, "device": {"mixed_precision": "float16"}}
    setup = prepare_run(config_from_dict({"data": {"dataset": "synthetic:60x17x17x1x3"}, **settings}), size=1)
    model = build_model(setup.spec, setup.config.model)
    optimizer = build_optimizer(model, setup.config, learning_rates=RATES)
    state = TrainingState(model, optimizer, spec=setup.spec, config=setup.config)
    data = ShardedData(setup, comm=alone(), device=torch.device("cpu"))
    trainer = Trainer(state, data, learning_rates=RATES, phases=Phases())

    def everything():
        slots = {f"{number}.{name}": value for number, values in optimizer.state_dict()["state"].items()
                 for name, value in values.items()}  # fmt: skip
        copies = {name: value.clone() for name, value in {**model.state_dict(), **slots}.items()}
        return {**copies, "generator": torch.get_rng_state()}, state.scaler.state_dict()

    made = []
    optimizer.register_step_post_hook(lambda *_: made.append(1))
    for updates in (0, 2):
        trainer.start_epoch(1)
        if updates:
            state.scaler.load_state_dict({**state.scaler.state_dict(), "scale": 8.0, "_growth_tracker": 3})
            trainer.train_segment(updates)
        before, scale = everything()
        torch.manual_seed(updates)
        before["generator"] = torch.get_rng_state()
        made.clear()
        trainer.rehearse(1)
        assert made == [1], "the first loss scale is too large for these weights, but not for the rehearsal"
        after, scale_after = everything()
        assert before.keys() == after.keys() and bool(optimizer.state) == bool(updates)
        assert all(torch.equal(before[name], after[name]) for name in before)
        assert scale_after == scale and trainer.updates_done == updates
        assert updates or all(weight.grad is None for weight in model.parameters())


if __name__ == "__main__":
    run_checks(globals())
