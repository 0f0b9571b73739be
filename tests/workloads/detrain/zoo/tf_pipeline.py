"""Training over a tf.data pipeline with a shuffle buffer and a random map, in a step compiled by tf.function."""

import argparse

import numpy as np
import tensorflow as tf


def make_data(n=96):
    rng = np.random.default_rng(5)
    labels = rng.integers(0, 3, n)
    images = rng.normal(0, 0.3, (n, 12, 12, 1)).astype(np.float32)
    images[np.arange(n), 3 * labels + 1] += 1.0
    return images, labels.astype(np.int32)


def augment(image, label):
    image = tf.image.random_flip_left_right(image)
    image = tf.image.random_brightness(image, 0.2)
    return image, label


def pipeline(images, labels, batch_size, workers):
    dataset = tf.data.Dataset.from_tensor_slices((images, labels))
    dataset = dataset.shuffle(48, reshuffle_each_iteration=True)
    dataset = dataset.map(augment, num_parallel_calls=workers or None)
    return dataset.batch(batch_size).prefetch(1)


def make_model():
    return tf.keras.Sequential(
        [
            tf.keras.layers.Conv2D(8, 3, activation="relu"),
            tf.keras.layers.MaxPooling2D(),
            tf.keras.layers.Flatten(),
            tf.keras.layers.Dropout(0.3),
            tf.keras.layers.Dense(3),
        ]
    )


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--epochs", type=int, default=2)
    parser.add_argument("--batch-size", type=int, default=16)
    parser.add_argument("--workers", type=int, default=0)
    parser.add_argument("--seed", type=int, default=13)
    args = parser.parse_args()
    tf.keras.utils.set_random_seed(args.seed)

    dataset = pipeline(*make_data(), args.batch_size, args.workers)
    model = make_model()
    optimizer = tf.keras.optimizers.SGD(0.05, momentum=0.9)
    loss_fn = tf.keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    train_loss = tf.keras.metrics.Mean()

    @tf.function
    def train_step(images, labels):
        with tf.GradientTape() as tape:
            loss = loss_fn(labels, model(images, training=True))
        gradients = tape.gradient(loss, model.trainable_variables)
        optimizer.apply_gradients(zip(gradients, model.trainable_variables))
        train_loss.update_state(loss)
        return loss

    for epoch in range(args.epochs):
        train_loss.reset_state()
        for images, labels in dataset:
            train_step(images, labels)
        print(f"Epoch {epoch + 1}, Loss: {float(train_loss.result()):.6f}")


if __name__ == "__main__":
    main()
