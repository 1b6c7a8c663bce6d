# SPDX-License-Identifier: Apache-2.0
"""Models: one small protocol (`base`), and one module per provider. Nothing of a provider leaks above this package."""
