"""What only a process with PyTorch can try: see tests/support/frameworks.py."""

import itertools
import os
import sys
from unittest import mock

import numpy as np
import torch
from fake_ranks import alone
from frameworks import run_checks
from patches import shallow
from reference_rules import losses

from common.checks.parity_cases import IMAGES, LOSSES, make_spec
from common.config import DeviceConfig, ModelConfig, config_from_dict
from common.model.partition import cut_into_stages
from common.task.prepare import prepare
from common.task.schedule import learning_rates
from torch_impl import distributed
from torch_impl.data import ShardedData
from torch_impl.models import build_model
from torch_impl.optimizers import build_optimizer, loss_per_sample
from torch_impl.strategies import trial_of
from torch_impl.strategies.strategy import Strategy
from torch_impl.strategies.topk import TopK
from torch_impl.train import main

RATES = np.array([0.1, 0.05, 0.025])
RULES = {
    "sgd": (torch.optim.SGD, {"momentum": 0.9}),
    "adam": (torch.optim.Adam, {"betas": (0.9, 0.999), "eps": 1e-8}),
    "adamw": (torch.optim.AdamW, {"betas": (0.9, 0.999), "eps": 1e-8}),
    "rmsprop": (torch.optim.RMSprop, {"alpha": 0.99, "eps": 1e-8}),
}


def task_of(dataset, **settings):
    """Return a run of small batches of synthetic images."""
    settings |= {"data": {"dataset": f"synthetic:{dataset}"}, "training": {"batch_size": 4}}
    return prepare(config_from_dict(settings), ranks=1)


def updated(rule, *, ours):
    """Return the weights of a layer after some updates, by our optimizer or by PyTorch's own."""
    torch.manual_seed(1)
    model = torch.nn.Linear(5, 3)
    if ours:
        config = config_from_dict({"optimizer": {"optimizer": rule, "weight_decay": 0.125}})
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


def check_losses_and_their_gradients_are_numpys(folder):
    outputs, labels = np.random.default_rng(1).normal(size=(7, 5)), np.arange(7) % 5
    for name, (loss, gradient) in losses(outputs, labels).items():
        config, model_config = LOSSES[name]
        given = torch.tensor(outputs, requires_grad=True)
        ours = loss_per_sample(given, torch.tensor(labels), config=config, model_config=model_config).mean()
        ours.backward()
        np.testing.assert_allclose(ours.item(), loss, rtol=1e-12)
        np.testing.assert_allclose(given.grad.numpy(), gradient, rtol=0, atol=1e-12)


def check_kernels_of_a_gpu_add_in_one_order_unless_cudnn_may_try_its_own(folder):
    os.environ.pop("CUBLAS_WORKSPACE_CONFIG", None)
    with mock.patch.multiple(torch.cuda, device_count=lambda: 1, set_device=lambda device: None):
        for device, is_tried in (("cpu", False), ("gpu", True), ("gpu", False)):
            distributed.pin_device(DeviceConfig(device=device, cudnn_benchmark=is_tried), alone())
            is_one_order = (device, is_tried) == ("gpu", False)
            assert torch.are_deterministic_algorithms_enabled() == is_one_order
            assert os.environ.get("CUBLAS_WORKSPACE_CONFIG") == (":4096:8" if is_one_order else None)
    assert torch.is_deterministic_algorithms_warn_only_enabled()
    assert not torch.utils.deterministic.fill_uninitialized_memory
    assert "torch._dynamo" not in sys.modules, "no run without --compile needs it"
    torch.set_deterministic_debug_mode("default")


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
        parts = (cudnn, cudnn.conv, cudnn.rnn, products)
        assert {part.fp32_precision for part in parts} == {"tf32" if is_tried else "ieee"}
        # The earlier form, in which torch.compile reads some; one that does not agree is an error.
        assert cudnn.allow_tf32 == products.allow_tf32 == is_tried
        assert torch.get_float32_matmul_precision() == ("high" if is_tried else "highest")


def check_batches_are_pinned_in_the_layout_in_which_they_go_to_the_gpu(folder):
    formats = {True: torch.channels_last, False: torch.contiguous_format}
    for channels, is_last in itertools.product((1, 3), formats):
        task = task_of(f"20x28x32x{channels}x3", device={"channels_last": is_last, "pinned_memory": True})
        batches = ShardedData(task, comm=alone(), device=torch.device("cuda"))
        batches.device = torch.device("cpu")
        pinned = []
        with mock.patch.object(torch.Tensor, "pin_memory", lambda tensor, own=pinned: own.append(tensor) or tensor):
            (images,), _ = next(batches.training(1))
        assert images.is_contiguous(memory_format=formats[is_last])
        assert images.data_ptr() == pinned[0].data_ptr(), "it was copied to memory that is not pinned"


