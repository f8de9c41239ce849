"""Whether a matrix product that is not torch's public interface can be used here: it is tried, since versions prove
nothing."""

import logging
from collections.abc import Callable

from torch import Tensor

logger = logging.getLogger(__name__)


def is_right(product: Callable[[], Tensor], wanted: Tensor, *, otherwise: str) -> bool:
    """Whether a small product is what is `wanted`, to the bit. Where torch lacks it, the log says what `otherwise` is
    done."""
    try:
        found = product()
    except (AttributeError, NotImplementedError, RuntimeError) as error:
        logger.info("%s: %s", otherwise, error)
        return False
    return found.equal(wanted)
