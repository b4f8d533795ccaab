"""The servers of ranks (`support/rank_server.py`): a job leaves no trace, and one that dies or hangs is named."""

import os
import random
import subprocess
import sys
import textwrap
import time
from contextlib import closing, contextmanager
from pathlib import Path

import psutil
import pytest
import rank_server
from jobs import Job, do_job, start_of, train
from processes import ROOT, TESTS, run_command
from rank_server import ADDRESS, Broker, ServerError, Start
from waiting import wait_until

from common.run_folder.records import read_run
from common.utils.process_state import ENDED, process_state

pytestmark = pytest.mark.ranks

SHORT = ["--dataset", "synthetic:1200x28x28x1x10", "--epochs", "1", "--steps-per-epoch", "3"]
RESNET34 = ["--dataset", "synthetic:48x17x19x1x3", "--epochs", "1", "--steps-per-epoch", "2", "--model", "resnet34"]
AVERAGED = ["--dtype", "float64", "--lr-scaling", "none", "--strategy", "averaging", "--average-every", "2"]
JOBS = {  # dtypes, precision, random masks, statistics, patches: what could leave a trace
    "float64": train("float64", *SHORT, "--model", "mlp", *AVERAGED),
    "dropout": train("dropout", *SHORT, "--model", "cnn", "--optimizer", "adam", "--learning-rate", "0.002"),
    "half": train("half", *RESNET34, "--batch-size", "8", "--mixed-precision", "bfloat16", patch="shallow"),
}


@pytest.fixture(scope="module")
def broker():
    """A broker of this file's own."""
    with new_broker() as own:
        yield own


@contextmanager
def new_broker():
    with pytest.MonkeyPatch.context() as patch, closing(Broker()) as own:
        patch.setenv(ADDRESS, str(own.address))
        yield own


def hash_of(job, framework, folder):
    """Return the hash of the final weights of a job on a server."""
    folder.mkdir()
    start = start_of(framework, launcher="none", arguments=job.arguments)
    outcomes = do_job(Job(job.name, job.arguments, patch=job.patch), start=start, folder=folder)
    assert [outcome.code for outcome in outcomes] == [0], outcomes
    return read_run(folder / "runs" / job.name).record.hashes.final_weights


@pytest.mark.ci
def test_jobs_in_any_order_give_the_bits_of_fresh_processes(framework, broker, tmp_path):
    fresh, started = {}, broker.started
    for name, job in JOBS.items():
        command = [sys.executable, str(TESTS / "patched_trainer.py"), framework, job.patch, *job.arguments]
        done = run_command(command, folder=tmp_path)
        assert done.code == 0, done.stderr
        fresh[name] = read_run(tmp_path / "runs" / name).record.hashes.final_weights
    assert len(set(fresh.values())) == len(fresh)
    order = [*JOBS, *JOBS, *JOBS]
    random.Random(7).shuffle(order)
    for number, name in enumerate(order):
        assert hash_of(JOBS[name], framework, tmp_path / str(number)) == fresh[name], (name, order[:number])
    assert broker.started == started + 1


LEAK = """
from common.task import schedule

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


OWN_NUMBER = "return os.getpid()"


def call(tmp_path, body, *, seconds=60.0, **start):
    """Let PyTorch's ranks call a function with this body; return what each returns."""
    script = tmp_path / "script.py"
    script.write_text(f"import os, signal, time\n\ndef call():\n{textwrap.indent(body, '    ')}\n")
    job = Job("the job", (), program=f"{script}:call", seconds=seconds)
    return [outcome.value for outcome in do_job(job, start=Start("torch", **start), folder=tmp_path)]


def test_a_job_that_kills_its_rank_is_named_and_the_next_one_has_a_new_server(broker, tmp_path):
    (first,) = call(tmp_path, OWN_NUMBER)
    with pytest.raises(ServerError, match=r"torch on none: the server of ranks died in the job the job"):
        call(tmp_path, "os.kill(os.getpid(), signal.SIGKILL)")
    assert call(tmp_path, OWN_NUMBER) != [first]


