"""Changes of images as pure functions of the images and of random numbers."""
