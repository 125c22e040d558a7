"""Recompile a function of the script so that headrace decides on each call, element access and attribute access in it.

`rewritten` returns a copy of a Python function of the script, or of a library, with the same statements. Each call, each
element and each attribute of an object other than `self` goes through a `Decisions` object, which executes, replaces or refuses
it. Apart from calls, the copy can change only its local variables: a function that stores an attribute, a global variable or an
element of an object that it did not make itself is refused.

The source must be that of the running code: it is compiled, and the code objects are compared.
"""

from __future__ import annotations

import ast
import copy
import functools
import linecache
import sys
import types
from dataclasses import dataclass
from typing import Any, Protocol

from headrace.accelerate.runtime.unsupported import Unsupported
from headrace.accelerate.script.library_code import is_constant, is_of_library, nested_codes

__all__ = ["Decisions", "RewrittenCode", "rewritten"]


class Decisions(Protocol):
    """The interface that executes the operations of a rewritten function. It raises `NotUnderstood` to refuse one."""

    def call(self, function: Any, /, *arguments: Any, **named: Any) -> Any:
        """Return the result of `function(*arguments)`. Raise `NotUnderstood` if the call is refused."""

    def method(self, thing: Any, name: str, /, *arguments: Any, **named: Any) -> Any:
        """Return the result of `thing.name(*arguments)`. Raise `NotUnderstood` for a method that is not known to be safe."""

    def item(self, thing: Any, index: Any, /) -> Any:
        """Return `thing[index]`. Raise `NotUnderstood` if reading it may change an object or run code that is not known."""

    def attribute(self, thing: Any, name: str, /) -> Any:
        """Return `thing.name`. Raise `NotUnderstood` if reading it runs code, or if the variable may change."""

    def immutable(self, value: Any, /) -> Any:
        """Return the left operand of `+=` or its like unchanged. Raise `NotUnderstood` for one that it changes in place."""

    def formatted(self, value: Any, /) -> Any:
        """Return a value of an f-string unformatted. Raise `NotUnderstood` if formatting it runs code of the script."""

    def operand(self, value: Any, /) -> Any:
        """Return an operand of an operator or condition. Raise `NotUnderstood` if using it runs code of the script."""

    def iterated(self, value: Any, /) -> Any:
        """Return the iterable of a loop unchanged. Raise `NotUnderstood` if iterating runs the script's code or uses it up."""


@dataclass(frozen=True, slots=True)
class RewrittenCode:
    """The recompiled copy of a function, and the names of the attributes that it reads from `self`.

    `called`: what its calls name, as far as the text tells: functions, also in branches that are seldom taken. `own_methods`:
    the names of the methods of its own object that it calls.
    """

    function: types.FunctionType
    own_attributes: frozenset[str]
    called: tuple[Any, ...]
    own_methods: frozenset[str]


#: Names of `Decisions` methods in a rewritten function. No script uses these names.
NAMES = {
    name: f"_headrace_{name}"
    for name in ("call", "method", "item", "attribute", "immutable", "formatted", "operand", "iterated", "slice")
}

#: Syntax that changes only local variables. Functions with any other syntax are refused.
ALLOWED = frozenset(
    {
        *(ast.Return, ast.Assign, ast.AnnAssign, ast.AugAssign, ast.Delete, ast.If, ast.For, ast.While),
        *(
            ast.Try,
            ast.ExceptHandler,
            ast.With,
            ast.withitem,
            ast.Expr,
            ast.Pass,
            ast.Break,
            ast.Continue,
            ast.Raise,
            ast.Assert,
        ),
        *(
            ast.BoolOp,
            ast.BinOp,
            ast.UnaryOp,
            ast.IfExp,
            ast.Dict,
            ast.Set,
            ast.ListComp,
            ast.SetComp,
            ast.DictComp,
            ast.comprehension,
        ),
        *(ast.GeneratorExp, ast.Compare, ast.Call, ast.keyword, ast.FormattedValue, ast.JoinedStr, ast.Constant, ast.Attribute),
        *(ast.Subscript, ast.Starred, ast.Name, ast.List, ast.Tuple, ast.Slice, ast.Import, ast.ImportFrom, ast.alias),
    }
)

