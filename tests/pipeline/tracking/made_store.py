"""`python -m tests.pipeline.tracking.made_store <outputs>` creates the local store of a folder."""

import sys
from pathlib import Path

from pipeline.config.schemas import TrackingSettings
from pipeline.tracking.store import Store

if __name__ == "__main__":
    Store(TrackingSettings(kind="local"), Path(sys.argv[1])).client()