@pytest.mark.ci
def test_a_job_leaves_no_variable_folder_or_signal_behind(broker, tmp_path):
    state = "return [sorted(os.environ.items()), os.getcwd(), str(signal.getsignal(signal.SIGINT))]"
    before = call(tmp_path, state)
    call(tmp_path, "os.environ['LEFT'] = '1'; os.chdir('/'); signal.signal(signal.SIGINT, signal.SIG_IGN)")
    assert call(tmp_path, state) == before


def wake_ups(process):
    """Return how often the threads of a process have gone to sleep, not how often others were given their core."""
    switches = Path(f"/proc/{process}/task").glob("*/status")
    return sum(
        int(line.split()[1])
        for path in switches
        for line in path.read_text().splitlines()
        if line.startswith("voluntary_ctxt")
    )


@pytest.mark.ci
def test_an_idle_server_takes_no_time_of_a_core(broker, tmp_path):
    """Horovod's thread looks for work of other ranks now and then, once a job has started it."""
    do_job(JOBS["float64"], start=Start("torch", launcher="mpirun2"), folder=tmp_path)
    ranks = [psutil.Process(number) for number in call(tmp_path, OWN_NUMBER, launcher="mpirun2")]

    def are_idle():  # once they have cleaned up after the job, for which they wait for each other
        before = [wake_ups(rank.pid) for rank in ranks]
        time.sleep(0.2)
        return all(wake_ups(rank.pid) - woken < 20 for rank, woken in zip(ranks, before, strict=True))

    wait_until(are_idle)
    before = [(time.monotonic(), wake_ups(rank.pid), sum(rank.cpu_times()[:2])) for rank in ranks]
    time.sleep(3)
    for rank, (start, woken, used) in zip(ranks, before, strict=True):
        now_woken, now_used, seconds = wake_ups(rank.pid), sum(rank.cpu_times()[:2]), time.monotonic() - start
        assert now_woken - woken < 100 * seconds  # a thread that looks every millisecond does so 1,000 times a second
        assert now_used - used < 3 / 2  # one that never sleeps uses all 3 s


@pytest.mark.ci
def test_a_job_that_hangs_is_ended_with_all_its_ranks_and_named(broker, tmp_path):
    ranks = call(tmp_path, OWN_NUMBER, launcher="mpirun2")
    with pytest.raises(ServerError, match=r"mpirun2: the server of ranks hung: the job the job took more than 1 s"):
        call(tmp_path, "time.sleep(1000)", seconds=1.0, launcher="mpirun2")
    wait_until(lambda: all(process_state(rank) in ENDED for rank in ranks))


@pytest.mark.ci
def test_an_error_that_is_no_users_is_shown_with_its_traceback(broker, tmp_path):
    """Of one rank, for which the other waits."""
    body = "1 / 0 if os.environ['OMPI_COMM_WORLD_RANK'] == '1' else time.sleep(1000)"
    with pytest.raises(ServerError, match=r"(?s)the job of torch on mpirun2 failed.*ZeroDivisionError"):
        call(tmp_path, body, launcher="mpirun2", seconds=300.0)


@pytest.mark.ci
def test_an_idle_server_whose_ranks_cannot_sleep_is_ended(broker, monkeypatch, tmp_path):
    """With process sets, as models in parts have."""
    monkeypatch.setattr(rank_server, "WAKEFUL_SECONDS", 0.2)
    others = call(tmp_path, OWN_NUMBER)
    ranks = call(tmp_path, OWN_NUMBER, launcher="mpirun2", parts=2)
    wait_until(lambda: all(process_state(rank) in ENDED for rank in ranks))
    assert call(tmp_path, OWN_NUMBER) == others


@pytest.mark.ci
def test_the_server_that_is_idle_longest_makes_room(monkeypatch, tmp_path):
    monkeypatch.setattr(rank_server, "MOST_LIVE", 2)
    with new_broker() as broker:
        first, second, _ = (call(tmp_path, OWN_NUMBER, replicas=number) for number in (1, 2, 3))
        wait_until(lambda: process_state(first[0]) in ENDED)
        assert call(tmp_path, OWN_NUMBER, replicas=2) == second and broker.started == 3


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
    wait_until(lambda: process_state(int(done.stdout)) in ENDED)