#: A field of function definitions from Python 3.12 on.
_NO_TYPES: dict[str, Any] = {"type_params": []}

#: Expressions that make a new object, which the function may therefore change.
DISPLAYS = (ast.List, ast.Dict, ast.Set, ast.ListComp, ast.DictComp, ast.SetComp)
MAKERS = frozenset({"dict", "list", "set"})

#: Exceptions that `except Exception` does not catch.
ENDING = frozenset({"BaseException", "GeneratorExit", "KeyboardInterrupt", "SystemExit"})

#: Methods that change an object. They are only allowed on objects that the function has made (`DISPLAYS`, `MAKERS`).
CHANGES = frozenset(
    {"add", "append", "clear", "discard", "extend", "insert", "pop", "popitem", "remove", "setdefault", "update"}
)


def rewritten(
    function: types.FunctionType, decisions: Decisions, *, is_method: bool, fresh: int | None = None
) -> RewrittenCode:
    """Return a copy of a function in which each call and access goes through `decisions`.

    `is_method`: the first argument is `self`. `fresh`: the number of an argument that nothing else refers to, such as a batch
    made for this call. The function may store into it, as into objects that it has made itself.

    Raise `Unsupported` if the source is not found, or if the function stores something outside of its local variables.
    """
    node = _as_function(copy.deepcopy(_definition(function)))
    own_map = "map" in function.__globals__ or "map" in function.__code__.co_freevars
    rewriter = _Rewriter(node, decisions, is_method=is_method, owner=_owner(function), fresh=fresh, own_map=own_map)
    body = [rewriter.visit(statement) for statement in node.body]
    inner = ast.FunctionDef("inner", _plain_arguments(node.args), body, [], None, **_NO_TYPES)
    captured = [*NAMES.values(), *function.__code__.co_freevars]
    arguments = ast.arguments([], [ast.arg(name) for name in captured], None, [], [], None, [])
    outer = ast.FunctionDef("outer", arguments, [inner], [], None, **_NO_TYPES)
    module = ast.fix_missing_locations(ast.Module([ast.copy_location(outer, node)], []))
    compiled = compile(module, function.__code__.co_filename, "exec", dont_inherit=True)
    code = next(one for one in nested_codes(compiled) if one.co_name == "inner").replace(co_name=function.__name__)
    own = dict(zip(function.__code__.co_freevars, function.__closure__ or (), strict=True))
    own |= {given: types.CellType(getattr(decisions, name, slice)) for name, given in NAMES.items()}
    closure = tuple(own[name] for name in code.co_freevars)
    made = types.FunctionType(code, function.__globals__, function.__name__, function.__defaults__, closure)
    made.__kwdefaults__ = function.__kwdefaults__
    called = tuple(_resolved(function, path) for path in rewriter.called)
    return RewrittenCode(made, frozenset(rewriter.own_attributes), called, frozenset(rewriter.own_methods))


def _resolved(function: types.FunctionType, path: tuple[Any, ...]) -> Any:
    """Return the object that a dotted name in a function refers to. None if only a call could tell."""
    found = path[0]
    if isinstance(found, str):
        cells = dict(zip(function.__code__.co_freevars, function.__closure__ or (), strict=True))
        try:
            found = cells[found].cell_contents if found in cells else function.__globals__[found]
        except (KeyError, ValueError):
            return None
    for name in path[1:]:
        if type(found) is not types.ModuleType:
            return None
        found = vars(found).get(name)
    return found


