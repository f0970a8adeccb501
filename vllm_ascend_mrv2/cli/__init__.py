# SPDX-License-Identifier: Apache-2.0
"""The console script `vllm-ascend-mrv2`: one module per command, registered in `main`.

Nothing here imports torch at import time: with torch_npu installed and no CANN library on the
loader's path, `import torch` itself fails, and these commands are what puts one there.
"""
