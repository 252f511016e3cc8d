"""What the tables of wrong calls share: the same error, eagerly and while a function is traced, at the user's line."""
import os
import re
from typing import Any, Callable

import numpy as np
import pytest

import popfn as pf


def assert_error_text(f: Callable[[], Any], error: type, text: str, file: str) -> None:
    """`f()` raises an error of this class with this text, which names a line of `file`."""
    for run in (f, lambda: pf.make_jaxpr(lambda a: f())(np.float32(0))):
        with pytest.raises(error, match=re.escape(text)) as e:
            run()
        assert os.path.basename(file) in str(e.value), "the message names no line of this file"
