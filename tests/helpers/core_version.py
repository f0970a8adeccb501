# SPDX-License-Identifier: Apache-2.0
"""The core that these tests run on, for what core itself does otherwise in another release."""

from __future__ import annotations

from importlib.metadata import version

from packaging.version import Version


def core_is_before(release: str) -> bool:
    """Whether the installed vLLM is older than that release."""
    return Version(Version(version("vllm")).base_version) < Version(release)
