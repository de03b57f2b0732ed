"""Keras callbacks of a training: its own and the user's, and the time that they and its other parts take."""
