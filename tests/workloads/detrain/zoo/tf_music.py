"""A transformer over notes in TensorFlow: batches by a method of the data class, a step in try, evaluation inside the loop."""

import argparse
import random

import numpy as np
import tensorflow as tf
from tensorflow import keras

parser = argparse.ArgumentParser()
parser.add_argument("--epochs", type=int, default=2)
parser.add_argument("--batch-size", type=int, default=4)
parser.add_argument("--workers", type=int, default=0, help="unused: notes are in memory")
parser.add_argument("--max-seq", type=int, default=12)
parser.add_argument("--lr", type=float, default=0.003)
parser.add_argument("--seed", type=int, default=8)
args = parser.parse_args()

VOCAB = 32
random.seed(args.seed)
np.random.seed(args.seed)
tf.random.set_seed(args.seed)


class Data:
    def __init__(self, pieces=20, length=40):
        rng = random.Random(1)
        self.files = []
        for _ in range(pieces):
            start, interval = rng.randrange(VOCAB), rng.choice([2, 3, 4, 7])
            self.files.append([(start + interval * i) % VOCAB for i in range(length)])

    def batch(self, batch_size, length):
        batch_files = random.sample(self.files, k=batch_size)
        return np.array([self._get_seq(file, length) for file in batch_files])

    def slide_seq2seq_batch(self, batch_size, length):
        data = self.batch(batch_size, length + 1)
        return data[:, :-1], data[:, 1:]

    def _get_seq(self, file, length):
        start = random.randrange(0, len(file) - length)
        return file[start : start + length]


class MusicTransformer(keras.Model):
    def __init__(self, dim=24, heads=2):
        super().__init__()
        self.embedding = keras.layers.Embedding(VOCAB, dim)
        self.position = keras.layers.Embedding(args.max_seq, dim)
        self.attention = keras.layers.MultiHeadAttention(heads, dim // heads)
        self.norm1 = keras.layers.LayerNormalization()
        self.ffn = keras.Sequential([keras.layers.Dense(2 * dim, activation="relu"), keras.layers.Dense(dim)])
        self.norm2 = keras.layers.LayerNormalization()
        self.dropout = keras.layers.Dropout(0.1)
        self.fc = keras.layers.Dense(VOCAB)

    def call(self, x, training=False):
        h = self.embedding(x) + self.position(tf.range(tf.shape(x)[1]))
        h = self.norm1(h + self.dropout(self.attention(h, h, use_causal_mask=True), training=training))
        h = self.norm2(h + self.dropout(self.ffn(h), training=training))
        return self.fc(h)


dataset = Data()
mt = MusicTransformer()
opt = keras.optimizers.Adam(args.lr)
loss_fn = keras.losses.SparseCategoricalCrossentropy(from_logits=True)


def train_on_batch(batch_x, batch_y):
    with tf.GradientTape() as tape:
        predictions = mt(batch_x, training=True)
        loss = loss_fn(batch_y, predictions)
    gradients = tape.gradient(loss, mt.trainable_variables)
    opt.apply_gradients(zip(gradients, mt.trainable_variables))
    return float(loss)


def evaluate(x, y):
    predictions = mt(x, training=False)
    return float(loss_fn(y, predictions)), float(tf.reduce_mean(tf.cast(tf.argmax(predictions, -1) == y, tf.float32)))


idx = 0
for e in range(args.epochs):
    losses = []
    for b in range(len(dataset.files) // args.batch_size):
        try:
            batch_x, batch_y = dataset.slide_seq2seq_batch(args.batch_size, args.max_seq)
        except ValueError:
            continue
        result_metrics = train_on_batch(batch_x, batch_y)
        losses.append(result_metrics)
        if b % 4 == 3:
            eval_x, eval_y = dataset.slide_seq2seq_batch(args.batch_size, args.max_seq)
            eval_loss, eval_acc = evaluate(eval_x, eval_y)
        idx += 1
    print(f"Epoch {e} loss {sum(losses) / len(losses):.6f} eval loss {eval_loss:.6f} acc {eval_acc:.3f}")
