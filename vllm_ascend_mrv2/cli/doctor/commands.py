# SPDX-License-Identifier: Apache-2.0
"""`doctor`: prints what collect saw and rules concluded, as lines or as JSON."""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from dataclasses import asdict, replace

import click

from vllm_ascend_mrv2.cli.console import say
from vllm_ascend_mrv2.cli.doctor import device as probes
from vllm_ascend_mrv2.cli.doctor import rules
from vllm_ascend_mrv2.cli.doctor.collect import collect
from vllm_ascend_mrv2.cli.doctor.facts import Facts
from vllm_ascend_mrv2.cli.doctor.rules import Finding, Level
from vllm_ascend_mrv2.compat import pins

SCHEMA = 1  # of the JSON; raised when a field changes its meaning


def as_json(facts: Facts, findings: Sequence[Finding]) -> str:
    """One object: schema, is_verified, nearest set with its command, findings, facts."""
    near = pins.nearest(facts.cores[0].version if facts.cores else None)
    return json.dumps(
        {
            "schema": SCHEMA,
            "is_verified": rules.is_verified(facts),
            "nearest": {**near.versions, "command": rules.install_command(near, facts)},
            "findings": [{**asdict(f), "level": f.level.value} for f in findings],
            "facts": asdict(facts),
        },
        indent=2,
    )


def as_text(findings: Sequence[Finding]) -> str:
    """A line for each finding, the next step below a problem, and the sum."""
    width = max(len(finding.topic) for finding in findings)
    lines = []
    for finding in findings:
        lines.append(f"{finding.level.value:<8} {finding.topic:<{width}}  {finding.says}")
        if finding.next_step:
            lines.append(f"{'':<8} {'':<{width}}  next: {finding.next_step}")
    count = sum(finding.level is Level.PROBLEM for finding in findings)
    lines.append("")
    lines.append(f"{count} problem{'s' * (count != 1)}." if count else "No problems.")
    return "\n".join(lines)


@click.command()
@click.option("--json", "print_json", is_flag=True, help="Print JSON, for a report or a program.")
@click.option("--device", is_flag=True, help="Also try on the device what this plugin assumes.")
def doctor(print_json: bool, device: bool) -> None:
    """Look at this environment and say what is wrong with it, and what to do.

    Exits with 1 where there is a problem. Works where torch cannot be imported. --device takes a
    minute, needs a device that nothing else uses, and says what it assumes in the same report.
    """
    facts = collect()
    if device and facts.probe.devices:
        say("Trying on the device what this plugin assumes: about a minute.")
        facts = replace(facts, device_probes=probes.run(os.environ))
    elif device:
        facts = replace(facts, device_probes=())
    findings = rules.diagnose(facts)
    click.echo(as_json(facts, findings) if print_json else as_text(findings))
    if any(finding.level is Level.PROBLEM for finding in findings):
        raise SystemExit(1)
