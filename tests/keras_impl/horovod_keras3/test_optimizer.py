"""`DistributedOptimizer`: real ranks, over MPI and Gloo, against one process, in float64.

What is compared is in `optimizer_checks.py`; one start of a launcher does all that is asked of it.
"""

import functools
import zipfile
from pathlib import Path

import pytest
from frameworks import names_of
from processes import ROOT

CHECKS = Path(__file__).with_name("optimizer_checks.py")
# What a controller can change.
OVER_GLOO = ["check_optimizers", "check_settings_of_optimizers", "check_ways_of_exchange", "check_overflow"]
STARTS = {
    "mpirun1": ["one_process"],
    "gloo1": ["one_process"],
    "mpirun2": names_of(CHECKS),
    "gloo2": OVER_GLOO,
    "mpirun3": ["check_optimizers"],  # division by two and four is exact
    "gloo3": ["check_optimizers"],
    "mpirun4": ["check_one_optimizer", "process_sets"],
}
CASES = [(launcher, check) for launcher, checks in STARTS.items() for check in checks]
pytestmark = pytest.mark.ci


@pytest.fixture(scope="module")
def outcomes_of(request, in_turn, tmp_path_factory):
    """Function of a launcher: does the checks that were selected, once."""

    @functools.cache
    def do(launcher):
        given = [item.callspec.params for item in request.session.items if item.originalname == test_on_ranks.__name__]
        jobs = [f"{CHECKS}:{one['check']}" for one in given if one["launcher"] == launcher]
        return in_turn(launcher, jobs, folder=tmp_path_factory.mktemp(launcher))

    return do


@pytest.mark.ranks
@pytest.mark.parametrize(("launcher", "check"), CASES)
def test_on_ranks(launcher, check, outcomes_of):
    for code, errors, _ in outcomes_of(launcher)[f"{CHECKS}:{check}"]:
        assert code == 0, errors


def test_the_wheel_has_the_files_that_our_trainers_use_and_the_license(wheel):
    folder = ROOT / "keras_impl" / "horovod_keras3"
    with zipfile.ZipFile(wheel) as archive:
        packed = {name: archive.read(name) for name in archive.namelist() if ".dist-info/" not in name}
        assert any(name.endswith("/LICENSE") for name in archive.namelist())
    assert packed == {f"horovod_keras3/{file.name}": file.read_bytes() for file in folder.glob("*.py")}
