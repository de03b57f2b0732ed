"""Parts of the training step: loss and gradients, update, learning rate, EMA, loss scale."""
