# SPDX-License-Identifier: Apache-2.0
"""Every figure that the README quotes, each beside a baseline that was taken in the same run.

    python -m bench                 all of them, some minutes
    python -m bench latency         one of them
    python -m bench --quick         small numbers, to see that it works
    python -m bench --json          for programs
    python -m bench --record        write what was measured into docs/figures.md and the README, as `make bench` does

    latency      from the cancel in another thread to the terminal event in the reader's hands
    throughput   events per second from the model through the journal to its readers
    readers      a run that is read by a thousand readers on other event loops, and its cancel
    streaming    tokens per second from a provider, through an agent; and a cancel that closes its connection
    idle         what a waiting run weighs, and how long it takes to cancel all of them
    growth       how both grow with the number of runs in flight
    startup      what importing takes
    telemetry    what it costs where nobody listens
    http         many streams over HTTP, all cancelled at once
    across       a cancel that is sent to another server process than the run's
    store        what a database costs: short runs, silent runs, tokens that are stored, and watchers
    neighbour    other users' runs and cancels beside one user who keeps the server busy
    chaos        several servers on one database in trouble: what must not happen, counted

A figure is not a test: a goal that was missed is shown, and the exit code is 0. On Linux each says how much of the
processor time that was wanted meanwhile, by it and all else here, other virtual machines had instead: where that is
more than a few percent, the times are theirs as well.
"""
