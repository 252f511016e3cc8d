"""The NumPy engine: it compiles an Ir to straight-line Python and runs it."""

from popfn.host.engine.compile import Executable as Executable, compile_program as compile_program
