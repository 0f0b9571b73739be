"""Folders of JPEG images through Keras: image_dataset_from_directory, fit with validation, a checkpoint an epoch."""

from argparse import Namespace
from pathlib import Path

import keras
import numpy as np
import tensorflow as tf
from command_line import command_line
from PIL import Image

tf.config.threading.set_inter_op_parallelism_threads(2)
tf.config.threading.set_intra_op_parallelism_threads(1)


def _made(folder: Path, images: int) -> Path:
    rng = np.random.default_rng(7)
    for number in range(images):
        path = folder / f"class_{number % 3}" / f"{number:04}.jpg"
        path.parent.mkdir(parents=True, exist_ok=True)
        pixels = rng.integers(0, 255, (128 + number % 40, 160, 3), dtype=np.uint8)
        if not path.exists():
            Image.fromarray(pixels).save(path, quality=90)
    return folder


def main(job: Namespace) -> None:
    keras.utils.set_random_seed(job.seed)
    (out := job.folder / f"out{job.seed}").mkdir(exist_ok=True)
    read = keras.utils.image_dataset_from_directory
    sizes = {"image_size": (96, 96), "batch_size": 16 * job.scale, "verbose": False}
    train = read(_made(job.folder / "train", 480), seed=job.seed, **sizes)
    validation = read(_made(job.folder / "validation", 96), shuffle=False, **sizes)
    layers = keras.layers
    first = [layers.Rescaling(1 / 255), layers.Conv2D(16, 5, strides=2, activation="relu"), layers.Conv2D(32, 3, strides=2)]
    model = keras.Sequential([*first, layers.GlobalAveragePooling2D(), layers.Dense(3)])
    model.compile("adam", keras.losses.SparseCategoricalCrossentropy(from_logits=True))
    saved = keras.callbacks.ModelCheckpoint(out / "weights_{epoch}.keras")
    model.fit(train, validation_data=validation, epochs=8, verbose=0, callbacks=[saved])


if __name__ == "__main__":
    main(command_line())
