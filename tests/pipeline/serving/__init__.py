"""Tests of models in use."""
