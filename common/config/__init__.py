"""All settings of a run: a dataclass for each subject, whose fields are also the trainers' command line.

    config = parse_command_line(["--model", "mlp", "--epochs", "3"], program="torch_impl/train.py")

Defaults are overridden by `--recipe FILE`, both by flags. Not here: what settings mean for data and ranks
(`common/task/prepare.py`).
"""

from common.config.command_line import (
    HELP,
    add_onednn_option,
    config_from_dict,
    parse_command_line,
    read_recipe,
    requested,
)
from common.config.config import SPEED_SETTINGS, Config, changed_settings, completed, defined_settings
from common.config.device import GRADIENT_GROUPS, DeviceConfig, Groups
from common.config.record import EnergyConfig, FaultConfig, RecordConfig
from common.config.rules import settings_flags
from common.config.strategy import BalanceConfig, PartsConfig, Straggler, StrategyConfig
from common.config.training import ModelConfig, OneDNN, OptimizerConfig, ScheduleConfig, TrainingConfig
