# SPDX-License-Identifier: Apache-2.0
"""Tools to test your own agents: offline, in virtual time, and cancelled at every step.

- `explore` disturbs a scenario at each of its steps (explorer); `reading` lets it leave a stream.
- `virtual_run` is `asyncio.run` in virtual time (virtual).
- `probe` looks inside a run: its events so far, its steps, the end of its last hooks (probe).
- `check_model` is the conformance suite for a model of your own (conformance).
- `validate` checks a conversation against the rules of the providers (validators).
- `ScriptedModel` answers with a script (andon.models.scripted).
- `andon.testing.providers` has fakes of the providers themselves, real servers on loopback. Import it by its own name.
"""

from andon.models.scripted import ScriptedModel
from andon.testing.conformance import check_model
from andon.testing.explorer import Problem, Report, explore
from andon.testing.injections import Cancel, Injection
from andon.testing.probe import RunProbe, probe
from andon.testing.reading import reading
from andon.testing.validators import VALIDATORS, next_prompt_accepted, validate
from andon.testing.virtual import EndlessError, StandstillError, VirtualLoop, virtual_run

__all__ = [
    "VALIDATORS",
    "Cancel",
    "EndlessError",
    "Injection",
    "Problem",
    "Report",
    "RunProbe",
    "ScriptedModel",
    "StandstillError",
    "VirtualLoop",
    "check_model",
    "explore",
    "next_prompt_accepted",
    "probe",
    "reading",
    "validate",
    "virtual_run",
]
