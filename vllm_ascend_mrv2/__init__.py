# SPDX-License-Identifier: Apache-2.0
"""vLLM platform plugin for Huawei Ascend NPUs, around Model Runner V2.

Importing this package has no side effect. vLLM finds the platform through the entry point
`vllm.platform_plugins`, which names `register`.
"""

from __future__ import annotations

from functools import cache
from importlib.util import find_spec

PLATFORM_CLASS = "vllm_ascend_mrv2.platform.NPUPlatform"


def register() -> str | None:
    """Name the platform class where torch_npu sees a device, else None.

    vLLM calls this twice per process; it must stay cheap and may not initialise the device.
    """
    if find_spec("torch_npu") is None:
        return None
    import torch
    import torch_npu  # noqa: F401  (registers torch.npu where autoload is switched off)

    if torch.npu.device_count() == 0:
        return None
    from vllm_ascend_mrv2 import orphans

    orphans.watch_parent()
    # Said before the platform is imported, which a name that is gone may end; the platform refuses.
    _say_contract_problems()
    return PLATFORM_CLASS


@cache
def contract_problems() -> tuple[str, ...]:
    """One line for each name of the installed vLLM that is not as this plugin relies on it."""
    import os

    from vllm_ascend_mrv2.builds import cache_root
    from vllm_ascend_mrv2.compat.contract.probe import start_up_problems

    return tuple(start_up_problems(cache_root(os.environ) / "contract"))


@cache
def _say_contract_problems() -> None:
    import logging

    for line in contract_problems():
        logging.getLogger(f"vllm.{__name__}").error("%s", line)
