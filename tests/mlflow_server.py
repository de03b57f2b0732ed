"""`python -m tests.mlflow_server STORE KEPT PORT`: MLflow's server on loopback, in this process.

It runs the same application as `mlflow server`, with the same environment, but saves importing MLflow a second time.
"""

import os
import sys

import uvicorn
from mlflow.server import constants


def main() -> None:
    store, kept, port = sys.argv[1:]
    os.environ |= {
        constants.BACKEND_STORE_URI_ENV_VAR: store,
        constants.ARTIFACT_ROOT_ENV_VAR: "mlflow-artifacts:/",
        constants.SERVE_ARTIFACTS_ENV_VAR: "true",
        constants.ARTIFACTS_DESTINATION_ENV_VAR: kept,
    }
    uvicorn.run("mlflow.server.fastapi_app:app", host="127.0.0.1", port=int(port))


if __name__ == "__main__":
    main()
