# SPDX-License-Identifier: Apache-2.0
"""A server started as the README says, with what its requests may ask for at most: it stays up.

Core's own defaults (256 requests, a tenth of memory beside the KV cache) on the device that
`make serve` gives it.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.engine.server import MODEL_NAME, Server, ServerSpec

HBM_BYTES = 4 << 30
pytestmark = [pytest.mark.long, pytest.mark.xdist_group("memory")]  # captures every size


def test_a_server_with_default_arguments_survives_its_largest_requests(
    smollm2: Path, tmp_path: Path
) -> None:
    spec = ServerSpec(smollm2, "auto", environment=(("ASCEND_EMU_HBM_BYTES", str(HBM_BYTES)),))
    server = Server(spec, tmp_path / "log")
    server.start()
    try:
        client = server.client()
        many = client.completions.create(
            model=MODEL_NAME, prompt="The", n=64, temperature=1.0, top_p=0.9, max_tokens=8
        )
        assert len({choice.text for choice in many.choices}) > 32
        scored = client.completions.create(
            model=MODEL_NAME,
            prompt="word " * 1900,
            max_tokens=2,
            logprobs=5,
            extra_body={"prompt_logprobs": 5},
        )
        assert len(scored.choices[0].prompt_logprobs) > 1900
        assert server.is_healthy()
    finally:
        server.kill()
