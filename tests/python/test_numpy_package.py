"""What the package offers: names, types, documentation, exceptions."""

import ast
import inspect
import pathlib
import pickle

import foldcast


def declared():
    """name -> ast node of everything in the stub file."""
    stub = pathlib.Path(foldcast.__file__).parent / "_foldcast.pyi"
    return {node.name: node for node in ast.parse(stub.read_text()).body if hasattr(node, "name")}


def parameters_of(node):
    """(name, keyword only, default) as inspect would show them."""
    arguments = node.args
    plain = [a.arg for a in arguments.args if a.arg != "self"]
    defaults = [None] * (len(plain) - len(arguments.defaults)) + [ast.literal_eval(d) for d in arguments.defaults]
    has_default = [False] * (len(plain) - len(arguments.defaults)) + [True] * len(arguments.defaults)
    found = [(n, False, d) for n, d in zip(plain, zip(has_default, defaults))]
    keyword = [(a.arg, True, (True, ast.literal_eval(d))) for a, d in zip(arguments.kwonlyargs, arguments.kw_defaults)]
    return found + keyword


def parameters_at_run_time(function):
    found = []
    for name, parameter in inspect.signature(function).parameters.items():
        if name == "self":
            continue
        has_default = parameter.default is not inspect.Parameter.empty
        default = parameter.default if has_default else None
        found.append((name, parameter.kind is inspect.Parameter.KEYWORD_ONLY, (has_default, default)))
    return found


def test_the_types_are_those_of_the_module():
    for name, node in declared().items():
        if isinstance(node, ast.FunctionDef):
            assert parameters_of(node) == parameters_at_run_time(getattr(foldcast._foldcast, name)), name
        elif isinstance(node, ast.ClassDef):
            methods = {method.name: method for method in node.body if isinstance(method, ast.FunctionDef)}
            real = {name for name in vars(getattr(foldcast, node.name)) if not name.startswith("_")}
            assert set(methods) == real, node.name
            for method in methods.values():
                found = getattr(getattr(foldcast, node.name), method.name)
                if not inspect.isgetsetdescriptor(found):
                    assert parameters_of(method) == parameters_at_run_time(found), method.name
    assert (pathlib.Path(foldcast.__file__).parent / "py.typed").exists()


def test_everything_public_is_documented_and_nothing_is_missing():
    for name in foldcast.__all__:
        assert inspect.getdoc(getattr(foldcast, name)), name
    for kind in (foldcast.Group, foldcast.Handle):
        for name, member in vars(kind).items():
            assert name.startswith("_") or inspect.getdoc(member), name
    public = {name for name in declared() if not name.startswith("_")} - {"table_address"}
    assert public <= set(foldcast.__all__)


def test_the_exceptions():
    bases = {
        "MismatchError": (),
        "RankDiedError": (),
        "DeadlineError": (TimeoutError,),
        "GroupAbortedError": (),
        "ForkedProcessError": (),
        "ClosedError": (),
        "ResourceError": (),
        "NotInGroupError": (ValueError,),
        "InvalidArgumentError": (ValueError,),
    }
    assert foldcast.FoldcastError.__bases__ == (RuntimeError,)
    for name, others in bases.items():
        kind = getattr(foldcast, name)
        assert kind.__bases__ == (foldcast.FoldcastError, *others)
        assert kind.__module__ == "foldcast" and kind.__doc__
        error = pickle.loads(pickle.dumps(kind.about("what happened", rank=3, field="count", elapsed=0.5)))
        assert (type(error), str(error)) == (kind, "what happened")
        assert (error.rank, error.op, error.tag, error.group) == (3, None, None, None)
        assert (error.field, error.expected, error.got, error.elapsed) == ("count", None, None, 0.5)


def test_the_objects_of_the_module_are_made_by_its_functions():
    for kind in (foldcast.Group, foldcast.Handle):
        try:
            kind()
        except TypeError:
            continue
        raise AssertionError(kind)
