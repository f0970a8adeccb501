# SPDX-License-Identifier: Apache-2.0
"""`evidence`: claims about this project as folders with a protocol, raw data and a verdict.

One module per job: `protocol` (what was decided beforehand), `folder` (names and files),
`provenance` (what ran), `server` and `client` (processes), `runner` (their order), `summary`
(statistics), `verify`. Nothing here imports torch or vLLM; they run in processes of their own.
"""
