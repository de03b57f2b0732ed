"""A follower that `tests.commands` forks for the process of the tests; arguments: its connection and seconds."""

import os
import sys
from multiprocessing.connection import Connection

from pipeline.tracking.follower import main

if __name__ == "__main__":
    main(Connection(int(sys.argv[1])), os.getppid(), float(sys.argv[2]))
    os._exit(0)
