"""`python -m benchmarks.server ADDRESS`: a worker or server of the cluster in `TF_CONFIG`, until its chief has gone."""

import sys

from stages.distribution.cluster_strategies import serve

if __name__ == "__main__":
    serve(sys.argv[1])
