"""Set up from the bundle that this file is in, on a machine without a network.

    tar xf bundle.tar && python3 bundle/unstage.py

`stage` packs this file as `unstage.py` at the top of the bundle. Any Python 3 can start it; it only hands over: to the
needed Python, then to the bundle's `code/launch/offline/unstage.py`.
"""

import os
import sys

if __name__ == "__main__":
    sys.dont_write_bytecode = True  # nothing may be added to the bundle
    bundle = os.path.dirname(os.path.abspath(__file__))  # noqa: PTH100, PTH120 - old Pythons
    sys.path.insert(0, os.path.join(bundle, "code"))  # noqa: PTH118
    try:
        from launch.installation.needed_python import hand_over

        hand_over("unstage")
        from launch.offline.unstage import main
    except (ImportError, SyntaxError, ValueError) as error:
        print(
            f"unstage: error: the bundle is damaged: its code cannot be loaded. Received: {error}. Copy it again",
            file=sys.stderr,
        )
        sys.exit(2)
    sys.exit(main(bundle=bundle))
