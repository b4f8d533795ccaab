"""Set up from the bundle that this file is in, on a machine without a network.

    tar xf bundle.tar && python3 bundle/unstage.py

`stage` packs this file as `unstage.py` at the top of the bundle. Any Python 3 can start it; it only hands over: to the
Python that its wheels are for, then to the bundle's `code/launch/offline/unstage.py`.
"""

import json
import os
import sys


def packed_for(bundle: str, pythons: tuple) -> tuple:
    """Return those of the Pythons that can use the bundle's wheels."""
    try:
        with open(os.path.join(bundle, "manifest.json")) as file:  # noqa: PTH118, PTH123
            manifest = json.load(file)["manifest"]
        wanted = [manifest["target"]["python"]] if manifest["setup"]["wheels"] == "all" else pythons
    except (OSError, ValueError, TypeError, KeyError):  # which is reported later
        wanted = pythons
    return tuple(python for python in pythons if python in wanted) or pythons


if __name__ == "__main__":
    sys.dont_write_bytecode = True  # nothing may be added to the bundle
    bundle = os.path.dirname(os.path.abspath(__file__))  # noqa: PTH100, PTH120 - old Pythons
    sys.path.insert(0, os.path.join(bundle, "code"))  # noqa: PTH118
    try:
        from launch.installation.needed_python import PYTHONS, hand_over

        hand_over("unstage", pythons=packed_for(bundle, PYTHONS))
        from launch.offline.unstage import main
    except (ImportError, SyntaxError, ValueError) as error:
        print(
            f"unstage: error: the bundle is damaged: its code cannot be loaded. Received: {error}. Copy it again",
            file=sys.stderr,
        )
        sys.exit(2)
    sys.exit(main(bundle=bundle))
