# SPDX-License-Identifier: Apache-2.0
"""The error of a kernel of core that was reached and has no replacement here."""

from __future__ import annotations


class NotReplacedError(NotImplementedError):
    """A feature reached a Triton kernel of core that this package does not replace.

    The message starts with the feature's name, since the platform should have refused it.
    """