def check_what_layers_make_of_images_keeps_their_layout(folder):
    """The weights need not have it: Horovod exchanges contiguous gradients only."""
    for name, shape in (("simplecnn", "32x32x3"), ("resnet34", "32x32x3"), ("cnn", "28x28x1")):
        task = task_of(f"8x{shape}x10", model={"model": name})
        model, kept = build_model(task.spec, task.config.model), []
        for module in model.modules():
            module.register_forward_hook(
                lambda module, inputs, outputs, kept=kept: kept.append(
                    outputs.dim() != 4 or outputs.is_contiguous(memory_format=torch.channels_last)
                )
            )
        images, _ = next(ShardedData(task, comm=alone(), device=torch.device("cpu")).training(1))
        model(images[0])
        assert all(kept) and len(kept) > 5, name


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
        epochs = {"warmup_epochs": warmup_steps / STEPS_PER_EPOCH, "decay_epochs": DECAY_STEPS / STEPS_PER_EPOCH}
        schedule = config_from_dict({"schedule": {"decay": decay, "decay_factor": 0.1, **epochs}}).schedule
        ours = learning_rates(schedule, base=BASE, size=size, steps=STEPS, steps_per_epoch=STEPS_PER_EPOCH)
        theirs = rates_of_pytorch(decay=decay, size=size, warmup_steps=warmup_steps)
        np.testing.assert_allclose(ours, theirs, rtol=1e-12, err_msg=decay)


def check_of_equal_gradients_the_first_of_each_tensor_are_sent(folder):
    task = task_of("60x28x28x1x3", model={"model": "cnn"}, strategy={"topk": 0.3})
    strategy = TopK(task, comm=alone(), device=torch.device("cpu"))
    trial_of(strategy, learning_rates=RATES)
    for weight in strategy.model.parameters():
        weight.grad = torch.ones_like(weight)
    strategy.before_update()
    for weight in strategy.model.parameters():
        count = max(1, round(0.3 * weight.numel()))
        assert weight.grad.flatten().tolist() == [1.0] * count + [0.0] * (weight.numel() - count)


def check_nothing_is_left_of_a_rehearsal(folder):
    """With float16, which runs have on GPUs only, and BatchNorm; before the first update and after some."""
    with shallow("torch"):
        task = task_of("60x17x17x1x3", model={"model": "resnet34"}, device={"mixed_precision": "float16"})
        strategy = Strategy(task, comm=alone(), device=torch.device("cpu"))
        trial = trial_of(strategy, learning_rates=RATES)
    model, optimizer, scaler = strategy.model, strategy.optimizer, strategy.scaler

    def everything():
        slots = {f"{number}.{name}": value for number, values in optimizer.state_dict()["state"].items()
                 for name, value in values.items()}  # fmt: skip
        copies = {name: value.clone() for name, value in {**model.state_dict(), **slots}.items()}
        return {**copies, "generator": torch.get_rng_state()}, scaler.state_dict()

    made = []
    optimizer.register_step_post_hook(lambda *_: made.append(1))
    for updates in (0, 2):
        if updates:
            scaler.load_state_dict({**scaler.state_dict(), "scale": 8.0, "_growth_tracker": 3})
            trial.train(updates)
        before, scale = everything()
        torch.manual_seed(updates)
        before["generator"] = torch.get_rng_state()
        made.clear()
        strategy.rehearse(trial.batches, 1)
        assert made == [1], "the first loss scale is too large for these weights, but not for the rehearsal"
        after, scale_after = everything()
        assert before.keys() == after.keys() and bool(optimizer.state) == bool(updates)
        assert all(torch.equal(before[name], after[name]) for name in before)
        assert scale_after == scale and strategy.updates_made() == 0
        assert updates or all(weight.grad is None for weight in model.parameters())


def check_every_model_and_its_stages_are_one_graph_for_the_compiler(folder):
    """The last of these checks: it loads the compiler. `forward` looks nothing up that the compiler could not know."""
    for name in IMAGES:
        spec = make_spec(name)
        for part in (spec, *cut_into_stages(spec, 2).parts):
            model = build_model(part, ModelConfig(model=name)).eval()
            inputs = torch.ones(2, *part.input_shape)
            compiled = torch.compile(model, fullgraph=True, backend="eager")
            assert torch.equal(compiled(inputs), model(inputs)), name
            torch._dynamo.reset()


if __name__ == "__main__":
    run_checks(globals())
