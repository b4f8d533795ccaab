"""A trainer with something broken or replaced: `patched_trainer.py FRAMEWORK PATCH ...`, with its own arguments."""

import importlib
import sys

from patches import PATCHES

if __name__ == "__main__":
    framework, patch, *arguments = sys.argv[1:]
    program = importlib.import_module(f"{framework}_impl.train")
    with PATCHES[patch](framework):
        program.exit_rank(program.main(arguments))
