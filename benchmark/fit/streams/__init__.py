"""Jobs that stream their files, as tf.data does."""
