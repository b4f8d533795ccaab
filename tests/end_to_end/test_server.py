"""`--strategy server` on four processes: against NumPy and all-reduce, resumed, replayed, left by workers.

One start does all runs of Keras (`trainer_worker.py`), those of PyTorch are divided between `make test` and CI: with 1,
2 or 3 servers, and so with 3, 2 or 1 workers, whose global batch is the same.
"""

import importlib.util
from pathlib import Path

import numpy as np
import pytest
from builders import forget_hashes
from strategy_runs import (
    DATA,
    OFTEN,
    STEPS,
    Case,
    Starts,
    by_hand,
    check_killed,
    check_resumed,
    differences,
    more,
    weights_of,
)
from trainer_runs import (
    Job,
    launcher_command,
    run_command,
    train_command,
)

from common.parameter_server.messages import HEADER_BYTES
from common.parameter_server.schedule import Schedule, load_schedule
from common.run_folder.checkpoints import checkpoint_folders
from common.run_folder.records import Hashes, Run, Status, World, read_run

pytestmark = pytest.mark.ranks

RANKS, GLOBAL = 4, 96
EXACT = [*DATA, "--dtype", "float64", "--lr-scaling", "none", "--steps-per-epoch", str(STEPS)]
MLP = [*EXACT, "--model", "mlp", "--learning-rate", "0.05"]
ADAM = [*EXACT, "--model", "mlp", "--optimizer", "adam", "--learning-rate", "0.001", "--weight-decay", "0.01"]
EXACT_CNN = [*EXACT, "--model", "cnn", "--no-dropout"]
CNN = [*DATA, "--model", "cnn", "--steps-per-epoch", str(STEPS), "--lr-scaling", "none"]
RESNET34 = ["--dataset", "synthetic:192x17x19x1x3", "--model", "resnet34", "--epochs", "1", "--steps-per-epoch", "1"]


