"""One rank of a server (`rank_server.py`): does jobs until the server is ended.

`rank_worker.py SOCKET SERVER START`, with the `Start` in JSON. A job leaves nothing behind for the next one (`Traces`),
but for MPI and Horovod, which cannot be started again with the variables that trainers set.
"""

import contextlib
import gc
import hashlib
import importlib
import io
import json
import os
import random
import runpy
import signal
import socket
import sys
import threading
import traceback
from pathlib import Path
from types import SimpleNamespace

import numpy as np
from patches import PATCHES

from common.data.batches import normalize
from common.data.loading import load_dataset
from common.distributed.launchers import launcher_rank
from common.trained.trained_model import read_trained_model
from common.watchdog.watch import stop_watch

OUTPUTS = 20
SIGNALS = (signal.SIGINT, signal.SIGTERM)


def import_framework(start):
    """Import a framework as its trainer does.

    TensorFlow takes its threads and devices before its first operation, and a job that is refused may end before it
    has set them: here they are set first.
    """
    framework = start["framework"]
    if framework == "keras":
        sys.argv = [sys.argv[0], "--onednn", start["onednn"]]
        importlib.import_module("keras_impl.quiet_tensorflow")
        del sys.argv[1:]
        config = importlib.import_module("tensorflow").config
        config.threading.set_intra_op_parallelism_threads(start["threads"])
        config.threading.set_inter_op_parallelism_threads(start["threads"])
    importlib.import_module(f"{framework}_impl.train")


def reset_torch():
    torch = importlib.import_module("torch")
    torch.set_default_dtype(torch.float32)
    torch.manual_seed(0)
    torch.set_grad_enabled(True)
    if "torch._dynamo" in sys.modules:
        torch.compiler.reset()  # it refuses to compile a function more than a few times


def reset_keras():
    keras = importlib.import_module("keras")
    keras.config.set_floatx("float32")
    keras.config.set_image_data_format("channels_last")
    keras.config.set_dtype_policy("float32")
    keras.config.enable_traceback_filtering()
    keras.utils.clear_session(free_memory=False)  # names as in a new process
    keras.utils.set_random_seed(0)


RESET = {"torch": reset_torch, "keras": reset_keras}


class Traces:
    """What a job may leave in a process, as it was before the first one."""

    def __init__(self, framework):
        self._reset_framework = RESET[framework]
        self.variables = dict(os.environ)
        self.folder = Path.cwd()
        self.signals = {number: signal.getsignal(number) for number in SIGNALS}
        self.words, self.paths, self.hook = list(sys.argv), list(sys.path), sys.excepthook

    def remove(self):
        stop_watch()
        os.chdir(self.folder)
        for name in os.environ.keys() - self.variables.keys():
            del os.environ[name]
        os.environ.update(self.variables)
        pipe = signal.set_wakeup_fd(-1)
        if pipe != -1:
            os.close(pipe)  # which ends the thread that waits for signals
        for number, handler in self.signals.items():
            signal.signal(number, handler)
        sys.argv, sys.path, sys.excepthook = list(self.words), list(self.paths), self.hook
        random.seed(0)
        np.random.seed(0)
        self._reset_framework()
        gc.collect()


def folder_hash(folder):
    """Return a hash of the names and bytes of all files in a folder."""
    whole = hashlib.blake2b(digest_size=16)
    for file in sorted(folder.rglob("*")):
        whole.update(str(file.relative_to(folder)).encode())
        whole.update(file.read_bytes() if file.is_file() else b"")
    return whole.hexdigest()


def outputs_of(framework, run):
    """Return the linear outputs of a run's model for the first test images, as this framework computes them."""
    model = read_trained_model(Path(run))
    images = load_dataset(model.config.data.dataset).test.images[:OUTPUTS]
    build = importlib.import_module(f"{framework}_impl.predict").build_classifier
    return build(model)(normalize(images, model.table(images.dtype))).tolist()


def function_of(program):
    """Return the function of "module:function", or of a script's path in the place of the module."""
    module, name = program.rsplit(":", 1)
    functions = runpy.run_path(module) if module.endswith(".py") else vars(importlib.import_module(module))
    return functions[name]


def run_program(framework, program, arguments):
    """Run a program of a framework, or a function `module:function` with the arguments; return its code and value."""
    if program == "outputs":
        return SimpleNamespace(code=0, value=outputs_of(framework, *arguments))
    if ":" in program:
        return SimpleNamespace(code=0, value=function_of(program)(*arguments))
    return SimpleNamespace(code=importlib.import_module(f"{framework}_impl.{program}").main(arguments), value=None)


def do(framework, job):
    """Do a job; return its exit code, all that it printed, and what else it asks for."""
    os.chdir(job["folder"])
    os.environ.update(job["variables"])
    watched = Path(job["watch"]) if job["watch"] else None
    before = folder_hash(watched) if watched else None
    stdout, stderr, done = io.StringIO(), io.StringIO(), SimpleNamespace(code=1, value=None)
    with contextlib.ExitStack() as patches:
        patches.enter_context(contextlib.redirect_stdout(stdout))
        patches.enter_context(contextlib.redirect_stderr(stderr))
        for name in job["patch"].split("+"):
            patches.enter_context(PATCHES[name](framework))
        try:
            done = run_program(framework, job["program"], job["arguments"])
        except SystemExit as stop:
            done.code = int(stop.code or 0)
        except Exception:  # a bug: the test shows its traceback
            stderr.write(traceback.format_exc())
    return {
        "code": done.code,
        "stdout": stdout.getvalue(),
        "stderr": stderr.getvalue(),
        "value": done.value,
        "untouched": before == folder_hash(watched) if watched else None,
        "ends_server": done.code == 1,  # other ranks may wait for this one
    }


def main():
    """Do jobs until the broker ends the connection."""
    address, server, start = sys.argv[1], int(sys.argv[2]), json.loads(sys.argv[3])
    framework = start["framework"]
    sys.argv = [sys.argv[0]]
    threading.excepthook = lambda args: (
        None if isinstance(args.exc_value, IndexError) else sys.__excepthook__(*args[:3])
    )
    import_framework(start)
    traces = Traces(framework)
    gc.freeze()
    connection = socket.socket(socket.AF_UNIX)
    connection.connect(address)
    with connection.makefile("rw") as broker:
        hello = {"server": server, "rank": launcher_rank(os.environ), "process": os.getpid()}
        print(json.dumps(hello), file=broker, flush=True)
        for line in broker:
            outcome = do(framework, json.loads(line))
            # TensorFlow takes its collective operations before its first operation, and a job that is refused leaves
            # them out.
            if start["multiworker"] and not importlib.import_module("keras_impl.strategies.native")._OF_PROCESS:
                outcome["ends_server"] = True
            if not outcome["ends_server"]:
                traces.remove()
            print(json.dumps(outcome), file=broker, flush=True)


if __name__ == "__main__":
    try:
        main()
    finally:
        os._exit(0)  # neither MPI nor a framework has anything left to do
