"""Tests of predicting with exported models."""
