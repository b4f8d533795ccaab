"""What is left of the models with which ranks measure before they train: see test_gradient_groups.py."""

import gc
import importlib

from common.config import config_from_dict
from common.strategies.balance import prepare_on_all_ranks

SETTINGS = {
    "data": {"dataset": "synthetic:400x28x28x1x10"},
    "model": {"model": "mlp"},
    "training": {"batch_size": 5},
    "device": {"device": "cpu", "gradient_groups": "auto"},
    "balance": {"shares": "auto"},
}


def run(framework):
    """Measure shares and gradient groups, with no other collection of garbage; return how many models are left."""
    distributed = importlib.import_module(f"{framework}_impl.distributed")
    build = importlib.import_module(f"{framework}_impl.strategies").trial
    package, name = {"torch": ("torch.nn", "Linear"), "keras": ("keras", "Model")}[framework]
    kind = getattr(importlib.import_module(package), name)
    config = config_from_dict(SETTINGS)
    comm = distributed.init(config)
    device, _ = distributed.pin_device(config.device, comm)
    gc.collect()
    before = {id(found) for found in gc.get_objects() if isinstance(found, kind)}
    gc.disable()
    try:
        setup = prepare_on_all_ranks(config, comm=comm, device=device, build=build)
    finally:
        gc.enable()
    assert setup.groups is not None and setup.groups.milliseconds
    return sum(isinstance(found, kind) and id(found) not in before for found in gc.get_objects())
