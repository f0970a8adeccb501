# SPDX-License-Identifier: Apache-2.0
"""The cores that we know: complete, ordered, and which of them is verified or near."""

from __future__ import annotations

import re

import pytest

from vllm_ascend_mrv2.compat import pins

REFERENCE = {"vllm": "0.32.0", "torch": "2.13.0+cpu", "torch-npu": "2.13.0"}


def test_the_cores_in_order_and_their_torch() -> None:
    assert [(pin.vllm, pin.torch, pin.torch_npu) for pin in pins.cores()] == [
        ("0.30.0", "2.13.0", "2.13.0"),
        ("0.31.0", "2.13.0", "2.13.0"),
        ("0.32.0", "2.13.0", "2.13.0"),
        ("0.33.0", "2.14.0", "2.14.0"),
    ]


@pytest.mark.parametrize("pin", pins.cores(), ids=lambda pin: pin.vllm)
def test_each_core_is_complete(pin: pins.CorePin) -> None:
    assert re.fullmatch(r"[0-9a-f]{9,40}", pin.commit)
    assert set(pin.wheel_sha256) == {"x86_64", "aarch64"}
    for digest in (pin.sdist_sha256, *pin.wheel_sha256.values()):
        assert re.fullmatch(r"[0-9a-f]{64}", digest)
    assert pin.status in ("verified", "static", "differs")
    assert bool(pin.verified) == (pin.status == "verified")
    assert not (pin.verified and pin.not_run)
    assert "  " not in pin.not_run


def test_no_hash_stands_twice() -> None:
    digests = [d for pin in pins.cores() for d in (pin.sdist_sha256, *pin.wheel_sha256.values())]
    assert len(set(digests)) == len(digests)


def test_the_reference_is_verified() -> None:
    assert pins.reference() in pins.verified_cores()
    assert pins.stack() == {"vllm": "0.32.0", "torch": "2.13.0", "torch-npu": "2.13.0"}


def test_a_verified_set_matches_as_a_whole() -> None:
    assert pins.matching(REFERENCE.get) == pins.reference()
    assert pins.matching({**REFERENCE, "torch-npu": "2.14.0"}.get) is None
    assert pins.matching({}.get) is None
    assert pins.version_problems(REFERENCE.get) == []


@pytest.mark.parametrize(
    ("core", "expected"),
    [
        ("0.29.1", "0.30.0"),
        ("0.30.0", "0.30.0"),
        ("0.31.2", "0.31.0"),
        ("0.40.0", "0.33.0"),
        ("0.32.1.dev7+g5df63a720", "0.32.0"),
        (None, "0.32.0"),
        ("source", "0.32.0"),
    ],
)
def test_the_nearest_set(core: str | None, expected: str) -> None:
    assert pins.nearest(core, among=pins.cores()).vllm == expected


def test_each_problem_names_its_command() -> None:
    found = {"vllm": "0.31.2", "torch": "2.14.0", "torch-npu": "2.13.0"}
    assert pins.version_problems(found.get, pins.cores()) == [
        "vllm 0.31.2: this release is verified with 0.31.0; vllm-ascend-mrv2 install-core 0.31.0 "
        "--replace",
        "torch 2.14.0: this release is verified with 2.13.0; vllm-ascend-mrv2 install-core "
        "0.31.0 --replace",
    ]