def batch(workers: int) -> list[str]:
    """Return the batch of each worker of a global batch, where it is later than any other setting of it."""
    return ["--batch-size", str(GLOBAL // workers)]


def served(servers: int, *flags: str) -> list[str]:
    return [*batch(RANKS - servers), "--strategy", "server", "--servers", str(servers), *flags]


FREE = served(2, "--staleness", "none")
RARE = served(1, "--staleness", "1", "--push-every", "2", "--fetch-every", "3")
ALONE = served(3, "--staleness", "none", "--push-every", "2")
MORE = ["mlp1", "mlp3", "adam", "adam2", "cnn", "cnn1", "whole", "part", "part_resumed", "bounded"]
MORE += ["rare", "rare_replayed", "left", "resnet34"]


def all_jobs() -> list[Job]:
    """Return the jobs of four processes."""

    def train(name: str, arguments: list[str], patch: str = "") -> Job:
        # TensorFlow takes its number of threads once, and the workers of another job have other shares of the cores.
        return Job(name, [*arguments, "--threads", "1", "--name", name], patch=patch)

    return [
        train("mlp1", [*MLP, *served(1)]),
        train("mlp2", [*MLP, *served(2)]),
        train("mlp3", [*MLP, *served(3)]),
        train("adam", [*ADAM, *batch(RANKS)]),
        train("adam2", [*ADAM, *served(2)]),
        train("cnn", [*EXACT_CNN, *batch(RANKS)]),
        train("cnn1", [*EXACT_CNN, *served(1)]),
        train("whole", [*CNN, *served(2)]),
        train("part", [*CNN, *served(2), *OFTEN], "stopped"),
        Job("part_resumed", ["--resume", "runs/part"]),
        train("free", [*CNN, *FREE, *OFTEN], "stopped"),
        Job("free_resumed", ["--resume", "runs/free"]),
        train("free_replayed", [*CNN, *FREE, "--replay", "runs/free"]),
        train("bounded", [*CNN, *served(1, "--staleness", "1", "--slow", "1:8")]),
        train("rare", [*CNN, *RARE]),
        train("rare_replayed", [*CNN, *RARE, "--replay", "runs/rare"]),
        train("alone", [*ADAM, *ALONE]),
        train("alone_part", [*ADAM, *ALONE, "--epochs", "1"]),
        Job("alone_part_resumed", ["--resume", "runs/alone_part", "--epochs", "2"]),
        train("left", [*MLP, *FREE], "worker_leaves"),
        train("resnet34", [*RESNET34, *FREE, "--lr-scaling", "none", "--batch-size", "8"], "shallow"),
        *(train(name, arguments) for name, (arguments, _) in BAD_INPUT.items()),
    ]


BAD_INPUT = {
    "no_worker": (
        [*MLP, *batch(4), "--strategy", "server", "--servers", "4"],
        "Received: --servers 4 on 4. Start",
    ),
    "in_step": ([*MLP, *FREE, "--replay", "runs/mlp2"], "a replay has the settings of its run (staleness is 0)"),
    "other_settings": ([*MLP, *FREE, "--replay", "runs/free"], "a replay has the settings of its run"),
}


@pytest.fixture(scope="module")
def starts(tmp_path_factory: pytest.TempPathFactory) -> Starts:
    return Starts(tmp_path_factory.mktemp("server"), all_jobs(), more=MORE, launcher=f"mpirun{RANKS}")


@pytest.fixture(params=["torch", pytest.param("keras", marks=pytest.mark.ci)])
def framework(request: pytest.FixtureRequest) -> str:
    if importlib.util.find_spec(request.param) is None:
        pytest.skip(f"{request.param} is not installed")
    return request.param


@pytest.mark.parametrize("servers", [more(1), 2, more(3)])
def test_servers_update_as_one_process_would(starts: Starts, framework: str, servers: int) -> None:
    """With one, two and three shards; with three there is one worker."""
    run, workers = starts.run(framework, f"mlp{servers}"), RANKS - servers
    expected = by_hand(Case(None, batch_sizes=(GLOBAL // 2, GLOBAL // 2)), run)
    apart = differences(weights_of(run), expected[-1])
    assert max(apart.values()) < 1e-12, apart
    sharing = run.record.sharing
    assert sharing and sharing.servers == servers and len(sharing.workers) == workers
    parameters = 152650 * 8
    assert sharing.formula_bytes == 2 * parameters and sharing.staleness is None
    for worker in sharing.workers:
        assert (worker.updates, worker.images) == (2 * STEPS, 2 * STEPS * GLOBAL // workers)
        # Beside the vectors a header per message.
        assert worker.sent_bytes == worker.received_bytes == parameters + HEADER_BYTES * servers
    assert isinstance(run.record.world, World) and run.record.world.size == workers


@pytest.mark.ci
@pytest.mark.parametrize(("one", "other"), [("adam2", "adam"), ("cnn1", "cnn")])
def test_servers_update_as_all_reduce_does(starts: Starts, framework: str, one: str, other: str) -> None:
    """Adam with weight decay, and momentum on convolutions, whose layouts differ between file and framework."""
    run, reference = (starts.run(framework, name) for name in (one, other))
    assert max(differences(weights_of(run), weights_of(reference)).values()) < 1e-12
    (ours,), (theirs,) = (checkpoint_folders(each.folder) for each in (run, reference))
    for checkpoint in (ours, theirs):
        forget_hashes(checkpoint)  # the last bits of weights differ
    assert (ours / "state.json").read_text() == (theirs / "state.json").read_text()


@pytest.mark.parametrize(("part", "whole", "steps"), [("alone_part", "alone", [STEPS]), more("part", "whole", [3])])
def test_a_resumed_run_ends_bit_for_bit_as_an_unbroken_one(
    starts: Starts, framework: str, part: str, whole: str, steps: list[int]
) -> None:
    """Also the servers' momentum, and Adam's number of updates where one of them is made of two batches."""
    check_resumed(starts.run(framework, part), starts.run(framework, whole), steps=steps)


def schedule_of(run: Run) -> Schedule:
    return load_schedule(run.folder)


@pytest.mark.parametrize("name", ["free", more("rare")])
def test_a_free_run_is_repeated_bit_for_bit(starts: Starts, framework: str, name: str) -> None:
    """The first one was also resumed inside an epoch, from where all workers had met."""
    run, again = starts.run(framework, name), starts.run(framework, f"{name}_replayed")
    assert isinstance(run.record.status, Status) and isinstance(run.record.hashes, Hashes)
    assert run.record.status.resumed_after_steps == ([3] if name == "free" else [])
    assert run.record.hashes == again.record.hashes
    assert schedule_of(run) == schedule_of(again)
    for ours, theirs in zip(run.epochs, again.epochs, strict=True):
        assert (ours.weights_hash, ours.training_loss) == (theirs.weights_hash, theirs.training_loss)


def test_free_workers_share_the_samples_of_an_epoch(starts: Starts, framework: str) -> None:
    run = starts.run(framework, "free_replayed")
    schedule, sharing = schedule_of(run), run.record.sharing
    assert len(schedule.workers) == 2 * STEPS * 2 and sharing and sharing.staleness
    assert [worker.updates for worker in sharing.workers] == [schedule.workers.count(rank) for rank in range(2)]
    assert sum(sharing.staleness.values()) == 2 * len(schedule.workers)  # at each of two servers
    assert max(map(int, sharing.staleness)) > 0 and sharing.clock_lead is None
    assert all(sorted(sources) == sorted(schedule.workers) for sources in schedule.sources)


@pytest.mark.ci
def test_no_worker_is_further_ahead_than_allowed(starts: Starts, framework: str) -> None:
    """One of three workers is slow, so that the others wait for it; they do other parts of the work than it."""
    run = starts.run(framework, "bounded")
    schedule, most, first = schedule_of(run), 0, 0
    for items, *_ in schedule.meetings:
        begun = [0, 0, 0]
        for worker in schedule.workers[first:items]:
            begun[worker] += 1
            most = max(most, begun[worker] - max(min(begun), 1))
        first = items
    assert most == 1 and run.record.sharing and run.record.sharing.clock_lead == 1


@pytest.mark.ci
def test_pushes_and_fetches_may_be_rarer_than_batches(starts: Starts, framework: str) -> None:
    """Each worker pushes after two batches and fetches after three, and what is left at the end of the epoch."""
    run = starts.run(framework, "rare")
    schedule, first = schedule_of(run), 0
    taken = [0, 0, 0]
    for items, messages in schedule.meetings:
        for worker in range(3):
            drawn = schedule.workers[first:items].count(worker)
            # Of 6 batches four end with a message, as 6 is the least common multiple; then one more at the end.
            taken[worker] += sum(number % 2 == 0 or number % 3 == 0 for number in range(1, drawn + 1)) + (drawn > 0)
        assert messages == sum(taken)
        first = items
    assert run.record.sharing
    (sources,), (staleness,) = schedule.sources, schedule.staleness
    for worker, share in enumerate(run.record.sharing.workers):
        own = [lag for source, lag in zip(sources, staleness, strict=True) if source == worker]
        pushes = len(own) - own.count(-1)
        assert share.updates == schedule.workers.count(worker) > pushes
        gradient_bytes = run.record.sharing.formula_bytes / (1 / 2 + 1 / 3)
        assert share.sent_bytes * share.updates == pytest.approx(pushes * gradient_bytes + len(own) * HEADER_BYTES)


@pytest.mark.ci
def test_workers_average_the_statistics_of_batch_norm(starts: Starts, framework: str) -> None:
    """They are each worker's own, while the weights are the servers'."""
    weights = weights_of(starts.run(framework, "resnet34"))
    means = [array for name, array in weights.items() if name.endswith("running_mean")]
    assert means and all(np.abs(mean).max() > 0 for mean in means)
    assert all(np.isfinite(array).all() for array in weights.values())


@pytest.mark.ci
def test_the_others_do_the_work_of_a_worker_that_leaves(starts: Starts, framework: str) -> None:
    schedule = schedule_of(starts.run(framework, "left"))
    assert schedule.workers.count(1) == 2 * 2 and len(schedule.workers) == 2 * STEPS * 2


def test_what_contradicts_is_refused_on_all_ranks(starts: Starts, framework: str) -> None:
    for name, (_, message) in BAD_INPUT.items():
        ranks = starts.outcomes(framework, name)
        assert [outcome.code for outcome in ranks] == [2] * RANKS and message in ranks[0].stderr, name
        assert [bool(outcome.stderr) for outcome in ranks] == [True, False, False, False]


@pytest.mark.ci
@pytest.mark.parametrize("rank", [1, 3], ids=["worker", "server"])
def test_a_killed_rank_ends_the_run_which_can_be_resumed(rank: int, tmp_path: Path) -> None:
    check_killed("torch", [*CNN, *served(2)], launcher="mpirun4", folder=tmp_path, rank=rank)


@pytest.mark.ci
def test_horovodrun_starts_servers_as_well(tmp_path: Path) -> None:
    arguments = [*MLP, *served(1), "--name", "by_horovodrun"]
    done = run_command([*launcher_command("mpi4"), *train_command("keras", arguments)], folder=tmp_path)
    assert done.code == 0, done.stderr
    assert read_run(tmp_path / "runs" / "by_horovodrun").state == "finished"


@pytest.mark.ci
@pytest.mark.parametrize("launcher", ["gloo2", "none"])
def test_without_mpi_a_server_is_refused(launcher: str, tmp_path: Path) -> None:
    command = [*launcher_command(launcher), *train_command("torch", [*MLP, *served(1)])]
    done = run_command(command, folder=tmp_path)
    expected = "ranks started with Gloo" if launcher == "gloo2" else "--servers 1 on 1. Start"
    assert done.code != 0 and expected in done.stderr + done.stdout
