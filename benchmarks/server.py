"""`python -m benchmarks.server ADDRESS`: a worker or server of the cluster in `TF_CONFIG`, until its chief has gone."""

import os
import sys

from stages.strategy import LOOK_SECONDS, Serving

if __name__ == "__main__":
    serving = Serving(sys.argv[1])
    while not serving.is_over():
        serving.wait(LOOK_SECONDS)
    os._exit(0)  # past TensorFlow's destructors, which wait for members that are lost
