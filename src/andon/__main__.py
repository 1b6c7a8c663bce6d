# SPDX-License-Identifier: Apache-2.0
"""`python -m andon` is the command `andon`."""

from andon.cli import main

if __name__ == "__main__":
    raise SystemExit(main())
