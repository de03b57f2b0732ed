"""A lost worker reads as one line, whatever code TensorFlow gives it; its other errors stay what they are."""

import pytest
import tensorflow as tf

from stages.collectives import others_needed
from stages.errors import UserError

LOST = (
    "{{function_node __wrapped__CollectiveReduceV2_device_/job:worker/replica:0/task:1/device:CPU:0}} "
    "Collective ops is aborted by: Deadline Exceeded\n\nRPC: /tensorflow.CoordinationService/Heartbeat"
)


@pytest.mark.parametrize("code", [tf.errors.AbortedError, tf.errors.InternalError, tf.errors.UnavailableError])
def test_a_lost_worker_is_one_line(code: type[tf.errors.OpError]) -> None:
    with (
        pytest.raises(UserError, match=r"worker of the cluster was lost \(Deadline Exceeded\)") as raised,
        others_needed(),
    ):
        raise code(None, None, LOST)
    assert "\n" not in str(raised.value)


def test_an_object_store_that_does_not_answer_is_no_lost_worker() -> None:
    with pytest.raises(tf.errors.UnavailableError), others_needed():
        raise tf.errors.UnavailableError(None, None, "storage.googleapis.com: 503")
