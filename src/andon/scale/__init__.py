# SPDX-License-Identifier: Apache-2.0
"""Worker processes: they execute runs that servers have accepted and put into the queue of a shared store.

    service         the worker process: takes jobs, executes runs, reports, drains
    engine          procrastinate, as the service sees it
    maintenance     sends jobs that are due, and ends runs that have waited for too long
    overview        what operators are shown of workers and queues, as plain data
    inspection      reads that from a store, and which process holds a run
    health          a worker's answers to probes
    systemd         tells systemd how the service is
    last_tasks      what a process does with tasks that don't end

The queue itself is a part of the store (`core/shared/run_queue.py`, `store/sql/waiting.py`). Rows are authoritative; a
job of the engine is only a hint that a run may be claimed. So nothing depends on the engine doing something once.
"""
