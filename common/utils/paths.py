"""The folder of the project. Standard library only: set-up imports it before anything is installed."""

from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
