"""`outputs` is a folder, and no address."""

import pytest

from stages.errors import UserError
from tests.pipeline.experiments import experiment


@pytest.mark.parametrize(
    "address", ["s3://bucket/runs", "gs://bucket", "S3://bucket", "hdfs://host/runs", "file:///tmp/x"]
)
def test_outputs_at_an_address_are_refused_in_one_line(address: str) -> None:
    with pytest.raises(UserError) as refused:
        experiment(f"outputs='{address}'")
    assert f"outputs={address} is an address, but runs are files" in str(refused.value)
    assert "Try: outputs=./outputs" in str(refused.value)
    assert "\n" not in str(refused.value)
