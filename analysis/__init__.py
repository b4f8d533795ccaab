"""Reads run folders and common's tables: tables and plots. Imports no framework and no trainer."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))  # our packages hide others of their names
