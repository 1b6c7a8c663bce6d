# SPDX-License-Identifier: Apache-2.0
"""Every figure that the README quotes, each beside a baseline that was taken in the same run.

    python -m bench                 all of them, some minutes
    python -m bench latency         one of them
    python -m bench --quick         small numbers, to see that it works
    python -m bench --json          for programs

    latency      from the cancel in another thread to the terminal event in the reader's hands
    throughput   events per second from the model through the journal to its readers
    idle         what a waiting run weighs, and how long it takes to cancel all of them
    growth       how both grow with the number of runs in flight
    startup      what importing takes
    http         many streams over HTTP, all cancelled at once

A figure is not a test: a goal that was missed is shown, and the exit code is 0.
"""
