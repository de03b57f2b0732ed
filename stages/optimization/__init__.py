"""The training step: loss, gradients, update, learning rate, EMA, loss scale."""
