"""Leaves the loops to Keras."""

import keras
import numpy as np

keras.utils.set_random_seed(1)
model = keras.Sequential([keras.layers.Dense(1)])
model.compile(optimizer="sgd", loss="mse")
model.fit(np.random.rand(16, 4), np.random.rand(16, 1), epochs=1, batch_size=8, verbose=0)