def _definition(function: types.FunctionType) -> ast.FunctionDef | ast.Lambda:
    """Return the syntax tree of a function. Raise `Unsupported` if its source is missing or does not match its code."""
    code = function.__code__
    unknown = Unsupported(f"the source of {function.__qualname__} is not known")
    source = "".join(linecache.getlines(code.co_filename, function.__globals__))
    try:
        functions, codes = _parsed(source)
    except (SyntaxError, ValueError) as error:
        raise unknown from error
    if code not in codes:
        raise unknown
    found: list[Any] = [node for node in functions if _begins(node, code)]
    if len(found) > 1:
        found = _innermost(found, code)
    if len(found) != 1 or not isinstance(found[0], ast.FunctionDef | ast.Lambda):
        raise unknown
    return found[0]


@functools.lru_cache(maxsize=16)
def _parsed(source: str) -> tuple[tuple[ast.AST, ...], tuple[types.CodeType, ...]]:
    """Return the syntax trees of all functions of a file, outer ones first, and its code objects."""
    kinds = (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda)
    functions = tuple(node for node in ast.walk(ast.parse(source)) if isinstance(node, kinds))
    return functions, tuple(nested_codes(compile(source, "source", "exec", dont_inherit=True)))


def _begins(node: ast.AST, code: types.CodeType) -> bool:
    if isinstance(node, ast.Lambda):
        return code.co_name == "<lambda>" and node.lineno == code.co_firstlineno
    if not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) or node.name != code.co_name:
        return False
    return code.co_firstlineno == min(node.lineno, *(one.lineno for one in node.decorator_list), node.lineno)


def _innermost(nodes: list[Any], code: types.CodeType) -> list[Any]:
    """Return the innermost of several lambdas on a line whose body holds all instructions."""
    places = [(line, column, end_line, end) for line, end_line, column, end in code.co_positions() if column != end]
    begin = min((line or 0, column or 0) for line, column, _, _ in places)
    end = max((line or 0, column or 0) for _, _, line, column in places)
    holding = [
        node
        for node in nodes
        if isinstance(node, ast.Lambda)
        and (node.body.lineno, node.body.col_offset) <= begin
        and end <= (node.body.end_lineno or 0, node.body.end_col_offset or 0)
    ]
    return holding[-1:]  # ast.walk goes from the outer to the inner ones


def _as_function(node: ast.FunctionDef | ast.Lambda) -> ast.FunctionDef:
    if isinstance(node, ast.FunctionDef):
        return node
    statement = ast.copy_location(ast.Return(node.body), node.body)
    return ast.copy_location(ast.FunctionDef("inner", node.args, [statement], [], None, **_NO_TYPES), node)


def _plain_arguments(given: ast.arguments) -> ast.arguments:
    """Return the arguments without annotations and defaults, which the function object has."""
    for argument in (*given.posonlyargs, *given.args, *given.kwonlyargs, given.vararg, given.kwarg):
        if argument is not None:
            argument.annotation = None
    given.defaults, given.kw_defaults = [], [None] * len(given.kwonlyargs)
    return given


def _owner(function: types.FunctionType) -> str:
    """Return the name of the class that a function is defined in, which is part of its private names (`__name`)."""
    before = function.__qualname__.rpartition(".")[0].rpartition(".")[2]
    return "" if before == "<locals>" else before


