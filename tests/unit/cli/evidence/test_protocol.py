# SPDX-License-Identifier: Apache-2.0
"""protocol.json: what it must say, and the order that follows from it."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest

from vllm_ascend_mrv2.cli.evidence.protocol import ProtocolError, from_json, smallest_p


def test_a_protocol_reads_back_as_it_was_written(protocol_json: dict[str, Any]) -> None:
    protocol = from_json(json.dumps(protocol_json))
    assert protocol.variant("slow").arguments == ()
    assert protocol.workload.request_rate == 0.0
    assert protocol.mechanism is not None
    assert protocol.mechanism.expected["d2h"].difference == -1


def test_starts_alternate_abba_and_pair_neighbours(protocol_json: dict[str, Any]) -> None:
    schedule = from_json(json.dumps(protocol_json)).schedule()
    letters = "".join("A" if s.variant == "quick" else "B" for s in schedule)
    assert letters == "ABBAABBAAB"
    assert [s.pair for s in schedule] == [0, 0, 1, 1, 2, 2, 3, 3, 4, 4]
    assert [schedule[0].folder, schedule[9].folder] == ["01-quick", "10-slow"]


def test_the_smallest_p_of_five_pairs_is_one_sixteenth() -> None:
    assert smallest_p(5) == 1 / 16


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda p: p.pop("claim"), "claim missing"),
        (lambda p: p.update(extra=1), "extra not known"),
        (lambda p: p["workload"].pop("seed"), "workload: seed missing"),
        (lambda p: p["workload"].update(temperature=0.5), "workload.temperature: must be 0"),
        (lambda p: p["workload"].update(requests="6"), "workload.requests: must be int"),
        (lambda p: p["workload"].update(dataset="sharegpt"), "'sharegpt' is not known"),
        (lambda p: p["workload"].update(dataset_path="a"), "workload.dataset_path"),
        (lambda p: p["variants"].pop(), "variants: must have exactly 2 entries"),
        (lambda p: p["variants"][1].update(name="quick"), "variants: must have two different"),
        (lambda p: p["variants"][1].update(name="../x"), "names are of a-z"),
        (lambda p: p.update(baseline="quick"), "candidate: must be the other one"),
        (lambda p: p.update(starts_per_variant=4), "at least 5"),
        (lambda p: p.update(exclusion=["slow_request"]), "exclusion: knows only"),
        (lambda p: p.update(max_p=0.05), "cannot be below 0.0625"),
        (lambda p: p["decisions"].pop("INCONCLUSIVE"), "decisions: needs one for each"),
        (lambda p: p["primary"].update(metric="itl"), "'itl' is not known"),
        (lambda p: p.update(minimum_detectable_effect=0), "minimum_detectable_effect"),
        (lambda p: p.update(id="made-up"), "id: must be <date>-<topic>"),
    ],
)
def test_what_no_run_could_follow_is_refused(
    protocol_json: dict[str, Any], change: Callable[[dict[str, Any]], Any], message: str
) -> None:
    change(protocol_json)
    with pytest.raises(ProtocolError, match=message):
        from_json(json.dumps(protocol_json))
