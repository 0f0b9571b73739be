import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from iotwin.workloads.unet3d.transforms import augment, pad_to

sides = st.tuples(*[st.integers(1, 12)] * 3)


def _numbered(shape):
    """A case whose image values are all different, so that a crop shows where it was taken."""
    image = np.arange(np.prod(shape), dtype=np.float32).reshape(1, *shape)
    return image, (image % 3).astype(np.uint8)


@given(shape=sides, crop=sides, seed=st.integers(0, 2**32))
def test_samples_have_the_crop_s_shape_and_leave_the_case_alone(shape, crop, seed):
    image, label = _numbered(shape)
    before = image.copy(), label.copy()
    x, y = augment(image, label, crop, np.random.default_rng(seed))
    assert x.shape == y.shape == (1, *crop)
    assert x.dtype == np.float32 and y.dtype == np.uint8
    assert x.flags.c_contiguous and y.flags.c_contiguous and x.flags.writeable
    assert np.array_equal(image, before[0]) and np.array_equal(label, before[1])


def test_crop_and_flips_keep_image_and_mask_together():
    image, label = _numbered((9, 10, 11))
    untouched = 0
    flipped = np.zeros(3)
    for seed in range(400):
        x, y = augment(image, label, (4, 5, 6), np.random.default_rng(seed))
        if np.array_equal(x % 3, y):  # neither brightness nor noise
            untouched += 1
            flipped += [x[0, 0, 0, 0] > x[0, -1, 0, 0], x[0, 0, 0, 0] > x[0, 0, -1, 0], x[0, 0, 0, 0] > x[0, 0, 0, -1]]
            low, high = int(x.min()), int(x.max())  # opposite corners of a box of the case
            assert high - low == 3 * 110 + 4 * 11 + 5
    assert 0.75 < untouched / 400 < 0.87  # 0.9 * 0.9
    assert np.all(np.abs(flipped / untouched - 1 / 3) < 0.09)


def test_four_crops_in_ten_are_made_to_hold_an_organ():
    label = np.zeros((1, 40, 40, 40), np.uint8)
    label[0, 20, 20, 20] = 2  # a random crop of 4 finds it in about one case of a thousand
    image = np.zeros(label.shape, np.float32)
    hits = [augment(image, label, (4, 4, 4), np.random.default_rng(seed))[1].any() for seed in range(500)]
    assert 0.33 < np.mean(hits) < 0.47


def test_brightness_scales_and_noise_adds():
    image, label = np.ones((1, 8, 8, 8), np.float32), np.zeros((1, 8, 8, 8), np.uint8)
    samples = [augment(image, label, (8, 8, 8), np.random.default_rng(seed))[0] for seed in range(600)]
    means, deviations = np.array([x.mean() for x in samples]), np.array([x.std() for x in samples])
    assert 0.06 < np.mean(deviations > 1e-6) < 0.14
    assert 0 < deviations.max() < 0.12
    brightened = (deviations < 1e-6) & (np.abs(means - 1) > 1e-6)
    assert 0.05 < brightened.mean() < 0.13
    assert np.all(np.abs(means - 1) < 0.32)


@given(shape=sides, size=sides)
def test_padding_only_adds_air(shape, size):
    image, label = _numbered(shape)
    x, y = pad_to(image + 5, label, size)
    assert x.shape == y.shape == (1, *map(max, shape, size))
    inside = (slice(None), *map(slice, shape))
    assert np.array_equal(x[inside], image + 5) and np.array_equal(y[inside], label)
    assert x.sum(dtype=np.float64) == (image + 5).sum(dtype=np.float64) + 5.0 * (x.size - image.size)
    assert y.sum() == label.sum()
