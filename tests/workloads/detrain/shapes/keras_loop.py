"""A custom loop of Keras with a gradient tape and a compiled step."""

import keras
import numpy as np
import tensorflow as tf

keras.utils.set_random_seed(1)
x, y = np.random.rand(32, 4).astype("float32"), np.random.rand(32, 1).astype("float32")
train_dataset = tf.data.Dataset.from_tensor_slices((x, y)).shuffle(32).batch(8)
model = keras.Sequential([keras.layers.Dense(8), keras.layers.Dense(1)])
optimizer = keras.optimizers.SGD(0.05)
loss_fn = keras.losses.MeanSquaredError()


@tf.function
def train_step(x_batch, y_batch):
    with tf.GradientTape() as tape:
        loss_value = loss_fn(y_batch, model(x_batch, training=True))
    grads = tape.gradient(loss_value, model.trainable_weights)
    optimizer.apply_gradients(zip(grads, model.trainable_weights))
    return loss_value


for epoch in range(2):
    for step, (x_batch_train, y_batch_train) in enumerate(train_dataset):
        loss_value = train_step(x_batch_train, y_batch_train)
    print(f"epoch {epoch} loss {float(loss_value):.4f}")
