"""Transfer learning: frozen backbones, pretrained weights, cached features."""
