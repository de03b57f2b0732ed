"""Numbers and names in the answer: values have the digits of their interval, and no other end is shown as 0."""

import pytest

from pipeline.comparison.words import interval_texts, metric_label, value_text


@pytest.mark.parametrize(
    ("key", "values", "texts"),
    [
        ("val/best_loss", (0.0124, 0.0052, 0.0197), ["0.0124", "0.0052", "0.0197"]),
        ("val/best_loss", (0.5, 0.0004, 0.9996), ["0.5000", "0.0004", "0.9996"]),
        ("val/best_loss", (0.25, 0.25, 0.25), ["0.25", "0.25", "0.25"]),
        ("val/best_accuracy", (0.012, 0.008, 0.016), ["1.20", "0.80", "1.60"]),
        ("val/best_rmse", (1234.5, 1000.0, 1469.0), ["1,234", "1,000", "1,469"]),
        ("val/best_loss", (1e-12, -1e-12, 3e-12), ["0.00000000"] * 3),
    ],
)
def test_a_difference_and_its_interval_have_the_same_digits(
    key: str, values: tuple[float, ...], texts: list[str]
) -> None:
    assert [text.replace("−", "") for text in interval_texts(key, values)[0]] == texts


@pytest.mark.parametrize(
    ("key", "value", "text"),
    [("val/best_loss", 0.0148, "0.0148"), ("val/best_loss", 12.3456, "12.3"), ("val/best_accuracy", 0.99315, "99.31%"),
     ("val/best_rmse", 12345.6, "12,346"), ("val/best_r2", -0.5, "−0.500"), ("val/best_loss", 0.0, "0.00"),
     ("val/best_loss", float("nan"), "nan")],
)  # fmt: skip
def test_a_value_has_three_digits(key: str, value: float, text: str) -> None:
    assert value_text(key, value) == text


@pytest.mark.parametrize(
    ("key", "name"),
    [("val/best_loss", "validation loss"), ("val/loss", "validation loss in the last epoch"), ("my/score", "my/score"),
     ("test/macro_f1", "test macro F1"), ("val/best_rmse/price", "validation RMSE of price"),
     ("train/images_per_second", "training images per second"), ("seconds", "seconds")],
)  # fmt: skip
def test_a_metric_is_named_in_words(key: str, name: str) -> None:
    assert metric_label(key) == name
