# SPDX-License-Identifier: Apache-2.0
"""What transformers on the CPU says: greedy tokens, and teacher-forced logits where they differ.

Runs transformers in a process of its own (`python -m tests.engine.references JOB RESULT`), so that
a test process keeps its memory and its device state. Nothing here uses a device or vLLM.
"""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
import sys
import tempfile
import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any

from tests.engine.checkpoints import BUILD, REPOSITORY, digest

FLOAT32_TOLERANCE = 1e-3  # logits; the bound for a tie in float32
BFLOAT16_STEPS = 2  # the bound for a tie in bfloat16, in steps of the best logit


class NearTieWarning(UserWarning):
    """A served token differs from the reference's where the reference is all but undecided."""


@dataclass(frozen=True)
class Deviation:
    """One served token that is not the reference's best, by teacher-forced logits.

    gap: logit of the reference's best token minus that of the served one. tolerance: its bound.
    """

    prompt: int
    position: int
    served: int
    best: int
    gap: float
    tolerance: float

    @property
    def is_tie(self) -> bool:
        return self.gap <= self.tolerance

    def __str__(self) -> str:
        verdict = "a near tie" if self.is_tie else "WRONG"
        return (
            f"prompt {self.prompt}, new token {self.position}: served {self.served}, reference "
            f"{self.best}, gap {self.gap:.3g} (bound {self.tolerance:.3g}): {verdict}"
        )


def greedy(
    checkpoint: Path, dtype: str, prompts: Sequence[Sequence[int]], new_tokens: int
) -> list[list[int]]:
    """transformers' greedy continuation of each prompt: `new_tokens` ids, end tokens ignored.

    Cached in build/references by content: checkpoint, dtype, prompts, length and versions.
    """
    job = {"do": "greedy", "dtype": dtype, "prompts": prompts, "new_tokens": new_tokens}
    identity = [digest(checkpoint), version("transformers"), version("torch"), job]
    key = hashlib.sha256(json.dumps(identity).encode()).hexdigest()[:24]
    cached = BUILD / "references" / f"{key}.json"
    if not cached.is_file():
        cached.parent.mkdir(parents=True, exist_ok=True)
        result = json.dumps(_run(checkpoint, job))
        partial = cached.with_suffix(f".{os.getpid()}")
        partial.write_text(result)
        partial.rename(cached)
    return json.loads(cached.read_text())


def deviations(
    checkpoint: Path,
    dtype: str,
    prompts: Sequence[Sequence[int]],
    served: Sequence[Sequence[int]],
    expected: Sequence[Sequence[int]],
) -> list[Deviation]:
    """Every place where `served` is not what the reference would say after the same tokens.

    A sequence that equals `expected` has none. Another is judged teacher-forced from its start, so
    that one near tie does not hide what comes after it; the place where it first differs from
    `expected` counts even if teacher-forcing breaks the tie the other way.
    """
    different = [i for i, tokens in enumerate(served) if list(tokens) != list(expected[i])]
    if not different:
        return []
    job = {
        "do": "judge",
        "dtype": dtype,
        "sequences": [
            {"prompt": prompts[i], "served": served[i], "expected": expected[i]} for i in different
        ],
    }
    return [
        Deviation(prompt=different[row.pop("sequence")], **row) for row in _run(checkpoint, job)
    ]


def assert_equal_but_for_ties(
    checkpoint: Path,
    dtype: str,
    prompts: Sequence[Sequence[int]],
    served: Sequence[Sequence[int]],
    new_tokens: int,
    max_tie_share: float,
) -> None:
    """Fail where `served` is not the reference's greedy answer. Near ties are printed, as warnings.

    max_tie_share: the largest share of tokens that may be near ties: many would be an error that
    hides below the bound.
    """
    expected = greedy(checkpoint, dtype, prompts, new_tokens)
    assert_varied(expected)
    assert [len(tokens) for tokens in served] == [new_tokens] * len(prompts)
    found = deviations(checkpoint, dtype, prompts, served, expected)
    if found:
        lines = "\n".join(f"  {deviation}" for deviation in found)
        warnings.warn(f"{checkpoint.name}, {dtype}:\n{lines}", NearTieWarning, stacklevel=2)
    wrong = [str(deviation) for deviation in found if not deviation.is_tie]
    assert not wrong, f"{checkpoint.name}, {dtype}:\n" + "\n".join(wrong)
    total = new_tokens * len(prompts)
    assert len(found) <= max_tie_share * total, f"{len(found)} near ties in {total} tokens"


