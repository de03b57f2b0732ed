"""Where runs are recorded: MLflow, or nowhere. A tracker is handed on; there is no active run."""
