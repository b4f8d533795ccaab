"""The servers of ranks (`support/rank_server.py`): a job leaves no trace, and one that dies or hangs is named."""

import contextlib
import os
import random
import subprocess
import sys
import textwrap
import time
from pathlib import Path

import psutil
import pytest
import rank_server
from jobs import Job, do_job, start_of, train
from processes import ROOT, TESTS, run_command
from rank_server import ADDRESS, MOST_LIVE, Broker, ServerError, Start

from common.run_folder.records import read_run

pytestmark = pytest.mark.ranks

SHORT = ["--dataset", "synthetic:1200x28x28x1x10", "--epochs", "1", "--steps-per-epoch", "3"]
RESNET34 = ["--dataset", "synthetic:48x17x19x1x3", "--epochs", "1", "--steps-per-epoch", "2", "--model", "resnet34"]
JOBS = {  # dtypes, precision, random masks, statistics, patches, settings that are refused: what could leave a trace
    "float64": train("float64", *SHORT, "--model", "mlp", "--dtype", "float64", "--lr-scaling", "none"),
    "dropout": train("dropout", *SHORT, "--model", "cnn", "--optimizer", "adam", "--learning-rate", "0.002"),
    "bfloat16": train("bfloat16", *SHORT, "--model", "mlp", "--mixed-precision", "bfloat16"),
    "resnet34": train("resnet34", *RESNET34, "--batch-size", "8", patch="shallow"),
    "averaging": train("averaging", *SHORT, "--model", "mlp", "--strategy", "averaging", "--average-every", "2"),
    "unscaled": train("unscaled", *SHORT, "--model", "mlp", "--lr-scaling", "linear", patch="unscaled"),
}


@pytest.fixture
def broker(monkeypatch):
    """A broker of this test's own."""
    monkeypatch.delenv(ADDRESS, raising=False)
    own = Broker()
    monkeypatch.setenv(ADDRESS, str(own.address))
    yield own
    own.close()


def weights_hash(folder, name):
    return read_run(folder / "runs" / name).record.hashes.final_weights


def hash_of(job, framework, folder):
    """Return the hash of the final weights of a job on a server."""
    folder.mkdir()
    start = start_of(framework, launcher="none", arguments=job.arguments)
    outcomes = do_job(Job(job.name, job.arguments, patch=job.patch), start=start, folder=folder)
    assert [outcome.code for outcome in outcomes] == [0], outcomes
    return weights_hash(folder, job.name)


@pytest.mark.ci
def test_jobs_in_any_order_give_the_bits_of_fresh_processes(framework, broker, tmp_path):
    fresh = {}
    for name, job in JOBS.items():
        command = [sys.executable, str(TESTS / "patched_trainer.py"), framework, job.patch, *job.arguments]
        done = run_command(command, folder=tmp_path)
        assert done.code == 0, done.stderr
        fresh[name] = weights_hash(tmp_path, name)
    assert len(set(fresh.values())) == len(fresh) - 1  # one rank is scaled by 1
    order = [*JOBS, *JOBS]
    random.Random(7).shuffle(order)
    for number, name in enumerate(order):
        assert hash_of(JOBS[name], framework, tmp_path / str(number)) == fresh[name], (name, order[:number])
    assert broker.started == 1


LEAK = """
from common.training import schedule

def leave():
    schedule.scale_factor = lambda name, *, size: 3.0
"""


@pytest.mark.ci
def test_a_trace_that_a_job_leaves_changes_the_bits_of_the_next(broker, tmp_path):
    """Else the proof above would show nothing: here a job leaves another learning rate behind."""
    before = hash_of(JOBS["dropout"], "torch", tmp_path / "before")
    leak = tmp_path / "leak.py"
    leak.write_text(LEAK)
    do_job(Job("leak", (), program=f"{leak}:leave"), start=Start("torch"), folder=tmp_path)
    assert hash_of(JOBS["dropout"], "torch", tmp_path / "after") != before


def call(tmp_path, body, *, seconds=60.0, launcher="none"):
    """Let PyTorch's ranks call a function with this body."""
    script = tmp_path / "script.py"
    script.write_text(f"import os, signal, time\n\ndef call():\n{textwrap.indent(body, '    ')}\n")
    job = Job("the job", (), program=f"{script}:call", seconds=seconds)
    return do_job(job, start=Start("torch", launcher), folder=tmp_path)


def test_a_job_that_kills_its_rank_is_named_and_the_next_one_has_a_new_server(broker, tmp_path):
    (first,) = call(tmp_path, "return os.getpid()")
    with pytest.raises(ServerError, match=r"torch on none: the server of ranks died in the job the job"):
        call(tmp_path, "os.kill(os.getpid(), signal.SIGKILL)")
    (second,) = call(tmp_path, "return os.getpid()")
    assert first.value != second.value and broker.started == 2


@pytest.mark.ci
def test_a_job_that_hangs_is_ended_with_all_its_ranks_and_named(broker, tmp_path):
    ranks = [outcome.value for outcome in call(tmp_path, "return os.getpid()", launcher="mpirun2")]
    with pytest.raises(ServerError, match=r"mpirun2: the server of ranks hung: the job the job took more than 1 s"):
        call(tmp_path, "time.sleep(1000)", seconds=1.0, launcher="mpirun2")
    _, alive = psutil.wait_procs([psutil.Process(rank) for rank in ranks if psutil.pid_exists(rank)], timeout=30)
    assert not [process for process in alive if process.status() != psutil.STATUS_ZOMBIE]


