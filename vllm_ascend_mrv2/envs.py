# SPDX-License-Identifier: Apache-2.0
"""Every environment switch of the plugin, in one table.

No other module reads `os.environ` for a switch of ours. The README's table is generated from
here by a test's comparison, so a switch that is not described cannot be added.
"""

from __future__ import annotations

import math
import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

PREFIX = "VLLM_ASCEND_MRV2_"


class SwitchError(ValueError):
    """A switch has a value that it does not know."""


@dataclass(frozen=True)
class Switch:
    """One environment variable: its name, default, allowed values (empty: any) and meaning."""

    name: str
    default: str
    values: tuple[str, ...]
    meaning: str

    @property
    def takes(self) -> str:
        """The values that it takes, in words; empty: any."""
        return " or ".join(self.values)

    def is_valid(self, value: str) -> bool:
        """Whether it takes that value."""
        return not self.values or value in self.values

    def read(self, environ: Mapping[str, str] | None = None) -> str:
        """Return the switch's value. Raises SwitchError for one that it does not take."""
        value = (os.environ if environ is None else environ).get(self.name, self.default)
        if not self.is_valid(value):
            default = f" (default {self.default})" if self.default else ""
            raise SwitchError(
                f"{self.name}={value!r} is not known; it takes {self.takes}{default}. "
                "Unset it or correct it."
            )
        return value


class SecondsSwitch(Switch):
    """A switch whose value is a number of seconds."""

    @property
    def takes(self) -> str:
        return "a finite number of seconds above 0"

    def is_valid(self, value: str) -> bool:
        try:
            return float(value) > 0 and math.isfinite(float(value))
        except ValueError:
            return False

    def seconds(self) -> float:
        """The value as a number. Raises SwitchError as `read` does."""
        return float(self.read())


class FolderSwitch(Switch):
    """A switch whose value names a folder, there or not; ~ is a home."""

    @property
    def takes(self) -> str:
        return "a folder"

    def is_valid(self, value: str) -> bool:
        try:
            Path(value).expanduser()
        except RuntimeError:  # of nobody
            return False
        return True


PIN_MEMORY = Switch(
    PREFIX + "PIN_MEMORY",
    "0",
    ("0", "1"),
    "Debug only. 1 reports pinned host memory as available; unproven on CANN (docs/real-card.md).",
)
SEQ_LENS = Switch(
    PREFIX + "SEQ_LENS",
    "auto",
    ("auto", "device"),
    "Debug only. `device` reads sequence lengths back from the device on every step.",
)
SPEC_LENGTHS = Switch(
    PREFIX + "SPEC_LENGTHS",
    "exact",
    ("exact", "masked"),
    "`masked` waits for no lengths while drafts are verified: attention hides what lies beyond.",
)
INPUT_COPY = Switch(
    PREFIX + "INPUT_COPY",
    "prepare",
    ("prepare", "read"),
    "Debug only. `read` copies inputs when they are read; refused with graphs and async steps.",
)
HOTPATH = Switch(
    PREFIX + "HOTPATH",
    "auto",
    ("auto", "off"),
    "`off` updates graphs by the Python reference even where the compiled hot path is built.",
)
REPLAY_TIMEOUT_S = SecondsSwitch(
    PREFIX + "REPLAY_TIMEOUT_S",
    "300",
    (),
    "Seconds after which a step that does not end is reported and the engine ends.",
)
SINGLE_PROCESS = Switch(
    PREFIX + "SINGLE_PROCESS",
    "0",
    ("0", "1"),
    "1, all ranks in one process, is refused; docs/single-process.md says what stands in the way.",
)
UNVERIFIED_CORE = Switch(
    PREFIX + "UNVERIFIED_CORE",
    "0",
    ("0", "1"),
    "Debug only. 1 starts on every vLLM in compat/pins.toml, also where its tests have not passed.",
)
CACHE = FolderSwitch(
    PREFIX + "CACHE",
    "",
    (),
    "Folder for what the command line builds (default: ~/.cache/vllm-ascend-mrv2).",
)

SWITCHES: tuple[Switch, ...] = (
    PIN_MEMORY,
    SEQ_LENS,
    SPEC_LENGTHS,
    INPUT_COPY,
    HOTPATH,
    REPLAY_TIMEOUT_S,
    SINGLE_PROCESS,
    UNVERIFIED_CORE,
    CACHE,
)


def unknown_switches(environ: Mapping[str, str] | None = None) -> list[str]:
    """Names in the environment that carry our prefix and that no switch of ours has."""
    known = {switch.name for switch in SWITCHES}
    names = os.environ if environ is None else environ
    return sorted(name for name in names if name.startswith(PREFIX) and name not in known)


# How alike the part after the prefix must be to a switch's for it to be meant, 1 being the same.
_ALIKE = 0.7


def meant(name: str, known: Iterable[str], prefix: str = PREFIX) -> str:
    """ "did you mean X? " with the name of `known` that is most like a misspelt one, or ""."""
    import difflib  # not for a start whose switches are right

    ends = [one.removeprefix(prefix) for one in known]
    near = difflib.get_close_matches(name.removeprefix(prefix), ends, 1, _ALIKE)
    return f"did you mean {prefix}{near[0]}? " if near else ""


def mend_unknown(name: str) -> str:
    """What to do about a name with our prefix that no switch has."""
    return f"{meant(name, [switch.name for switch in SWITCHES])}unset {name}"


def refuse_unknown(environ: Mapping[str, str] | None = None) -> None:
    """Raises SwitchError where a name carries our prefix and no switch of ours has it."""
    if unknown := unknown_switches(environ):
        mend = "; ".join(map(mend_unknown, unknown))
        raise SwitchError(f"unknown switches {', '.join(unknown)}: {mend}. They are in the README.")
