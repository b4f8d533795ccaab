"""Where and how often: set-up, commands, jobs. Starts trainers as processes and never imports them."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))  # our packages hide others of their names