@pytest.mark.ci
def test_an_error_that_is_no_users_is_shown_with_its_traceback(broker, tmp_path):
    """Of one rank, for which the other waits."""
    body = "1 / 0 if os.environ['OMPI_COMM_WORLD_RANK'] == '1' else time.sleep(1000)"
    with pytest.raises(ServerError, match=r"(?s)the job of torch on mpirun2 failed.*ZeroDivisionError"):
        call(tmp_path, body, launcher="mpirun2", seconds=300.0)


@pytest.mark.ci
def test_a_job_leaves_no_variable_folder_or_signal_behind(broker, tmp_path):
    state = "return [sorted(os.environ.items()), os.getcwd(), str(signal.getsignal(signal.SIGINT))]"
    (before,) = call(tmp_path, state)
    call(tmp_path, "os.environ['LEFT'] = '1'; os.chdir('/'); signal.signal(signal.SIGINT, signal.SIG_IGN)")
    (after,) = call(tmp_path, state)
    assert before.value == after.value


def wake_ups(process):
    """Return how often the threads of a process have been given a core."""
    switches = Path(f"/proc/{process}/task").glob("*/status")
    return sum(int(line.split()[1]) for path in switches for line in path.read_text().splitlines() if "ctxt_sw" in line)


@pytest.mark.ci
def test_an_idle_server_takes_no_time_of_a_core(broker, tmp_path):
    """Horovod's thread looks for work of other ranks now and then, once a job has started it."""
    job = JOBS["float64"]
    start = start_of("torch", launcher="mpirun2", arguments=job.arguments)
    do_job(job, start=start, folder=tmp_path)
    ranks = [psutil.Process(o.value) for o in call(tmp_path, "return os.getpid()", launcher="mpirun2")]
    before = [(wake_ups(rank.pid), sum(rank.cpu_times()[:2])) for rank in ranks]
    time.sleep(3)
    for rank, (switches, seconds) in zip(ranks, before, strict=True):
        assert wake_ups(rank.pid) - switches < 3 * 100  # a thread that looks every millisecond does so 3,000 times
        assert sum(rank.cpu_times()[:2]) - seconds < 3 / 2  # one that never sleeps uses all 3 s


@pytest.mark.ci
def test_an_idle_server_whose_ranks_cannot_sleep_is_ended(broker, monkeypatch, tmp_path):
    """With process sets, as models in parts have."""
    monkeypatch.setattr(rank_server, "WAKEFUL_SECONDS", 0.2)
    script = tmp_path / "script.py"
    script.write_text("import os\n\ndef call():\n    return os.getpid()\n")
    job = Job("where", (), program=f"{script}:call")
    for parts, is_ended in ((2, True), (1, False)):
        ranks = do_job(job, start=Start("torch", launcher="mpirun2", parts=parts), folder=tmp_path)
        _, alive = psutil.wait_procs([psutil.Process(rank.value) for rank in ranks], timeout=30 if is_ended else 1)
        assert (not alive) == is_ended


@pytest.mark.ci
def test_the_server_that_is_idle_longest_makes_room(broker, tmp_path):
    state = "return os.getpid()"
    script = tmp_path / "script.py"
    script.write_text(f"import os\n\ndef call():\n    {state}\n")
    job = Job("where", (), program=f"{script}:call")
    starts = [Start("torch", timeline=bool(n % 2), replicas=1 + n // 2) for n in range(MOST_LIVE + 1)]  # all differ
    first = do_job(job, start=starts[0], folder=tmp_path)[0].value
    for start in starts[1:]:
        do_job(job, start=start, folder=tmp_path)
    assert broker.started == MOST_LIVE + 1
    with contextlib.suppress(psutil.NoSuchProcess):
        assert psutil.Process(first).wait(timeout=30) is None
    do_job(job, start=starts[-1], folder=tmp_path)
    assert broker.started == MOST_LIVE + 1
    do_job(job, start=starts[0], folder=tmp_path)
    assert broker.started == MOST_LIVE + 2


@pytest.mark.ci
def test_ranks_end_when_the_broker_does_not_say_goodbye(tmp_path):
    """As where pytest is killed: an idle rank sees the end of its connection."""
    script = tmp_path / "broker.py"
    script.write_text(
        "import os, signal, sys\n"
        "from rank_server import ADDRESS, Broker, Start, do\n"
        "broker = Broker(); os.environ[ADDRESS] = str(broker.address)\n"
        "job = dict(name='j', arguments=[], program='os:getpid', patch='', watch='', folder='.', variables={})\n"
        "print(do(Start('torch'), job, seconds=60)[0]['value'], flush=True)\n"
        "os.kill(os.getpid(), signal.SIGKILL)\n"
    )
    variables = {name: value for name, value in os.environ.items() if name != ADDRESS}
    variables["PYTHONPATH"] = f"{ROOT}{os.pathsep}{TESTS}"
    done = subprocess.run([sys.executable, str(script)], env=variables, capture_output=True, text=True, check=False)
    with contextlib.suppress(psutil.NoSuchProcess):
        psutil.Process(int(done.stdout)).wait(timeout=30)
    assert not psutil.pid_exists(int(done.stdout)) or psutil.Process(int(done.stdout)).status() == "zombie"
