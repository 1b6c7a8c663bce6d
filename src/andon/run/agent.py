# SPDX-License-Identifier: Apache-2.0
from andon.core.events import RunEvent

__all__ = ["RunEvent"]
