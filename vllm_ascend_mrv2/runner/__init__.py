# SPDX-License-Identifier: Apache-2.0
"""The Ascend Model Runner V2: core's runner with NPU staging, authority and results."""
