"""Changes of pictures as pure functions of the pictures and of random numbers."""
