"""The configuration: schemas, checked values, errors."""
