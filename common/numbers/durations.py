"""Types of an emulated time in the YAML: a number of seconds, or a distribution of seconds."""

from typing import Annotated

import msgspec

# Whoever writes more than 1e9 seconds, thirty years, mistook the unit. The bound also excludes infinity.
Seconds = Annotated[float, msgspec.Meta(ge=0, le=1e9)]
PositiveSeconds = Annotated[float, msgspec.Meta(gt=0, le=1e9)]
Factor = Annotated[float, msgspec.Meta(gt=0, le=1e9)]


class Distribution(msgspec.Struct, forbid_unknown_fields=True):
    """Base class of distributions. The YAML key `type` selects one. Parameters are in seconds unless documented otherwise."""


class Normal(Distribution, tag_field="type", tag="normal"):
    """A normal distribution, truncated at zero. `mean` and `stdev` are those of the distribution before the truncation."""

    mean: Seconds
    stdev: Seconds = 0.0


class Uniform(Distribution, tag_field="type", tag="uniform"):
    """A uniform distribution from `min` to `max`."""

    min: Seconds
    max: Seconds


class Gamma(Distribution, tag_field="type", tag="gamma"):
    """A gamma distribution with the mean shape * scale."""

    shape: Factor  # a pure number
    scale: PositiveSeconds


class Exponential(Distribution, tag_field="type", tag="exponential"):
    """An exponential distribution with the mean `scale`."""

    scale: PositiveSeconds


class Poisson(Distribution, tag_field="type", tag="poisson"):
    """A Poisson distribution of whole seconds with the mean `lam`, as in DLIO."""

    lam: Annotated[float, msgspec.Meta(gt=0, le=700)]


class Lognormal(Distribution, tag_field="type", tag="lognormal"):
    """A lognormal distribution; `mean` and `stdev` describe the seconds, not their logarithms."""

    mean: PositiveSeconds
    stdev: Seconds


class Quantiles(Distribution, tag_field="type", tag="quantiles"):
    """An empirical distribution: ascending `values` at the equally spaced probabilities 0, 1/(n-1), ..., 1."""

    values: Annotated[list[Seconds], msgspec.Meta(min_length=1)]


class Recorded(Distribution, tag_field="type", tag="recorded"):
    """Recorded times, replayed from `file`, which has one number of seconds on each line.

    Every rank and epoch starts at a random line, takes the times in order, and continues with the first line after the last. So
    consecutive slow steps remain consecutive.
    """

    file: str


class InOrder(Distribution, tag_field="type", tag="in_order"):
    """A list of times: step i of an epoch or evaluation takes `values[i]`. Steps beyond the list take the last value."""

    values: Annotated[list[Seconds], msgspec.Meta(min_length=1)]


# The type of a time in the YAML. A number is a constant time; a distribution yields a new random time for each use.
Duration = Seconds | Normal | Uniform | Gamma | Exponential | Poisson | Lognormal | Quantiles | Recorded | InOrder
