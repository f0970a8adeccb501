# SPDX-License-Identifier: Apache-2.0
"""Measurements on the emulated device: counts are exact, times are host times of one machine."""
