"""Set-up: make `.venv`, install the pinned packages, build Horovod once and keep the wheel, install the project.

    make setup                       both frameworks
    make setup FRAMEWORKS=torch      PyTorch only: nothing of TensorFlow is downloaded
    make setup WHEELS=DIR            without a network, from a folder that `make wheels WHEELS=DIR` filled
    make setup GPU=0                 leave an NVIDIA GPU unused (GPU=1: insist on one)
    python3 launch/setup.py --dry-run --gpu     print the commands and run none

Any Python 3 can start this file, which only hands over: to a Python that will do, then to `launch/installation/`.
"""

import os
import sys

if __name__ == "__main__":
    sys.path[0] = root = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))  # noqa: PTH100, PTH120 - old Pythons
    from launch.installation.needed_python import hand_over

    hand_over("setup", venv=os.path.join(root, ".venv"))  # noqa: PTH118
    from launch.installation.command import main

    sys.exit(main())
