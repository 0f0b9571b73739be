"""BERT (Devlin et al., 2018): the encoder with its two pretraining tasks, masked words and next sentence."""

import tensorflow as tf

from iotwin.datagen.layouts import BertLayout

Features = dict[str, tf.Tensor]
_INITIAL_STDEV = 0.02
_SEGMENTS = 2


class _Dense(tf.Module):
    def __init__(self, inputs: int, outputs: int) -> None:
        super().__init__()
        self.kernel = tf.Variable(tf.random.truncated_normal([inputs, outputs], stddev=_INITIAL_STDEV))
        self.bias = tf.Variable(tf.zeros([outputs]))

    def __call__(self, features: tf.Tensor) -> tf.Tensor:
        return tf.tensordot(features, self.kernel, 1) + self.bias


class _Norm(tf.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.scale, self.shift = tf.Variable(tf.ones([width])), tf.Variable(tf.zeros([width]))

    def __call__(self, features: tf.Tensor) -> tf.Tensor:
        mean, variance = tf.nn.moments(features, axes=[-1], keepdims=True)
        return tf.nn.batch_normalization(features, mean, variance, self.shift, self.scale, 1e-12)


class _Layer(tf.Module):
    """Multi-head self-attention, then a feed-forward network four times as wide, each with a residual and a normalisation."""

    def __init__(self, hidden: int, heads: int) -> None:
        super().__init__()
        self._heads = heads
        self.attend, self.project = _Dense(hidden, 3 * hidden), _Dense(hidden, hidden)
        self.widen, self.narrow = _Dense(hidden, 4 * hidden), _Dense(4 * hidden, hidden)
        self.first_norm, self.second_norm = _Norm(hidden), _Norm(hidden)

    def __call__(self, features: tf.Tensor, barred: tf.Tensor) -> tf.Tensor:
        features = self.first_norm(features + self.project(self._attention(features, barred)))
        return self.second_norm(features + self.narrow(tf.nn.gelu(self.widen(features))))

    def _attention(self, features: tf.Tensor, barred: tf.Tensor) -> tf.Tensor:
        batch, length, hidden = tf.shape(features)[0], tf.shape(features)[1], features.shape[2]
        split = tf.reshape(self.attend(features), [batch, length, 3, self._heads, hidden // self._heads])
        query, key, value = tf.unstack(tf.transpose(split, [2, 0, 3, 1, 4]))
        scores = tf.matmul(query, key, transpose_b=True) / float(hidden // self._heads) ** 0.5 + barred
        mixed = tf.matmul(tf.nn.softmax(scores), value)
        return tf.reshape(tf.transpose(mixed, [0, 2, 1, 3]), [batch, length, hidden])


class Bert(tf.Module):
    """The encoder and its two output layers. BERT-large has 24 layers, a width (`hidden`) of 1024 and 16 heads.

    The model reads the first `sequence` tokens of a record. Masked words after these do not count in the loss. There is no
    dropout, so that a rerun computes the same result.
    """

    def __init__(self, layers: int, hidden: int, heads: int, sequence: int) -> None:
        super().__init__()
        self._sequence = sequence
        self.words, self.positions, self.segments = (
            tf.Variable(tf.random.truncated_normal([count, hidden], stddev=_INITIAL_STDEV))
            for count in (BertLayout.VOCABULARY, sequence, _SEGMENTS)
        )
        self.norm = _Norm(hidden)
        self.layers = [_Layer(hidden, heads) for _ in range(layers)]
        self.transform, self.transform_norm = _Dense(hidden, hidden), _Norm(hidden)
        self.word_bias = tf.Variable(tf.zeros([BertLayout.VOCABULARY]))
        self.pool, self.next_sentence = _Dense(hidden, hidden), _Dense(hidden, 2)

    def encode(self, batch: Features) -> tf.Tensor:
        """Return the last layer's output, of shape (records, sequence, hidden). `batch` has the keys of BertLayout.FEATURES."""
        tokens, segments, mask = (batch[name][:, : self._sequence] for name in ("input_ids", "segment_ids", "input_mask"))
        features = self.norm(tf.gather(self.words, tokens) + self.positions + tf.gather(self.segments, segments))
        barred = -1e4 * (1 - tf.cast(mask, tf.float32))[:, None, None, :]
        for layer in self.layers:
            features = layer(features, barred)
        return features

    def losses(self, batch: Features, features: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        """Return the mean cross-entropies (of masked words, of next sentences). `features` is the result of `encode`."""
        masked_positions = batch["masked_lm_positions"]
        seen = batch["masked_lm_weights"] * tf.cast(masked_positions < self._sequence, tf.float32)
        chosen = tf.gather(features, tf.minimum(masked_positions, self._sequence - 1), batch_dims=1)
        transformed = self.transform_norm(tf.nn.gelu(self.transform(chosen)))
        scores = tf.einsum("bph,vh->bpv", transformed, self.words) + self.word_bias
        words = tf.nn.sparse_softmax_cross_entropy_with_logits(batch["masked_lm_ids"], scores)
        masked = tf.reduce_sum(words * seen) / (tf.reduce_sum(seen) + 1e-5)
        sentence = self.next_sentence(tf.tanh(self.pool(features[:, 0])))
        following = tf.nn.sparse_softmax_cross_entropy_with_logits(batch["next_sentence_labels"][:, 0], sentence)
        return masked, tf.reduce_mean(following)
