# SPDX-License-Identifier: Apache-2.0
"""Every figure of docs/figures.md, most of them next to a baseline from the same run.

    python -m bench                 all of them, some minutes
    python -m bench latency         one of them
    python -m bench --quick         small numbers, to see that it works
    python -m bench --json          for programs
    python -m bench --record        write the results into docs/figures.md and the README, as `make bench` does

    latency      from the cancel in another thread until the reader has the terminal event
    throughput   events per second from the model through the journal to its readers
    readers      a run with a thousand readers on other event loops, and its cancel
    streaming    tokens per second from a provider, through an agent; and a cancel that closes its connection
    idle         the memory of a waiting run, and the time to cancel all of them
    growth       how the cost of a cancel grows with the number of runs in flight
    startup      the import time
    telemetry    its cost without a tracer or meter provider
    http         many streams over HTTP, all cancelled at once
    across       a cancel that is sent to another server process
    store        the cost of a database: short runs, silent runs, stored tokens, and watchers
    neighbour    runs and cancels of other users while one user keeps the server busy
    chaos        several servers on one database that are killed and cut off: the number of faults

A figure is not a test: a missed goal is shown, and the exit code is 0. On Linux each figure shows the CPU steal during
its run. If it is more than a few percent, the times are longer.
"""
