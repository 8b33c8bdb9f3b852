"""Names for data whose shape is not fixed."""

from collections.abc import Mapping
from typing import Any

# what an object is saved as and resumed from: tensors, arrays and plain Python by name
State = dict[str, Any]
# a JSON or YAML document as it was read, or a part of one
Document = dict[str, Any]
ReadOnlyDocument = Mapping[str, Any]
