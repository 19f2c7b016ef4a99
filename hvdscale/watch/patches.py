"""Functions and classes of other packages, replaced while a script is watched and put back afterwards."""

import functools
import importlib.util
import inspect
import sys
from collections.abc import Callable
from importlib.abc import MetaPathFinder
from types import ModuleType
from typing import Any

from torch.jit import _builtins


class Patches:
    """All that was replaced, with the way back.

        patches.replace(torch.autograd, "backward", noting)     noting(original) returns the replacement
        patches.undo()
    """

    def __init__(self) -> None:
        self._undo: list[Callable[[], None]] = []
        self.on_undo = self._undo.append

    def replace(self, owner: Any, name: str, make: Callable) -> None:
        """Put ``make(original)`` in the place of a function. It takes ``*args, **options``, to be called in each way in
        which the original can be, and returns what it does. torch.jit.script compiles it as the original."""
        original = getattr(owner, name)
        replacement, operator = functools.wraps(original)(make(original)), _builtins._find_builtin(original)
        if operator is None:
            replacement.__prepare_scriptable__ = lambda: original
        else:
            _builtins._register_builtin(replacement, operator)
            self.on_undo(lambda: _builtins._get_builtin_table().pop(id(replacement), None))
        self.put(owner, name, replacement)

    def around(self, owner: Any, name: str, act: Callable) -> None:
        """Have ``act`` called in the place of a function, with that and its arguments."""
        def calling(original):
            def call(*args, **options):
                return act(original, *args, **options)
            return call
        self.replace(owner, name, calling)

    def changing(self, owner: Any, name: str, change: Callable[[dict[str, Any]], object]) -> None:
        """Have ``change`` alter the arguments of a function, by name, before it is called."""
        signature = inspect.signature(getattr(owner, name))

        def call(original, *args, **options):
            given = signature.bind(*args, **options)
            given.apply_defaults()
            change(given.arguments)
            return original(*given.args, **given.kwargs)
        self.around(owner, name, call)

    def before(self, owner: Any, name: str, act: Callable) -> None:
        def call(original, *args, **options):
            act(*args, **options)
            return original(*args, **options)
        self.around(owner, name, call)

    def after(self, owner: Any, name: str, act: Callable) -> None:
        """Have ``act`` called with what a function has returned, and with its arguments."""
        def call(original, *args, **options):
            result = original(*args, **options)
            act(result, *args, **options)
            return result
        self.around(owner, name, call)

    def put(self, owner: Any, name: str, replacement: Any) -> None:
        original, own = getattr(owner, name), name in vars(owner)       # else it is inherited
        setattr(owner, name, replacement)
        self._undo.append(lambda: setattr(owner, name, original) if own else delattr(owner, name))

    def when_imported(self, name: str, install: Callable[[ModuleType], None]) -> None:
        """Call ``install(module)`` as soon as the script has imported the module; now, if it is there already."""
        if name in sys.modules:
            install(sys.modules[name])
            return
        finder = _Finder(name, install)
        sys.meta_path.insert(0, finder)
        self._undo.append(lambda: finder in sys.meta_path and sys.meta_path.remove(finder) or None)

    def undo(self) -> None:
        while self._undo:
            self._undo.pop()()


class _Finder(MetaPathFinder):
    """Finds one module as all others would, and acts once its code has run."""

    def __init__(self, name: str, install: Callable[[ModuleType], None]):
        self.name, self.install = name, install

    def find_spec(self, fullname, path=None, target=None):
        if fullname != self.name or self not in sys.meta_path:
            return None
        sys.meta_path.remove(self)
        spec = importlib.util.find_spec(fullname)
        if spec is not None and spec.loader is not None:
            execute = spec.loader.exec_module

            def exec_module(module: ModuleType) -> None:
                execute(module)
                self.install(module)
            spec.loader.exec_module = exec_module       # type: ignore[method-assign]
        return spec
