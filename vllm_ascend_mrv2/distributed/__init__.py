# SPDX-License-Identifier: Apache-2.0
"""Several devices: the communicator on HCCL, and what ranks agree on before they run a graph."""
