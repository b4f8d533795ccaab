"""Runs jobs in turn on each rank of one start, with the wheel of `horovod_keras3` and nothing of this project.

`in_turn.py JOB...`: a job is a SCRIPT, or SCRIPT:FUNCTION, and both run in the current folder. RANK.json there has for
each job its exit code, what it printed as errors, and what the function returned or the script left as `result`.
"""

import contextlib
import functools
import importlib.util
import io
import json
import os
import runpy
import sys
import traceback
from pathlib import Path

sys.modules |= dict.fromkeys(("matplotlib", "pandas", "scipy"))  # which TensorFlow imports where they are installed

import keras  # noqa: E402
from horovod_keras3.exchange import name_anew  # noqa: E402

functions_of = functools.cache(runpy.run_path)


def run(job):
    script, _, function = job.partition(":")
    name_anew()  # a script before may have wrapped one optimizer more on one rank
    if function:
        return functions_of(script)[function]()
    keras.utils.clear_session(free_memory=False)
    return runpy.run_path(script).get("result")


def outcome_of(job):
    """Do one job; return its exit code, what it printed as errors, and its value."""
    errors, code, value = io.StringIO(), 0, None
    with contextlib.redirect_stderr(errors):
        try:
            value = run(job)
        except SystemExit as stop:
            code = stop.code
        except BaseException:
            code = 1
            traceback.print_exc()
    return code, errors.getvalue(), value


for name in ("common", "keras_impl", "launch"):
    assert importlib.util.find_spec(name) is None, f"{name} can be imported"
rank = os.environ.get("OMPI_COMM_WORLD_RANK") or os.environ["HOROVOD_RANK"]
outcomes = {}
for job in sys.argv[1:]:
    outcomes[job] = outcome_of(job)
    Path(f"{rank}.json").write_text(json.dumps(outcomes))
    if outcomes[job][0] == 1:
        os._exit(1)  # the others may wait for this rank
