# SPDX-License-Identifier: Apache-2.0
# ruff: noqa: F403
"""Every kernel case again, on the NPU (see this folder's conftest)."""

from tests.unit.kernels.test_batch_shard import *
from tests.unit.kernels.test_block_table import *
from tests.unit.kernels.test_gumbel import *
from tests.unit.kernels.test_input_batch import *
from tests.unit.kernels.test_launches import *
from tests.unit.kernels.test_lora import *
from tests.unit.kernels.test_prompt_embeds import *
from tests.unit.kernels.test_sampler import *
from tests.unit.kernels.test_sampling import *
from tests.unit.kernels.test_thinking_budget import *
from tests.unit.kernels.test_watermark import *
