# SPDX-License-Identifier: Apache-2.0
"""Module, by name."""


class Module:
    """No object is one."""