def assert_varied(sequences: Sequence[Sequence[int]]) -> None:
    """Fail where answers are so monotonous that a fault of attention would not show in them."""
    distinct = [len(set(tokens)) for tokens in sequences]
    poor = sum(count < 4 for count in distinct)
    together = len({token for tokens in sequences for token in tokens})
    assert poor <= len(sequences) // 4, f"{poor} of {len(sequences)} references repeat themselves"
    enough = min(40, 8 * len(sequences))
    assert together >= enough, f"only {together} different tokens in all references"


def _run(checkpoint: Path, job: dict[str, Any]) -> Any:
    with tempfile.TemporaryDirectory() as folder:
        question, answer = Path(folder, "job.json"), Path(folder, "result.json")
        question.write_text(json.dumps({**job, "checkpoint": str(checkpoint)}))
        command = [sys.executable, "-m", "tests.engine.references", question, answer]
        path = os.pathsep.join(filter(None, [str(REPOSITORY), os.environ.get("PYTHONPATH")]))
        ran = subprocess.run(
            command,
            cwd=folder,
            env={**os.environ, "PYTHONPATH": path},
            capture_output=True,
            text=True,
            check=False,
        )
        assert ran.returncode == 0, f"the reference failed:\n{ran.stdout}\n{ran.stderr}"
        return json.loads(answer.read_text())


def _main(question: Path, answer: Path) -> None:
    import torch
    from transformers import AutoModelForCausalLM

    job = json.loads(question.read_text())
    dtype = getattr(torch, job["dtype"])
    model = AutoModelForCausalLM.from_pretrained(job["checkpoint"], dtype=dtype).eval()
    with torch.inference_mode():
        if job["do"] == "greedy":
            result: Any = [_greedy(model, p, job["new_tokens"]) for p in job["prompts"]]
        else:
            result = [
                {"sequence": index, **row}
                for index, sequence in enumerate(job["sequences"])
                for row in _judge(model, sequence)
            ]
    answer.write_text(json.dumps(result))


def _greedy(model: Any, prompt: list[int], new_tokens: int) -> list[int]:
    import torch

    ids = torch.tensor([prompt])
    out = model.generate(
        ids,
        attention_mask=torch.ones_like(ids),
        max_new_tokens=new_tokens,
        do_sample=False,
        eos_token_id=None,
        pad_token_id=0,
    )
    return out[0, len(prompt) :].tolist()


def _judge(model: Any, sequence: dict[str, list[int]]) -> list[dict[str, float]]:
    import torch

    prompt, served, expected = (sequence[key] for key in ("prompt", "served", "expected"))
    ids = torch.tensor([prompt + served])
    logits = model(ids).logits[0, len(prompt) - 1 : -1].float()
    best = logits.max(dim=-1)
    chosen = torch.tensor(served)
    gaps = best.values - logits.gather(1, chosen[:, None])[:, 0]
    if model.dtype == torch.bfloat16:
        step = torch.exp2(best.values.abs().log2().floor() - 7)  # bfloat16 keeps 8 bits
        tolerances = BFLOAT16_STEPS * step
    else:
        tolerances = torch.full_like(gaps, FLOAT32_TOLERANCE)
    bests = best.indices.clone()
    first = next(i for i, (a, b) in enumerate(zip(served, expected, strict=True)) if a != b)
    if bests[first] == chosen[first]:
        bests[first] = expected[first]
        gaps[first] = best.values[first] - logits[first, expected[first]]
    return [
        {
            "position": i,
            "served": served[i],
            "best": int(bests[i]),
            "gap": float(gaps[i]),
            "tolerance": float(tolerances[i]),
        }
        for i in range(len(served))
        if bests[i] != served[i]
    ]


if __name__ == "__main__":
    _main(Path(sys.argv[1]), Path(sys.argv[2]))
