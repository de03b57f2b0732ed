"""Networks: functions `(input_shape, num_classes, **settings) -> keras.Model` on scaled images."""
