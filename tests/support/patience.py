"""How long the guards wait for what is just ending."""

from __future__ import annotations

import os

VARIABLE = "ENGINEHOUSE_TEST_GRACE"
# Seconds; the guards' own tests make it shorter, since there nothing will end.
GRACE_SECONDS = float(os.environ.get(VARIABLE, "2"))
