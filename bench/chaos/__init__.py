# SPDX-License-Identifier: Apache-2.0
"""Several servers on one database, all of which are killed and stopped at random: what goes wrong is counted.

    python -m bench.chaos --db both --servers 3 --runs 1000

- `agent`: what is served; a real model client, which talks to a strict fake of its provider (`provider`).
- `servers`: the processes and the databases, and what is done to them.
- `clients`: those who start, watch, cancel and answer, each on another server; they note what they were told.
- `checks`: compares that with what the database says, once all is quiet.
- `trial`: one round of it all.
"""
