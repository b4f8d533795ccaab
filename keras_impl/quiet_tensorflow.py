"""Imports TensorFlow with oneDNN on or off, as `--onednn` says, and without what no trainer uses.

Also without the start-up lines that it prints whatever TF_CPP_MIN_LOG_LEVEL says.

    import keras_impl.quiet_tensorflow  # isort: skip  # noqa: F401

goes before whatever else imports TensorFlow or Keras. Only the lines of `KNOWN` are dropped. All others appear as they
are written, also if the import raises or the process aborts: a process of its own filters them.
"""

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress

from keras_impl.onednn import onednn_as_asked_for

# Of TensorFlow 2.21 on a CPU, as extended regular expressions of grep.
KNOWN = (
    r"^WARNING: All log messages before absl::InitializeLog\(\) is called are written to STDERR$",
    r"^I[0-9:. ]+ port\.cc:[0-9]+\] oneDNN custom operations are on\.",
    r"^I[0-9:. ]+ cpu_feature_guard\.cc:[0-9]+\] This TensorFlow binary is optimized to use available CPU instructions",
    r"^To enable the following instructions: .* rebuild TensorFlow with the appropriate compiler flags\.$",
)
# Packages that TensorFlow and its Keras import where they are installed, for arguments of their types and for pictures.
UNUSED = ("matplotlib", "pandas", "scipy")


@contextmanager
def not_installed(packages: tuple[str, ...]) -> Iterator[None]:
    """Let imports of packages that are not loaded yet fail; afterwards they can be imported as always."""
    hidden = [name for name in packages if name not in sys.modules]
    sys.modules.update(dict.fromkeys(hidden))  # type: ignore[arg-type]  # None: the documented way to block an import
    try:
        yield
    finally:
        for name in hidden:
            del sys.modules[name]


@contextmanager
def without_known_lines() -> Iterator[None]:
    """Drop the known lines from what this process writes to file descriptor 2, where TensorFlow's C++ writes."""
    if sys.stderr is None:  # the file descriptor is closed
        yield
        return
    command = ["grep", "--text", "--line-buffered", "--invert-match", "--extended-regexp", "\n".join(KNOWN)]
    # In a session of its own, so that a Ctrl-C does not end it before it has passed everything on.
    filtering = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=2, start_new_session=True)
    assert filtering.stdin is not None
    sys.stderr.flush()
    kept = os.dup(2)
    os.dup2(filtering.stdin.fileno(), 2)
    filtering.stdin.close()
    try:
        yield
    finally:
        sys.stderr.flush()
        os.dup2(kept, 2)
        os.close(kept)
        with suppress(subprocess.TimeoutExpired):  # a child of the import may still hold the pipe
            filtering.wait(timeout=5)


os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")  # for the lines that it does silence, later ones too
with onednn_as_asked_for(), without_known_lines(), not_installed(UNUSED):
    import tensorflow  # noqa: F401
