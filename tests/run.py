"""Run the tests: unit tests, then those that start ranks, both on two processes; then clusters and browsers, alone.

    python tests/run.py quick    # `make test`
    python tests/run.py ci       # `make test-ci`: what CI runs beyond the quick ones
    python tests/run.py all      # `make test-all`

Further arguments go to every call of pytest. The last line adds up the summaries; the exit code is that of the
first call that failed.
"""

import os
import subprocess
import sys
import tempfile
import time
import xml.etree.ElementTree as ElementTree
from collections import Counter
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
SELECTIONS = {
    "quick": "not (ci or cluster or browser or long)",
    "ci": "(ci or cluster or browser) and not long",
    "all": "unit or not unit",
}
# A start of ranks is long in one thread on each: files of them, side by side, use what it leaves of the cores.
TWO_FILES_AT_ONCE = ("-n", "2", "--dist", "loadfile")
KINDS = {
    "unit": TWO_FILES_AT_ONCE,
    "ranks and not (cluster or browser)": TWO_FILES_AT_ONCE,
    "cluster or browser": (),
}
NOTHING_SELECTED = 5  # pytest's exit code
INTERRUPTED = 2


def main(arguments: list[str]) -> int:
    """Run the calls of pytest and print their totals; return the exit code."""
    if not arguments or arguments[0] not in SELECTIONS:
        print(f"usage: python tests/run.py {'|'.join(SELECTIONS)} [ARGUMENTS OF PYTEST]", file=sys.stderr)
        return 2
    selection, further = SELECTIONS[arguments[0]], arguments[1:]
    # Compiled files are kept: many tests start Python, and would compile the project anew each time.
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
    start = time.monotonic()
    totals: Counter[str] = Counter()
    codes = []
    for kind, workers in KINDS.items():
        if arguments[0] == "quick" and not workers:
            continue  # none of them is quick
        with tempfile.TemporaryDirectory() as folder:
            report = Path(folder) / "report.xml"
            command = [sys.executable, "-m", "pytest", "-m", f"({kind}) and ({selection})", *workers, *further]
            done = subprocess.run([*command, f"--junit-xml={report}"], cwd=ROOT, env=environment, check=False)
            codes.append(done.returncode)
            if report.exists():
                totals += counts_of(report)
        if codes[-1] == INTERRUPTED:
            break
    shown = ", ".join(f"{number:,} {outcome}" for outcome, number in totals.items())
    print(f"=== {arguments[0]} tests: {shown or 'nothing selected'} in {time.monotonic() - start:.0f} s", flush=True)
    return exit_code(codes)


def counts_of(report: Path) -> Counter[str]:
    """Return outcome -> number of tests of a JUnit file, without the outcomes of which there are none."""
    counts: Counter[str] = Counter()
    for suite in ElementTree.parse(report).iter("testsuite"):
        failed, errors, skipped = (int(suite.get(name, 0)) for name in ("failures", "errors", "skipped"))
        counts += Counter(
            passed=int(suite.get("tests", 0)) - failed - errors - skipped, failed=failed, errors=errors, skipped=skipped
        )
    return counts


def exit_code(codes: list[int]) -> int:
    """Return the first code of a call that failed; a call in which nothing was selected fails only if all are so."""
    failed = [code for code in codes if code not in (0, NOTHING_SELECTED)]
    return failed[0] if failed else min(codes)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
