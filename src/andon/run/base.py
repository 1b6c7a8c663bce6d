# SPDX-License-Identifier: Apache-2.0
from andon.core.states import RunStatus

__all__ = ["RunStatus"]
