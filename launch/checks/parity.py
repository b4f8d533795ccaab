"""`python -m launch parity`: prove that both frameworks train alike, alone and on several ranks.

    python -m launch parity                                  5 models, 8 optimizers, 1, 2 and 4 ranks
    python -m launch parity --size toy                       part of it, in a minute or two
    python -m launch parity --models resnet34 --np 1 --exchanged-updates 50
    python -m analysis parity FOLDER                         show the result again

Writes `parity.json` and two ordinary run folders, one per framework, trained by horovodrun in float64; then
`python -m analysis parity` shows them.
"""

import argparse
from datetime import datetime
from functools import partial
from pathlib import Path
from typing import Any

from common.checks.parity_cases import GLOBAL_BATCH, IMAGES, OPTIMIZERS, has_batch_norm
from common.checks.parity_record import ParityRecord, ParitySettings, read_parity
from common.config import add_onednn_option
from common.errors import EXIT_CODE_INTERRUPTED, UserError
from common.run_folder.run_writer import check_new_folder
from common.utils.command_line import whole_number, word
from common.utils.environments import missing_packages
from launch.checks.parity_jobs import EXCHANGED_BY_RANKS, RUN_RANKS, run_settings
from launch.checks.parity_proofs import FRAMEWORKS, ParityProofs
from launch.starting.analysis import run_analysis
from launch.starting.train import check_settings

EXIT_CODE_DIFFERENT = 1


# How much is proven by default.
SIZES: dict[str, dict[str, Any]] = {
    "toy": {
        "models": [model for model in IMAGES if not has_batch_norm(model)],  # which alone takes minutes
        "np": [1, 2],
        "optimizers": ["momentum", "adam"],
        "updates": 10,
        "exchanged_updates": 2,
    },
    "standard": {
        "models": list(IMAGES),
        "np": [1, 2, 4],
        "optimizers": list(OPTIMIZERS),
        "updates": 50,
        "exchanged_updates": 5,
    },
}
SIZES["full"] = SIZES["standard"] | {"exchanged_updates": 50}


def add_command(commands: Any) -> None:
    """Add the command to argparse's subcommands."""
    parser = commands.add_parser(
        "parity",
        help="prove that both frameworks train alike",
        description="Train alike in both frameworks, compare every array, write parity.json and two run folders.",
    )
    parser.add_argument("--size", choices=SIZES, default="standard", help="how much (default: %(default)s)")
    for flag, known in (("--models", list(IMAGES)), ("--optimizers", list(OPTIMIZERS))):
        parser.add_argument(flag, nargs="+", choices=known, metavar="NAME", help=f"some of {', '.join(known)}")
    parser.add_argument("--np", nargs="+", type=whole_number, help=f"numbers of ranks; they divide {GLOBAL_BATCH}")
    parser.add_argument("--updates", type=whole_number, help="of each training")
    parser.add_argument(
        "--exchanged-updates",
        type=whole_number,
        help=f"of models with BatchNorm, each from the same state; of several ranks {EXCHANGED_BY_RANKS} at most",
    )
    parser.add_argument("--controller", choices=["mpi", "gloo"], default="mpi", help="default: %(default)s")
    add_onednn_option(parser)
    parser.add_argument("--dataset", default="mnist", help="of the two ordinary runs (default: %(default)s)")
    epochs = "of the two ordinary runs; 0: none (default: %(default)s)"
    parser.add_argument("--epochs", type=partial(whole_number, least=0), default=1, help=epochs)
    parser.add_argument("--folder", type=word, help="folder for the results (default: runs/parity-<time>)")
    parser.add_argument("--resume", action="store_true", help="go on with the proofs of --folder that ended early")
    parser.set_defaults(run=run)


def run(options: argparse.Namespace) -> int:
    """Run the command; return its exit code: 0, or 1 if a difference exceeds its tolerance."""
    settings = read_settings(options)
    folder = Path(options.folder or f"runs/parity-{datetime.now().astimezone():%Y%m%d-%H%M%S}")
    before = _resumed(folder, settings) if options.resume else None
    if before is None:
        check_new_folder(folder, remedy="Give another --folder, or --resume")
        if settings.epochs:
            check_settings(run_settings(settings, folder, name=FRAMEWORKS[0]), framework=FRAMEWORKS[0], size=RUN_RANKS)
    proofs = ParityProofs(folder, settings, before=before)
    try:
        proofs.run()
    except KeyboardInterrupt:
        print(
            f"interrupted; to see the comparisons made so far: python -m analysis parity {folder}; "
            f"to go on: --folder {folder} --resume"
        )
        return EXIT_CODE_INTERRUPTED
    shown = run_analysis("parity", folder, "--plots", folder / "plots")
    return shown or (EXIT_CODE_DIFFERENT if proofs.differ else 0)


def _resumed(folder: Path, settings: ParitySettings) -> ParityRecord:
    """Return the record of proofs that ended early.

    Raises:
        UserError: there is none, it has ended, or other things were to be proven.
    """
    before = read_parity(folder)
    if before.ended_at is not None:
        raise UserError(f"these proofs are complete. Received: --resume --folder {folder}. Give another --folder")
    if before.settings != settings:
        raise UserError(
            f"other things were to be proven there. Received: --resume --folder {folder}. Give the flags of its start: "
            f"{before.settings}"
        )
    return before


def read_settings(options: argparse.Namespace) -> ParitySettings:
    """Return what is to be proven.

    Raises:
        UserError: ranks that cannot share the batch, or a framework is not installed.
    """
    given = {name: getattr(options, name) for name in SIZES[options.size]}
    chosen = SIZES[options.size] | {name: value for name, value in given.items() if value is not None}
    for number in chosen["np"]:
        if GLOBAL_BATCH % number:
            raise UserError(
                f"the ranks share a batch of {GLOBAL_BATCH}. Received: --np {number}. Give 1, 2, 4, 8, 16 or 32"
            )
    missing = [name for name in FRAMEWORKS if missing_packages(name)]
    if missing:
        raise UserError(f"parity needs both frameworks. Received: no {missing[0]}. Run `make setup`")
    return ParitySettings(
        models=list(dict.fromkeys(chosen["models"])),
        optimizers=list(dict.fromkeys(chosen["optimizers"])),
        np=sorted(set(chosen["np"])),
        updates=chosen["updates"],
        exchanged_updates=chosen["exchanged_updates"],
        controller=options.controller,
        dataset=options.dataset,
        epochs=options.epochs,
        onednn=options.onednn,
    )