class _Rewriter(ast.NodeTransformer):
    """Rewrite the statements of one function. Raise `Unsupported` for one that may change something outside of it."""

    def __init__(
        self, node: ast.FunctionDef, decisions: Decisions, *, is_method: bool, owner: str, fresh: int | None, own_map: bool
    ) -> None:
        self._decisions = decisions
        self._name = f"{owner}.{node.name}" if is_method and owner else node.name
        self._owner = owner.lstrip("_")
        arguments = [argument.arg for argument in (*node.args.posonlyargs, *node.args.args)]
        bound = _bound_names(node)
        self._own = arguments[0] if is_method and arguments and arguments[0] not in bound else None
        given = {one.arg for one in ast.walk(node.args) if isinstance(one, ast.arg)}  # what the caller may know, too
        self._fresh = _made_here(node) - given
        if fresh is not None and fresh < len(arguments) and arguments[fresh] not in bound:
            self._fresh.add(arguments[fresh])
        self._own_map = own_map or "map" in bound or "map" in arguments
        self._local = bound | given
        self._imported: dict[str, Any] = {}
        self.own_attributes: set[str] = set()
        self.own_methods: set[str] = set()
        self.called: list[tuple[Any, ...]] = []

    def _refuse(self, what: str) -> Unsupported:
        return Unsupported(f"its {self._name if self._name != 'inner' else 'function'} {what}")

    def visit(self, node: ast.AST) -> Any:
        """Rewrite a node of the syntax tree."""
        if (
            not isinstance(node, ast.expr_context | ast.operator | ast.boolop | ast.unaryop | ast.cmpop)
            and type(node) not in ALLOWED
        ):
            raise self._refuse(f"has a statement that is not looked into ({type(node).__name__.lower()})")
        return super().visit(node)

    def visit_FunctionDef(self, node: ast.FunctionDef) -> Any:
        """Raise `Unsupported`: nested functions are not followed."""
        raise self._refuse("defines a function")

    def visit_Import(self, node: ast.Import) -> Any:
        """Raise `Unsupported` for a module that is not loaded yet, because its code would run. A loaded one is only named."""
        for one in node.names:
            if one.name not in sys.modules:
                raise self._refuse("imports a module that is not loaded yet")
            first = one.name if one.asname else one.name.partition(".")[0]
            self._imported[one.asname or first] = sys.modules[first]
        return node

    def visit_ImportFrom(self, node: ast.ImportFrom) -> Any:
        """Raise `Unsupported` for `from module import name` if the module is not loaded, or makes the name by `__getattr__`."""
        known = {} if node.level else vars(sys.modules.get(node.module or "", types.ModuleType("absent")))
        if not all(one.name in known for one in node.names):
            raise self._refuse("imports a name that is not loaded yet")
        for one in node.names:
            if is_of_library(node.module) and not is_constant(known, one.name):
                raise self._refuse(f"imports {node.module}.{one.name}")
            self._imported[one.asname or one.name] = self._decisions.attribute(sys.modules[node.module or ""], one.name)
        return node

    def visit_Raise(self, node: ast.Raise) -> Any:
        """Raise `Unsupported` for an exception that ends a process: it would end the main process instead of a worker."""
        if isinstance(node.exc, ast.Name) and node.exc.id in ENDING:
            raise self._refuse(f"raises {node.exc.id}")
        return self.generic_visit(node)

    def visit_With(self, node: ast.With) -> Any:
        """Rewrite a `with` block whose context manager is the result of a call."""
        if not all(isinstance(one.context_expr, ast.Call) for one in node.items):
            raise self._refuse("enters a block of an object")
        return self.generic_visit(node)

    def visit_Assign(self, node: ast.Assign) -> Any:
        """Rewrite an assignment: a value unpacked into several variables is iterated over."""
        takes_apart = any(isinstance(target, ast.Tuple | ast.List) for target in node.targets)
        node.value = self._iterated(node.value) if takes_apart else self.visit(node.value)
        node.targets = [self.visit(target) for target in node.targets]
        return node

    def visit_For(self, node: ast.For) -> Any:
        """Rewrite a `for` loop: its iterable goes through `Decisions.iterated`."""
        node.target, node.iter = self.visit(node.target), self._iterated(node.iter)
        node.body, node.orelse = ([self.visit(one) for one in part] for part in (node.body, node.orelse))
        return node

    def visit_comprehension(self, node: ast.comprehension) -> Any:
        """Rewrite a comprehension: its iterable goes through `Decisions.iterated`."""
        node.target, node.iter = self.visit(node.target), self._iterated(node.iter)
        node.ifs = [self._operand(one) for one in node.ifs]
        return node

    def visit_Starred(self, node: ast.Starred) -> Any:
        """Rewrite `*values`: the iterable goes through `Decisions.iterated`."""
        node.value = self._iterated(node.value) if isinstance(node.ctx, ast.Load) else self.visit(node.value)
        return node

    def visit_FormattedValue(self, node: ast.FormattedValue) -> Any:
        """Rewrite a value of an f-string: it goes through `Decisions.formatted`."""
        node.value = self._decided("formatted", [self.visit(node.value)], node.value)
        node.format_spec = None if node.format_spec is None else self.visit(node.format_spec)
        return node

    def _iterated(self, node: ast.expr) -> ast.expr:
        if isinstance(node, ast.GeneratorExp | ast.List | ast.Tuple | ast.ListComp | ast.Constant):
            return self.visit(node)  # type: ignore[no-any-return]
        return self._decided("iterated", [self.visit(node)], node)  # type: ignore[no-any-return]

    def visit_BinOp(self, node: ast.BinOp) -> Any:
        """Rewrite a binary operator. Raise `Unsupported` for `@`: a worker multiplies matrices with one thread."""
        if isinstance(node.op, ast.MatMult):
            raise self._refuse("multiplies matrices")
        right = self._text if isinstance(node.op, ast.Mod) else self._operand  # `"%s" % value` makes a text of the value
        node.left, node.right = self._operand(node.left), right(node.right)
        return node

    def _text(self, node: ast.expr) -> Any:
        if isinstance(node, ast.Tuple):
            return ast.copy_location(ast.Tuple([self._text(one) for one in node.elts], ast.Load()), node)
        made = self._operand(node)
        return made if isinstance(node, ast.Constant) else self._decided("formatted", [made], node)

    def visit_UnaryOp(self, node: ast.UnaryOp) -> Any:
        """Rewrite a unary operator: its operand goes through `Decisions.operand`."""
        node.operand = self._operand(node.operand)
        return node

    def visit_BoolOp(self, node: ast.BoolOp) -> Any:
        """Rewrite `and` and `or`: their values go through `Decisions.operand`."""
        node.values = [self._operand(one) for one in node.values]
        return node

    def visit_Compare(self, node: ast.Compare) -> Any:
        """Rewrite a comparison: its operands go through `Decisions.operand`, except for `is`."""
        looks = any(not isinstance(one, ast.Is | ast.IsNot) for one in node.ops)
        rewritten = self._operand if looks else self.visit
        node.left, node.comparators = rewritten(node.left), [rewritten(one) for one in node.comparators]
        return node

    def visit_If(self, node: ast.If) -> Any:
        """Rewrite the condition of an `if`: it goes through `Decisions.operand`."""
        node.test = self._operand(node.test)
        node.body, node.orelse = ([self.visit(one) for one in part] for part in (node.body, node.orelse))
        return node

    def visit_Assert(self, node: ast.Assert) -> Any:
        """Rewrite an assertion: its condition goes through `Decisions.operand`."""
        node.test, node.msg = self._operand(node.test), None if node.msg is None else self.visit(node.msg)
        return node

    def visit_While(self, node: ast.While) -> Any:
        """Rewrite the condition of a `while` loop: it goes through `Decisions.operand`."""
        node.test = self._operand(node.test)
        node.body, node.orelse = ([self.visit(one) for one in part] for part in (node.body, node.orelse))
        return node

    def visit_IfExp(self, node: ast.IfExp) -> Any:
        """Rewrite `a if condition else b`: the condition goes through `Decisions.operand`."""
        node.test, node.body, node.orelse = self._operand(node.test), self.visit(node.body), self.visit(node.orelse)
        return node

    def visit_Dict(self, node: ast.Dict) -> Any:
        """Rewrite a dict: its keys go through `Decisions.operand`, which their hashes call, and `**more` is iterated over."""
        values = zip(node.keys, node.values, strict=True)
        node.values = [self._iterated(value) if key is None else self.visit(value) for key, value in values]
        node.keys = [None if key is None else self._operand(key) for key in node.keys]
        return node

    def visit_Set(self, node: ast.Set) -> Any:
        """Rewrite a set: its elements go through `Decisions.operand`, which their hashes call."""
        node.elts = [self.visit(one) if isinstance(one, ast.Starred) else self._operand(one) for one in node.elts]
        return node

    def visit_SetComp(self, node: ast.SetComp) -> Any:
        """Rewrite a set comprehension: its elements go through `Decisions.operand`."""
        node.elt, node.generators = self._operand(node.elt), [self.visit(one) for one in node.generators]
        return node

    def visit_DictComp(self, node: ast.DictComp) -> Any:
        """Rewrite a dict comprehension: its keys go through `Decisions.operand`."""
        node.key, node.value = self._operand(node.key), self.visit(node.value)
        node.generators = [self.visit(one) for one in node.generators]
        return node

    def visit_keyword(self, node: ast.keyword) -> Any:
        """Rewrite an argument `name=value`, or `**values`, which is iterated over."""
        node.value = self.visit(node.value) if node.arg is not None else self._iterated(node.value)
        return node

    def _operand(self, node: ast.expr) -> Any:
        made = self.visit(node)
        if isinstance(node, (ast.Constant, ast.Compare, ast.BoolOp, ast.JoinedStr, *DISPLAYS)):  # plain data
            return made
        return self._decided("operand", [made], node)

    def visit_AugAssign(self, node: ast.AugAssign) -> Any:
        """Rewrite `name += value` as `name = name + value`. `Decisions.immutable` refuses values that `+=` changes in place."""
        if isinstance(node.op, ast.MatMult):
            raise self._refuse("multiplies matrices")
        if not isinstance(node.target, ast.Name):
            raise self._refuse("changes something outside of its own variables")
        before = self._decided("immutable", [ast.Name(node.target.id, ast.Load())], node)
        value = ast.BinOp(before, node.op, self._operand(node.value))
        return ast.copy_location(ast.Assign([node.target], value), node)

    def visit_Call(self, node: ast.Call) -> Any:
        """Rewrite a call: it goes through `Decisions.call` or `Decisions.method`."""
        if (mapped := self._mapped(node)) is not None:
            return self.visit(mapped)
        function = node.func
        self._note(function)
        arguments = [self.visit(argument) for argument in node.args]
        named = [self.visit(argument) for argument in node.keywords]
        if isinstance(function, ast.Attribute):
            base = function.value
            if function.attr in CHANGES:
                if not isinstance(base, ast.Name) or base.id not in self._fresh:
                    raise self._refuse(f"calls {function.attr} on something outside of its own variables")
                through = {"extend": "iterated", "update": "iterated", "append": "", "insert": ""}.get(function.attr, "operand")
                arguments = [self._decided(through, [one], node) if through else one for one in arguments]
                return ast.copy_location(ast.Call(function, arguments, named), node)
            name = ast.Constant(self._whole(function.attr))
            return self._decided("method", [self.visit(base), name, *arguments], node, named)
        if isinstance(function, ast.Name) and function.id == "super" and not (arguments or named):
            return node
        return self._decided("call", [self.visit(function), *arguments], node, named)

    def _note(self, function: ast.expr) -> None:
        """Record what a call names: a dotted name, or a method of `self`."""
        path: list[Any] = []
        while isinstance(function, ast.Attribute):
            path.insert(0, function.attr)
            function = function.value
        if not isinstance(function, ast.Name):
            return
        if function.id == self._own:
            self.own_methods.update(self._whole(name) for name in path[:1])
        elif function.id in self._imported:
            self.called.append((self._imported[function.id], *path))
        elif function.id not in self._local:
            self.called.append((function.id, *path))

    def _mapped(self, node: ast.Call) -> ast.GeneratorExp | None:
        """Return `map(lambda x: value, values)` as the generator `(value for x in values)`; None for any other call."""
        if self._own_map or not isinstance(node.func, ast.Name) or node.func.id != "map" or node.keywords:
            return None
        if len(node.args) != 2 or not isinstance(node.args[0], ast.Lambda) or isinstance(node.args[1], ast.Starred):
            return None
        given, values = node.args[0].args, node.args[1]
        several = given.posonlyargs or given.kwonlyargs or given.vararg or given.kwarg or given.defaults
        if several or len(given.args) != 1 or given.args[0].arg in {self._own, *self._fresh}:
            return None
        each = ast.comprehension(ast.Name(given.args[0].arg, ast.Store()), values, [], 0)
        return ast.fix_missing_locations(ast.copy_location(ast.GeneratorExp(node.args[0].body, [each]), node))

    def visit_Attribute(self, node: ast.Attribute) -> Any:
        """Rewrite an attribute that is read: `Decisions.attribute` returns it. Raise `Unsupported` if it is set or deleted."""
        if not isinstance(node.ctx, ast.Load):
            raise self._refuse(f"sets the attribute {node.attr}")
        name = self._whole(node.attr)
        if isinstance(node.value, ast.Name) and node.value.id == self._own:
            self.own_attributes.add(name)
            return ast.copy_location(ast.Attribute(node.value, name, ast.Load()), node)
        return self._decided("attribute", [self.visit(node.value), ast.Constant(name)], node)

    def visit_Subscript(self, node: ast.Subscript) -> Any:
        """Rewrite an element that is read: it goes through `Decisions.item`."""
        if isinstance(node.ctx, ast.Load):
            return self._decided("item", [self.visit(node.value), self._index(node.slice)], node)
        if not isinstance(node.value, ast.Name) or node.value.id not in self._fresh:
            raise self._refuse("stores an item of something outside of its own variables")
        return ast.copy_location(ast.Subscript(node.value, self._index(node.slice), node.ctx), node)

    def _index(self, index: ast.expr) -> Any:
        if isinstance(index, ast.Slice):
            bounds = [
                ast.Constant(None) if one is None else self._operand(one) for one in (index.lower, index.upper, index.step)
            ]
            return self._decided("slice", bounds, index)
        if isinstance(index, ast.Tuple):
            return ast.copy_location(ast.Tuple([self._index(one) for one in index.elts], ast.Load()), index)
        return self._operand(index)

    def _whole(self, name: str) -> str:
        private = self._owner and name.startswith("__") and not name.endswith("__")
        return f"_{self._owner}{name}" if private else name

    def _decided(self, name: str, arguments: list[Any], place: ast.AST, named: list[Any] | None = None) -> Any:
        call = ast.Call(ast.Name(NAMES[name], ast.Load()), arguments, named or [])
        return ast.copy_location(call, place)


def _bound_names(node: ast.FunctionDef) -> set[str]:
    return {one.id for one in ast.walk(node) if isinstance(one, ast.Name) and not isinstance(one.ctx, ast.Load)}


def _made_here(node: ast.FunctionDef) -> set[str]:
    """Return the variables whose only values are lists, dicts and sets that the function makes."""
    made: dict[str, bool] = {}
    plain: dict[int, bool] = {}
    for one in ast.walk(node):
        targets = one.targets if isinstance(one, ast.Assign) else [one.target] if isinstance(one, ast.AnnAssign) else []
        if len(targets) == 1 and isinstance(targets[0], ast.Name):
            value = getattr(one, "value", None)
            is_maker = isinstance(value, ast.Call) and isinstance(value.func, ast.Name) and value.func.id in MAKERS
            plain[id(targets[0])] = is_maker or isinstance(value, DISPLAYS)
    for one in ast.walk(node):
        if isinstance(one, ast.Name) and not isinstance(one.ctx, ast.Load):
            made[one.id] = made.get(one.id, True) and plain.get(id(one), False)
    return {name for name, fresh in made.items() if fresh}
