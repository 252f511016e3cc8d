"""popfn.errors: every error that popfn raises on purpose. Each is a PopfnError and a built-in exception too."""
from .trace.errors import AnnotationError as AnnotationError
from .trace.errors import ArgumentError as ArgumentError
from .trace.errors import ConcretizationError as ConcretizationError
from .trace.errors import DeviceError as DeviceError
from .trace.errors import DtypeError as DtypeError
from .trace.errors import InputError as InputError
from .trace.errors import JaxprError as JaxprError
from .trace.errors import LeakError as LeakError
from .trace.errors import LoweringError as LoweringError
from .trace.errors import MissingRuleError as MissingRuleError
from .trace.errors import NarrowingError as NarrowingError
from .trace.errors import PopfnError as PopfnError
from .trace.errors import ShapeError as ShapeError
from .trace.errors import TreeError as TreeError
