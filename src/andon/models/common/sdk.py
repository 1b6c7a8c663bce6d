# SPDX-License-Identifier: Apache-2.0
"""A provider's official SDK. It is imported at the first request, because the import takes up to two seconds."""

from __future__ import annotations

import importlib
import importlib.util
import sys
from typing import Any

from msgspec import Struct

from andon.errors import MissingExtraError


class Sdk(Struct, frozen=True):
    """Where an SDK is found: `Sdk("OpenAI", module="openai", package="openai", extra="openai")`."""

    provider: str
    module: str
    """What is imported."""
    package: str
    """The distribution that has the module."""
    extra: str
    """The extra of andon that installs the package."""

    def load(self) -> Any:
        """The imported module. The first call imports it, so it belongs into a thread."""
        try:
            return importlib.import_module(self.module)
        except ImportError as error:
            raise self._missing(error) from None

    def check(self) -> None:
        """Raise `MissingExtraError` if the SDK is not installed. It is not imported."""
        if sys.modules.get(self.module) is None and not self._is_installed():
            raise self._missing("it is not installed")

    def _is_installed(self) -> bool:
        try:
            return importlib.util.find_spec(self.module) is not None
        except ModuleNotFoundError:  # of a dotted name, the parent is missing
            return False

    def _missing(self, why: object) -> MissingExtraError:
        return MissingExtraError(
            f'{self.provider} models need the {self.package} package: pip install "andon[{self.extra}]" ({why})'
        )
