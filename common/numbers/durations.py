"""Emulated time in the YAML: a number of seconds, or one of the distributions that seconds are drawn from."""

from typing import Annotated

import msgspec

# Thirty years and more is a unit mistaken; the bound also keeps infinity out.
Seconds = Annotated[float, msgspec.Meta(ge=0, le=1e9)]
PositiveSeconds = Annotated[float, msgspec.Meta(gt=0, le=1e9)]
Factor = Annotated[float, msgspec.Meta(gt=0, le=1e9)]


class Distribution(msgspec.Struct, forbid_unknown_fields=True):
    """Base of all distributions: `type` names the distribution; parameters are in seconds unless documented otherwise."""


class Normal(Distribution, tag_field="type", tag="normal"):
    """A normal distribution, truncated at zero: `mean` and `stdev` are those of the curve before the cut."""

    mean: Seconds
    stdev: Seconds = 0.0


class Uniform(Distribution, tag_field="type", tag="uniform"):
    """Any time from `min` to `max` alike."""

    min: Seconds
    max: Seconds


class Gamma(Distribution, tag_field="type", tag="gamma"):
    """A gamma distribution; its mean is shape * scale."""

    shape: Factor  # a pure number
    scale: PositiveSeconds


class Exponential(Distribution, tag_field="type", tag="exponential"):
    """An exponential distribution with the mean `scale`."""

    scale: PositiveSeconds


class Poisson(Distribution, tag_field="type", tag="poisson"):
    """A Poisson distribution of whole seconds with the mean `lam`, as DLIO has it."""

    lam: Annotated[float, msgspec.Meta(gt=0, le=700)]


class Lognormal(Distribution, tag_field="type", tag="lognormal"):
    """A lognormal distribution; `mean` and `stdev` are those of the seconds themselves, not of their logarithms."""

    mean: PositiveSeconds
    stdev: Seconds


class Quantiles(Distribution, tag_field="type", tag="quantiles"):
    """An empirical distribution: values at equally spaced probabilities 0, 1/(n-1), ..., 1, ascending."""

    values: Annotated[list[Seconds], msgspec.Meta(min_length=1)]


class Recorded(Distribution, tag_field="type", tag="recorded"):
    """A recording, replayed: `file` holds one number of seconds a line.

    Every rank and epoch starts at its own index, takes the values in order, and wraps around at the end. So runs of slow
    steps remain runs.
    """

    file: str


class InOrder(Distribution, tag_field="type", tag="in_order"):
    """Not drawn: the first step of an epoch, or of an evaluation, takes the first of `values`, and so on, over and over."""

    values: Annotated[list[Seconds], msgspec.Meta(min_length=1)]


# Seconds: always the same, or drawn anew each time.
Duration = Seconds | Normal | Uniform | Gamma | Exponential | Poisson | Lognormal | Quantiles | Recorded | InOrder
