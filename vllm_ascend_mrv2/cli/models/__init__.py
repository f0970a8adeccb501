# SPDX-License-Identifier: Apache-2.0
"""`models make`: checkpoints in Hugging Face format for machines that reach no model hub.

Arrays and files only: no torch and no transformers, so that a model can be made before there is a
device, and in seconds.
"""
