"""The scores that are tried for tables can be undone, and the network with learned slopes begins as the default."""

import numpy as np
import pandas as pd

from benchmarks.table_ideas import in_own_units, with_scores, with_slopes
from stages.networks.joined import TableFacts
from stages.networks.tabular import tabular

RANDOM = np.random.default_rng(0)
ROWS = pd.DataFrame({"x": RANDOM.exponential(size=300), "kind": ["a", "b", "c"] * 100, "y": RANDOM.lognormal(size=300)})


def test_scores_of_the_target_are_undone() -> None:
    scored, scores = with_scores({"train": ROWS, "val": ROWS[:50]}, "y", of_target=True)
    assert abs(scored["train"]["y"].mean()) < 0.01
    found = in_own_units(scores, {"target": scored["val"]["y"].to_numpy(), "prediction": scored["val"]["y"].to_numpy()})
    np.testing.assert_allclose(found["prediction"].ravel(), ROWS["y"][:50], rtol=1e-6)
    np.testing.assert_allclose(found["target"].ravel(), ROWS["y"][:50], rtol=1e-6)


def test_scores_of_numbers_keep_their_order_and_the_other_columns() -> None:
    scored, _ = with_scores({"train": ROWS, "val": ROWS[:50]}, "y")
    assert (scored["val"]["x"].argsort() == ROWS["x"][:50].argsort()).all()
    pd.testing.assert_frame_equal(scored["val"][["kind", "y"]], ROWS[["kind", "y"]][:50])


def test_learned_slopes_begin_as_the_default() -> None:
    facts = TableFacts({}, [(-1.0, 0.0, 1.0), ()], 300)
    networks = [build((2,), 1, [4, 4], 0.0, 2, facts) for build in (tabular, with_slopes)]
    paths = [[weight.path for weight in one.weights] for one in networks]
    assert len(paths[1]) == len(paths[0]) + 2
    assert sum("re_lu" in path for path in paths[1]) == 2
    factors = [one.get_layer("factors").get_weights()[0] for one in networks]
    assert all((part[:, 2:] == part[:, 2:3]).all() for part in factors)  # one for all values of a feature
