"""Arrays of any type and shape."""

from typing import Any

import numpy as np

Array = np.ndarray[Any, Any]
