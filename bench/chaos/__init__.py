# SPDX-License-Identifier: Apache-2.0
"""Several servers on one database, which are killed, stopped and cut off from it at random: what goes wrong is counted.

    python -m bench.chaos --db both --servers 3 --runs 1000
    python -m bench.chaos --workers 3 --redis
    python -m bench.chaos --load

- `agent`: what is served; a real model client, which talks to a strict fake of its provider (`provider`).
- `servers`: the processes and the databases. `ways`: how a server reaches its database, and loses it; `proxy` is the
  network between them, with a cable for each server where namespaces can be made (`wires`).
- `redis_place`: the Redis that carries text, if it is asked for, and the way of each server and worker to it.
- `clients`: those who start, watch, cancel and answer, each on another server; they note what they were told.
- `cutoff`: one server loses its database, and is asked to cancel. `trouble`: what chance does to all of them.
- `checks`: compares what clients were told with what the database says, once all is quiet.
- `trial`: one round of it all.
- `load`: no troubles, but more work than one server can take at once.
"""
