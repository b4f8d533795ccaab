"""Run the tests on three processes, each of which takes whole files (`support/selection.py`).

    python tests/run.py quick    # `make test`
    python tests/run.py ci       # `make test-ci`: what CI runs beyond the quick ones
    python tests/run.py most     # `make test TIER=most`: both, as CI does
    python tests/run.py all      # `make test-all`
    python tests/run.py gpu      # `make test-gpu`, on a machine that has one; the others leave these out

Further arguments go to pytest, whose last line has the totals and whose exit code is that of this. Before them,
`--changed REV` leaves out the files of tests that depend on nothing that differs from that revision (1: HEAD).
"""

import os
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
SELECTIONS = {
    "quick": "not (ci or cluster or browser or long)",
    "ci": "(ci or cluster or browser) and not long",
    "most": "not long",
    "all": "unit or not unit",
    "gpu": "gpu",
}


def command(selection, further):
    files = {argument.partition("::")[0] for argument in further if argument.partition("::")[0].endswith(".py")}
    if selection == "gpu" and not files:
        further = ["tests/gpu", *further]
    # Three keep two cores busy, as many tests wait. Of one file the others would run nothing, and a GPU is not shared.
    workers = "0" if len(files) == 1 or selection == "gpu" else "3"
    profile = "quick" if selection == "quick" else "ci"
    # `make lint` checks what is in tests/form.
    options = ["-m", SELECTIONS[selection], "-n", workers, f"--hypothesis-profile={profile}", "--ignore=tests/form"]
    return [sys.executable, "-m", "pytest", *options, *further]


def main(arguments):
    if not arguments or arguments[0] not in SELECTIONS or arguments[1:] == ["--changed"]:
        usage = f"{'|'.join(SELECTIONS)} [--changed REV] [ARGUMENTS OF PYTEST]"
        print(f"usage: python tests/run.py {usage}", file=sys.stderr)
        sys.exit(2)
    os.chdir(ROOT)
    if arguments[1:2] == ["--changed"]:
        from changed import choose  # here, as others read SELECTIONS from elsewhere

        chosen, summary = choose(arguments[2])
        print(f"=== since {arguments[2]}, {summary}", flush=True)
        if chosen == []:
            sys.exit(0)
        arguments = [arguments[0], *(chosen or []), *arguments[3:]]
    # Compiled files are kept: many tests start Python, and would compile the project anew each time.
    os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
    called = command(arguments[0], arguments[1:])
    os.execv(called[0], called)


if __name__ == "__main__":
    main(sys.argv[1:])
