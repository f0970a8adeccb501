# SPDX-License-Identifier: Apache-2.0
"""A virtual environment with a home of its own, driven by pip or by uv."""

from __future__ import annotations

import json
import os
import subprocess
import sysconfig
from dataclasses import dataclass
from pathlib import Path
from typing import Any

# Of the extra `dist`, beside the Python that runs the tests.
UV = Path(sysconfig.get_path("scripts")) / "uv"


@dataclass(frozen=True)
class Environment:
    """A virtual environment with a home folder of its own."""

    path: Path
    installer: str  # "pip" or "uv"

    @property
    def python(self) -> Path:
        return self.path / "venv" / "bin" / "python"

    @property
    def home(self) -> Path:
        return self.path / "home"

    @property
    def site(self) -> Path:
        (found,) = (self.path / "venv" / "lib").glob("python*/site-packages")
        return found

    def run(
        self, *command: str | Path, code: int | None = 0, **environ: str
    ) -> subprocess.CompletedProcess[str]:
        """Run a program of the environment, or one by its path. Fails unless it ends with `code`
        (None: with any)."""
        program = self.path / "venv" / "bin" / str(command[0])
        words = [str(program if program.exists() else command[0]), *map(str, command[1:])]
        kept = {k: v for k, v in os.environ.items() if not k.startswith(("VLLM_", "ASCEND_"))}
        kept.pop("PYTHONPATH", None)
        kept.pop("VIRTUAL_ENV", None)
        done = subprocess.run(
            words,
            env={**kept, "HOME": str(self.home), "HF_HUB_OFFLINE": "1", **environ},
            cwd=self.path,
            capture_output=True,
            text=True,
        )
        if code is not None and done.returncode != code:
            raise AssertionError(
                f"{' '.join(words)} ended with {done.returncode}:\n{done.stdout[-3000:]}\n"
                f"{done.stderr[-3000:]}"
            )
        return done

    def install(self, *requirements: str | Path) -> None:
        if self.installer == "uv":
            self.run(UV, "pip", "install", "--python", self.python, *requirements)
        else:
            self.run(self.python, "-m", "pip", "install", "--quiet", *requirements)

    def uninstall(self, name: str) -> None:
        if self.installer == "uv":
            self.run(UV, "pip", "uninstall", "--python", self.python, name)
        else:
            self.run(self.python, "-m", "pip", "uninstall", "--yes", name)

    def files(self) -> set[str]:
        """What is in site-packages and bin, but for what Python compiles by itself."""
        roots = (self.site, self.path / "venv" / "bin")
        return {
            str(path.relative_to(self.path))
            for root in roots
            for path in root.rglob("*")
            if "__pycache__" not in path.parts
        }

    def problems(self) -> dict[str, dict[str, str]]:
        """Topic -> the finding, of what doctor calls a problem."""
        shown = self.run("vllm-ascend-mrv2", "doctor", "--json", code=None).stdout
        report: dict[str, Any] = json.loads(shown)
        return {f["topic"]: f for f in report["findings"] if f["level"] == "problem"}
