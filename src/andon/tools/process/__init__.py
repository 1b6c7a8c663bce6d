# SPDX-License-Identifier: Apache-2.0
"""Tools whose calls run in processes of their own, so that a cancel really ends them. Linux only.

```text
host ── root                one small interpreter per host process (`root`); `pool` starts it and keeps warm workers
          └── keeper        one per worker (`keeper`): adopts every orphan of its worker's tree, and ends that tree
                └── worker  in a session of its own: a function's interpreter (`worker`), or a command (`command`)
```

The host has one socket to each keeper (`channel`, `protocol`). It ends a call by shutting that socket down, which never
waits. The kernel does the same when the host dies, by any death. So there is one way to end a tree, and it works in
every case.

The modules `root`, `keeper`, `tree`, `worker` and `command` run in the processes. The others run in the host, and never
import those.
"""
