# SPDX-License-Identifier: Apache-2.0
"""Andon and six other frameworks side by side, each in an environment of its own: `make bench-peers`.

    python -m bench.peers                               what is not measured yet, and the page
    python -m bench.peers agno --part situation --again  one part of one system anew
    python -m bench.peers --page                        the page alone

- The systems: `systems/` has one file for each, run by its own Python; environments says where that is. `driver` is
  what imports such a file, in that Python, and does what it is told in lines of JSON (lines).
- The provider: `provider` is the strict fakes in a process, and scripts what they answer.
- What is measured: situations; trial is one attempt; parts are all pieces without HTTP.
- Over HTTP: `servers/` has an agent for each server; dialects say how to talk to it, serving runs it and its clients,
  over_http measures.
- What comes of it: record is docs/peers.json; page, tables, http_tables and better make docs/peers.md of it, and plots
  the images.
"""
