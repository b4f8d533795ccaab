"""Run programs for an environment: their output goes into its log, a failure becomes one line that says what to do."""

import os
import re
import shlex
import signal
import subprocess
from dataclasses import dataclass
from pathlib import Path

from common.errors import UserError
from launch.horovod import build as horovod_build
from launch.installation.environment import Environment

# Output of pip, uv, venv, CMake or the compiler (a regular expression), what it means, the remedy. First match counts.
FAILURES = (
    (
        r"No space left on device|Disk quota exceeded",
        "the disk is full",
        "Free some space there, in the home folder's cache or in the folder for temporary files (TMPDIR)",
    ),
    (
        r"ensurepip is not|No module named '?(venv|ensurepip)",
        "this Python has no venv module",
        "Install it (Debian, Ubuntu: apt-get install python3-venv), or name another Python: make setup PYTHON=PATH",
    ),
    (r"[Kk]illed signal|cannot allocate memory|MemoryError", "there was not enough memory", "Close other programs"),
    (
        r"Temporary failure in name resolution|NewConnectionError|ConnectionError|Connection refused|"
        r"Network is unreachable|error sending request|Read timed out|ProxyError|SSLError|NameResolutionError",
        "a package index could not be reached",
        "Check the network or pip's settings (proxy, index), or set up without: make setup WHEELS=DIR",
    ),
    (
        r"(?:No matching distribution found for|there is no version of|Because|you\s+require) ([\w.-]+==[^\s,]+)",
        "there is no {0} for this machine",
        "See `pip config list` for a wrong index, and with WHEELS fill the folder on a machine of the same kind",
    ),
    (
        r"(?:Hash mismatch for `|DO NOT MATCH THE HASHES.*\n\s+)([\w.-]+==[^\s`]+)",
        "{0} is not what lock.txt has: its SHA-256 differs",
        "See `pip config list` for an index that has another file",
    ),
    (r"(?m)^build\.py: error: (.*)", "{0}", ""),
)


@dataclass(frozen=True)
class Programs:
    """Programs run for an environment."""

    environment: Environment  # whose programs come first
    dry: bool = False  # print the commands, run none

    @property
    def log(self) -> Path:
        """The file of what they print."""
        return self.environment.memory / "setup.log"

    def run(
        self,
        *words: str,
        variables: dict[str, str] | None = None,
        installs: bool = False,
        may_fail: bool = False,
    ) -> bool:
        """Run a program; return whether it succeeds.

        Args:
            words: the program and its arguments.
            variables: for it alone.
            installs: it leaves the environment half changed when it is interrupted.
            may_fail: otherwise a failure is a UserError.
        """
        variables = variables or {}
        if self.dry:
            print(*(f"{name}={shlex.quote(value)}" for name, value in variables.items()), shlex.join(words))
            return True
        if installs:
            self.environment.installing.touch()
        with self.log.open("a", encoding="utf-8") as log:
            print(f"\n$ {' '.join(words)}", file=log, flush=True)
            start_of_output = log.tell()
            process = subprocess.Popen(
                words,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                env=environment_variables(self.environment.venv) | variables,
                cwd=self.environment.root,
                start_new_session=True,  # so that its compilers can be ended with it
                close_fds=False,  # if this process is killed, the clone's lock outlives it with pip
            )
            try:
                code = process.wait()
            except BaseException:  # interrupted: all that it started ends with it
                os.killpg(process.pid, signal.SIGKILL)
                process.wait()
                raise
        if code != 0 and not may_fail:
            with self.log.open(encoding="utf-8", errors="replace") as log:
                log.seek(start_of_output)
                raise self.failure(log.read())
        if installs:
            self.environment.installing.unlink()
        return code == 0

    def ask(self, *words: str, logged: bool = True) -> str:
        """Return what a program prints, nothing in a dry run; raise UserError if it fails."""
        if self.dry:
            return ""
        variables = environment_variables(self.environment.venv)
        done = subprocess.run(words, capture_output=True, text=True, env=variables, check=False)
        with self.log.open("a", encoding="utf-8") as log:
            print(f"\n$ {' '.join(words)}\n{done.stdout if logged else ''}{done.stderr}", file=log)
        if done.returncode != 0:
            raise self.failure(done.stderr)
        return done.stdout

    def failure(self, output: str) -> UserError:
        """Return the error of a failed program, from what it printed."""
        what, remedy = f"a command failed: {horovod_build.reason(output)}", "See the log"
        for pattern, meaning, cure in FAILURES:
            if found := re.search(pattern, output):
                what, remedy = meaning.format(*found.groups()), cure
                break
        remedy = f". {remedy}, then run the same again" if remedy else ""
        return UserError(f"{what}{remedy}. All output: {self.log}")


def environment_variables(venv: Path) -> dict[str, str]:
    """Return the variables for programs of an environment: its own come first, no other packages.

    Set-up works on this machine alone, also within a job, whose variables would lead mpirun to others.
    """
    left_out = ("PYTHONPATH", "PYTHONHOME", "PYTHONDONTWRITEBYTECODE", "SLURM_", "PMI_", "PMIX_")
    kept = {name: value for name, value in os.environ.items() if not name.startswith(left_out)}
    return kept | {
        "PATH": f"{venv / 'bin'}:{kept.get('PATH', os.defpath)}",
        "VIRTUAL_ENV": str(venv),
        "PYTHONNOUSERSITE": "1",
        "PIP_USER": "0",
        "PIP_NO_INPUT": "1",
        "PIP_DISABLE_PIP_VERSION_CHECK": "1",
        "TF_CPP_MIN_LOG_LEVEL": "3",
    }
