# SPDX-License-Identifier: Apache-2.0
"""A provider is one package in `models` and one extra: no other package of ours knows it, nor does it know another."""

from __future__ import annotations

import ast
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
MODELS = ROOT / "src" / "andon" / "models"
PROVIDERS = sorted(path.name for path in MODELS.iterdir() if (path / "__init__.py").exists() and path.name != "common")


def imported(folder: Path) -> dict[str, set[str]]:
    """What the files there import of ours, imports for types included."""
    found: dict[str, set[str]] = {}
    for file in folder.rglob("*.py"):
        names = found.setdefault(file.relative_to(MODELS.parent).as_posix(), set())
        for node in ast.walk(ast.parse(file.read_text())):
            if isinstance(node, ast.Import):
                names |= {alias.name for alias in node.names}
            elif isinstance(node, ast.ImportFrom):
                assert not node.level, f"{file} has a relative import"
                names |= {f"{node.module}.{alias.name}" for alias in node.names}
    return found


@pytest.mark.parametrize("provider", PROVIDERS)
def test_a_provider_is_an_extra(provider: str) -> None:
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    assert extras[provider]
    assert provider in extras["all"][0].partition("[")[2].rstrip("]").split(",")


def test_common_parts_know_no_provider() -> None:
    allowed = ("andon.models.base", "andon.models.common", "andon.errors", "andon.messages", "andon.core.markers")
    wrong = {
        f"{file}: {name}"
        for file, names in imported(MODELS / "common").items()
        for name in names
        if name.startswith("andon") and not name.startswith(allowed)
    }
    assert not wrong


@pytest.mark.parametrize("provider", PROVIDERS)
def test_a_provider_knows_no_other_and_nothing_else_of_ours_knows_it(provider: str) -> None:
    own = f"andon.models.{provider}"
    allowed = ("andon.models.base.", "andon.models.common.", f"{own}.")
    wrong = {
        f"{file}: {name}"
        for file, names in imported(MODELS / provider).items()
        for name in names
        if name.startswith("andon.models") and not name.startswith(allowed)
    }
    outside = imported(MODELS.parent)
    wrong |= {
        f"{file}: {name}"
        for file, names in outside.items()
        for name in names
        if name.startswith(own) and not file.startswith(f"models/{provider}/")
    }
    assert not wrong


@pytest.mark.parametrize("provider", PROVIDERS)
def test_importing_a_provider_imports_only_ours(provider: str) -> None:
    """No SDK, and no HTTP library: these are imported at the first request, in a thread."""

    def loaded(module: str) -> set[str]:
        program = f"import sys, msgspec, {module}; print(*{{name.partition('.')[0] for name in sys.modules}})"
        done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
        return set(done.stdout.split())

    new = loaded(f"andon.models.{provider}") - loaded("andon.models.base") - sys.stdlib_module_names
    assert not new
