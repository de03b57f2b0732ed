"""Advice of settings, of sources of data and of encoders."""

from tests.pipeline.advice import Case

CASES: dict[str, Case] = {
    "stages/settings/data.py:check": "data=image_folder",
    "stages/settings/model.py:_check_weights": "model.weights=/nope",
    "stages/settings/ranges.py:_check_number": "train.epochs=0",
    "stages/settings/ranges.py:check": "train.jit=yes",
    "stages/settings/ranges.py:wrong_type": "train.epochs=2.0",
    "stages/settings/table.py:_check_files_and_target": "data=table",
    "stages/settings/train.py:check": "train.class_weights=auto",
    "stages/targets.py:imported": "optimizer=custom optimizer._target_=keras.optimizers.Lionn",
}
