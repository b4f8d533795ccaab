"""Images in which ranks run: the table `[launch.container]` of a site file."""

import re
from dataclasses import dataclass, field
from pathlib import PurePosixPath
from typing import Literal

from common.errors import UserError
from common.json_records import Record
from launch.sites.values import Bind, Line, Word


@dataclass(frozen=True, kw_only=True)
class ContainerOptions(Record):
    """The image in which ranks run; the launcher runs outside it.

    Attributes:
        runtime: pyxis: Slurm's plugin for Enroot; `srun` then starts the ranks in the image.
        image: its file, or what the runtime takes instead; of Pyxis "REGISTRY#IMAGE:TAG".
        folder: of the project inside.
        binds: host folders visible inside besides the current one, each "HOST_PATH" or "HOST_PATH:PATH".
        gpu: whether NVIDIA's driver is passed through (`--nv`); Enroot passes it through by itself.
    """

    runtime: Literal["apptainer", "singularity", "pyxis"] = "apptainer"
    image: Word
    folder: Line = "/opt/horovod-twins"
    binds: list[Bind] = field(default_factory=list)
    gpu: bool = False

    def __post_init__(self) -> None:
        """Check what Pyxis would misread.

        Raises:
            ValueError: a blank in a path.
        """
        if self.by_srun and " " in "".join(self.binds):
            raise ValueError("Pyxis takes no blank in a path: use another folder")

    @property
    def by_srun(self) -> bool:
        """Whether srun starts the ranks in the image; else each rank's program is one that does."""
        return self.runtime == "pyxis"

    def program_words(self, program: str) -> list[str]:
        """Return a trainer's program as each rank runs it.

        Args:
            program: its path in the project.
        """
        words = ["python", str(PurePosixPath(self.folder, *PurePosixPath(program).parts[-2:]))]
        if self.by_srun:
            return words
        binds = [word for bind in self.binds for word in ("--bind", bind)]
        return [self.runtime, "exec", *(["--nv"] if self.gpu else []), *binds, self.image, *words]

    def srun_words(self, *, current_folder: str) -> list[str]:
        """Return the options of srun by which ranks run in the image; none where that is not by Pyxis.

        Args:
            current_folder: which ranks see inside by the same name.

        Raises:
            UserError: Pyxis would misread it.
        """
        if not self.by_srun:
            return []
        if re.search(r"[ ,:]", current_folder):
            raise UserError(f"Pyxis takes no blank, ',' and ':' in a path. Received: {current_folder}. "
                            "Use another folder")  # fmt: skip
        mounts = ",".join([current_folder, *self.binds])
        return [f"--container-image={self.image}", f"--container-mounts={mounts}",
                f"--container-workdir={current_folder}"]  # fmt: skip
