# SPDX-License-Identifier: Apache-2.0
"""vLLM platform plugin for Huawei Ascend NPUs, around Model Runner V2.

Importing this package has no side effect. vLLM finds the platform through the entry point
`vllm.platform_plugins`, which names `register`.
"""

from __future__ import annotations

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

    return PLATFORM_CLASS if torch.npu.device_count() > 0 else None
