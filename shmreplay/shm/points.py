"""Named points: where a test may stop, kill or interrupt a process.

``point`` outside the lock is always an audit event (about 20 ns without a hook). Inside the lock it is active only
when SHMREPLAY_TEST_POINTS is set, since a user's audit hook must never run there.
"""

import os
import sys

point = sys.audit
locked_point = sys.audit if os.environ.get("SHMREPLAY_TEST_POINTS") else None
