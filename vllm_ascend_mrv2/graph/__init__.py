# SPDX-License-Identifier: Apache-2.0
"""ACL graphs: capture, the replay protocol with its watchdog, and the decode step as one graph."""
