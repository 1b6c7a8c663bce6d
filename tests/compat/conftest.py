# SPDX-License-Identifier: Apache-2.0
"""What can't be run on every Python is not collected there: a skipped test would be a failure in CI."""

import sys

collect_ignore = [] if sys.version_info >= (3, 12) else ["test_eager_tasks.py"]
