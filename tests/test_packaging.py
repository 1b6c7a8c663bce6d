# SPDX-License-Identifier: Apache-2.0
"""The package as a whole: what is installed, and what importing it costs."""

import importlib.metadata
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

import andon

SOURCE = Path(__file__).parents[1] / "src" / "andon"
FILES = sorted(SOURCE.rglob("*.py"))

# What the extras and the tests bring, and pydantic, which waits until a schema is wanted.
_MODELS = {"openai", "anthropic", "aiobotocore", "google", "mcp"}
_SERVERS = {"fastapi", "uvicorn", "sqlalchemy", "psycopg", "opentelemetry"}
NOT_IMPORTED = {"pydantic", "hypothesis"} | _MODELS | _SERVERS


def _where(file: Path, line: int) -> str:
    return f"{file.relative_to(SOURCE.parent)}:{line}"


def test_the_tests_run_against_the_installed_wheel() -> None:
    assert not Path(andon.__file__).is_relative_to(SOURCE.parent)


def test_the_distribution_is_typed_and_licensed() -> None:
    installed = {file.as_posix() for file in importlib.metadata.files("andon") or []}
    assert "andon/py.typed" in installed
    assert any(name.endswith("/licenses/LICENSE") for name in installed)


def test_the_extra_for_telemetry_brings_who_listens_and_who_sends() -> None:
    """The code imports the API alone; the pages show a program that needs the SDK, and everyone needs an exporter."""
    project = tomllib.loads((SOURCE.parents[1] / "pyproject.toml").read_text())["project"]
    brought = " ".join(project["optional-dependencies"]["otel"])
    assert "opentelemetry-sdk" in brought
    assert "opentelemetry-exporter-" in brought
    ours = "".join(file.read_text() for file in FILES)
    assert "opentelemetry.sdk" not in ours
    assert "opentelemetry.exporter" not in ours


def _modules_after(code: str) -> set[str]:
    code += "; import sys; print(*sys.modules)"
    output = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    return set(output.split())


def test_importing_andon_loads_nothing_until_a_name_is_taken() -> None:
    loaded = _modules_after("import andon; assert andon.__version__")
    assert {name for name in loaded if name.startswith("andon")} == {"andon"}
    assert {"asyncio", "msgspec"} & loaded == set()


def test_taking_a_name_imports_no_extra_and_no_pydantic() -> None:
    loaded = _modules_after("from andon import *")
    assert {"andon.agent.loop", "asyncio"} <= loaded
    assert {name.partition(".")[0] for name in loaded} & NOT_IMPORTED == set()


def test_whichever_name_is_taken_first_is_there() -> None:
    """A name, a part, the list of names, or one of a command: each as the first that a program asks for."""
    for first in ("Agent", "errors.AndonError", "core.run.handle.Run", "__all__", "__dir__()"):
        _modules_after(f"import andon; assert andon.{first}; assert andon.Agent is vars(andon)['Agent']")
    _modules_after("import andon.errors; from andon import cli, tool; assert callable(tool)")
    assert {"Agent", "__version__", "errors"} <= set(dir(andon))


def test_what_a_test_puts_in_place_of_a_name_stays_there(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever else is asked for meanwhile: a slip, or what those ask for who inspect every module."""
    stand_in = object()
    monkeypatch.setattr(andon, "Agent", stand_in)
    assert not hasattr(andon, "Agnet")
    assert not hasattr(andon, "__wrapped__")
    assert andon.Agent is stand_in


def test_a_name_that_is_not_there_says_so() -> None:
    with pytest.raises(AttributeError, match="module 'andon' has no attribute 'Agnet'") as caught:
        andon.Agnet  # type: ignore[attr-defined]  # noqa: B018 - asking is the test
    assert (caught.value.name, caught.value.obj) == ("Agnet", andon)  # from which Python makes "Did you mean: 'Agent'?"
    with pytest.raises(ImportError, match="cannot import name 'Agnet' from 'andon'"):
        from andon import Agnet  # type: ignore[attr-defined]  # noqa: F401


def test_a_run_without_a_shared_store_imports_nothing_of_what_that_needs() -> None:
    loaded = _modules_after(
        "from andon import Agent; from andon.models.scripted import ScriptedModel;"
        "assert Agent('Plain', ScriptedModel('Hello.')).run('Hi').content == 'Hello.'"
    )
    late = {
        "andon.core.shared.worker",
        "andon.core.shared.leased_run",
        "andon.core.shared.store",
        "andon.core.shared.remote",
        "andon.agent.orphan_end",
    }
    assert loaded & late == set()


def test_every_file_names_its_licence() -> None:
    header = "# SPDX-License-Identifier: Apache-2.0\n"
    without = [_where(file, 1) for file in FILES if not file.read_text().startswith(header)]
    assert FILES
    assert not without, "\n".join(without)
