# SPDX-License-Identifier: Apache-2.0
"""When telemetry is on, and that it costs nothing when it is not."""

from __future__ import annotations

import subprocess
import sys
from typing import Any

import pytest
from opentelemetry import trace
from opentelemetry.metrics import NoOpMeterProvider
from opentelemetry.trace import NoOpTracerProvider

from andon import Agent, Telemetry
from andon.agent.loop import Loop
from andon.core.run.handle import local_run
from andon.errors import ConfigurationError
from andon.models.scripted import ScriptedModel
from andon.telemetry.settings import CONTENT_VARIABLE
from tests.telemetry.watching import Watch, facts


def run_python(code: str) -> list[str]:
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()


HELLO = """
import sys
from andon import Agent
from andon.models.scripted import ScriptedModel
def hello(**options):
    agent = Agent("A", ScriptedModel("Hello."), **options)
    assert agent.run("Hello").content == "Hello."
"""


def is_observed(agent: Agent) -> bool:
    loop = local_run(agent.start("Hello")).work
    assert isinstance(loop, Loop)
    return loop.observer is not None


def test_without_a_provider_nothing_is_imported_for_it() -> None:
    code = HELLO + "hello(); print(*[name for name in sys.modules if name.startswith('opentelemetry')])"
    assert run_python(code) == [""]


def test_with_the_api_alone_tracing_is_not_loaded() -> None:
    code = HELLO + "import opentelemetry.trace, opentelemetry.metrics; hello()\n"
    code += "print('andon.telemetry.tracing' in sys.modules)"
    assert run_python(code) == ["False"]


@pytest.mark.parametrize("signal", ["trace", "metrics"])
def test_a_provider_that_the_program_sets_is_told_at_once(signal: str) -> None:
    code = HELLO + "hello()\n"
    if signal == "trace":
        code += """
from opentelemetry import trace
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
exporter = InMemorySpanExporter()
provider = TracerProvider()
provider.add_span_processor(SimpleSpanProcessor(exporter))
trace.set_tracer_provider(provider)
hello()
print(*(span.name for span in exporter.get_finished_spans()), sep="\\n")
"""
        assert run_python(code) == ["chat scripted", "turn", "invoke_agent A"]
    else:
        code += """
from opentelemetry import metrics
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader
reader = InMemoryMetricReader()
metrics.set_meter_provider(MeterProvider([reader]))
hello()
data = reader.get_metrics_data().resource_metrics[0].scope_metrics[0]
print(data.scope.name, *(metric.name for metric in data.metrics), sep="\\n")
"""
        scope, *names = run_python(code)
        assert scope == "andon"
        assert "andon.runs" in names


def test_a_loop_has_an_observer_only_if_telemetry_is_on() -> None:
    assert trace.get_tracer_provider().__class__.__module__ == "opentelemetry.trace", "a test has set a provider"
    model = ScriptedModel(then="Hello.")
    assert not is_observed(Agent("A", model))
    assert is_observed(Watch().agent("A", model))


def test_it_can_be_switched_off() -> None:
    watch = Watch(enabled=False)
    watch.agent("A", ScriptedModel("Hello.")).run("Hello")
    assert watch.spans == []
    assert watch.metric("andon.runs") == []


def test_one_of_both_is_enough() -> None:
    watch = Watch()
    spans = Telemetry(tracer_provider=watch.tracers, meter_provider=NoOpMeterProvider())
    counts = Telemetry(tracer_provider=NoOpTracerProvider(), meter_provider=watch.meters)
    Agent("A", ScriptedModel("Hello."), telemetry=spans).run("Hello")
    assert (len(watch.spans), watch.metric("andon.runs")) == (3, [])
    Agent("A", ScriptedModel("Hello."), telemetry=counts).run("Hello")
    assert (len(watch.spans), len(watch.metric("andon.runs"))) == (3, 1)


@pytest.mark.parametrize(("value", "content", "told"), [
    (None, None, False),
    ("true", None, True),
    ("SPAN_ONLY", None, True),
    ("event_only", None, False),
    ("true", False, False),
    ("false", True, True),
])  # fmt: skip
def test_content_by_the_environment(
    monkeypatch: pytest.MonkeyPatch, value: str | None, content: bool | None, told: bool
) -> None:
    monkeypatch.delenv(CONTENT_VARIABLE, raising=False)
    if value is not None:
        monkeypatch.setenv(CONTENT_VARIABLE, value)
    watch = Watch(content=content)
    watch.agent("A", ScriptedModel("Hello.")).run("Hello")
    assert ("gen_ai.input.messages" in facts(watch.one("invoke_agent A"))) is told


def test_what_is_no_telemetry_is_refused() -> None:
    wrong: Any = False
    with pytest.raises(ConfigurationError, match=r"Telemetry\(enabled=False\)"):
        Agent("A", ScriptedModel("Hello."), telemetry=wrong)


def test_a_missing_package_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(ConfigurationError, match=r'pip install "andon\[otel\]"'):
        Telemetry(content=True)
    Telemetry(content=True, enabled=False)


@pytest.mark.parametrize(("facts_of_the_class", "provider"), [
    ({"provider": "OpenAI"}, "openai"),
    ({"provider": "Amazon", "telemetry_name": "aws.bedrock"}, "aws.bedrock"),
    ({"provider": "Andon"}, "andon"),
    ({"provider": None}, "acme"),
])  # fmt: skip
def test_the_provider_is_named_as_the_conventions_name_it(facts_of_the_class: dict[str, Any], provider: str) -> None:
    watch = Watch()
    model = type("Model", (ScriptedModel,), {"__module__": "acme.llm", **facts_of_the_class})("Hello.")
    watch.agent("A", model).run("Hello")
    assert facts(watch.one("chat scripted"))["gen_ai.provider.name"] == provider


def test_a_model_need_not_have_an_id() -> None:
    watch = Watch()
    model = ScriptedModel("Hello.")
    del model.id
    watch.agent("A", model).run("Hello")
    assert "gen_ai.request.model" not in facts(watch.one("chat"))
