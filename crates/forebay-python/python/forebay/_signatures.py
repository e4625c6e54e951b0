"""Names that the stub of this module has the signatures of, for type checkers and editors.

`forebay._adapter.with_options` makes the same signatures of the schema at run time.
"""

from typing import Any

torch_loader: Any = None
jax_loader: Any = None
tf_loader: Any = None
tf_dataset: Any = None
convert: Any = None
