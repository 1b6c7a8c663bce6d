# SPDX-License-Identifier: Apache-2.0
"""An SDK is found without being imported, and a missing one is an error with the exact `pip install`."""

from __future__ import annotations

import sys

import pytest

from andon.errors import MissingExtraError
from andon.models.common.sdk import Sdk


@pytest.mark.parametrize("module", ["no_such_sdk", "no_such_sdk.genai", "email.no_such_sdk"])
def test_a_missing_sdk_is_named_with_what_to_install(module: str) -> None:
    sdk = Sdk("Acme", module=module, package="acme-genai", extra="acme")
    for find in (sdk.check, sdk.load):
        with pytest.raises(MissingExtraError) as caught:
            find()
        assert 'Acme models need the acme-genai package: pip install "andon[acme]" (' in str(caught.value)
        assert caught.value.__cause__ is None


def test_checking_does_not_import(monkeypatch: pytest.MonkeyPatch) -> None:
    sdk = Sdk("Acme", module="this", package="acme", extra="acme")
    monkeypatch.delitem(sys.modules, "this", raising=False)
    sdk.check()
    assert "this" not in sys.modules


def test_loading_imports_a_dotted_name() -> None:
    import xml.dom.minidom

    assert Sdk("Acme", module="xml.dom.minidom", package="acme", extra="acme").load() is xml.dom.minidom
