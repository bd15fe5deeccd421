"""All claims, judged."""

from __future__ import annotations

from . import claims_asam, claims_asam_steps, claims_framework, claims_kernel
from .claims import Claim, Evidence

JUDGES = (
    *claims_framework.JUDGES,
    *claims_kernel.JUDGES,
    *claims_asam.JUDGES,
    *claims_asam_steps.JUDGES,
)


def judge_all(evidence: Evidence) -> list[Claim]:
    """In the order of the seeds."""
    return sorted((judge(evidence) for judge in JUDGES), key=lambda claim: claim.seed)
