"""The arguments of one call of a tool: how the model's are checked, and how others are injected.

A model sends a JSON object. TypedArguments checks it by the type hints of a function,
SchemaArguments by a JSON Schema. Both give the same errors, with words from which the model can
correct its call. HiddenArguments holds the arguments that the program fills and no model sees.
"""

from __future__ import annotations

import inspect
import itertools
import json
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from functools import cached_property, partial
from typing import TYPE_CHECKING, Any, NamedTuple, NoReturn

from pydantic import BaseModel, ValidationError

from sayso.agent.tools.errors import (
    EffectUnknownError,
    ToolError,
    ToolExecutionError,
    ToolParameterError,
    ToolValidationError,
)
from sayso.agent.tools.json_schema import DEFINITIONS, frozen, schema_for_models
from sayso.agent.tools.json_validation import (
    Repairer,
    StepBudget,
    bounded_validator,
    has_whole_float,
    pattern_search,
    with_budget,
)
from sayso.agent.tools.parameter import JSON_TYPES, ParameterModel, ToolParameter
from sayso.infra.spelling import nearest
from sayso.pending.error_texts import FATAL_ERRORS, error_text
from sayso.pending.proposals import current_context
from sayso.pending.tool_context import context_arguments

if TYPE_CHECKING:
    from jsonschema.protocols import Validator

#: Most mistakes of one call that are collected while it is checked by a JSON Schema.
MAX_MISTAKES = 100
#: Longest value that an error quotes to the model, in characters.
MAX_QUOTED_CHARS = 80
#: Most mistakes that one error lists: a list of a thousand wrong numbers has a thousand.
MAX_LISTED_MISTAKES = 10
#: The problem of text with a lone surrogate.
LONE_SURROGATE = "it holds half a character (a lone surrogate), which no UTF-8 can hold"
#: The problem of a required parameter that is left out. `refusal` adds the name behind it.
MISSING = "Missing required parameter"
#: The type of pydantic's issue -> the type that the value must have.
_WANTED_TYPES: Mapping[str, type] = {
    "string_type": str,
    "list_type": list,
    "dict_type": dict,
    "int_type": int,
    "int_parsing": int,
    "int_from_float": int,
    "float_type": float,
    "float_parsing": float,
    "bool_type": bool,
    "bool_parsing": bool,
}
#: Keywords of a JSON Schema whose parts describe the same object as the schema around them. The
#: first three hold a list of schemas, the next two one schema, the last one schemas by name.
_KEYWORDS_WITH_PARTS = ("allOf", "anyOf", "oneOf", "then", "else", "dependentSchemas")
#: The keywords that allow names of properties which a schema does not list itself.
_KEYWORDS_FOR_OTHER_NAMES = frozenset({"additionalProperties", "unevaluatedProperties"})
#: The keywords by which a part may name properties, or allow names.
_KEYWORDS_WITH_PROPERTIES = frozenset(
    {"properties", "patternProperties", "$ref", *_KEYWORDS_FOR_OTHER_NAMES, *_KEYWORDS_WITH_PARTS}
)


class ValidatedArguments:
    """The checked arguments of one call. Used once: the tool's function may change the values."""

    def __init__(self, values: dict[str, Any], to_json: Callable[[], dict[str, Any]]) -> None:
        #: The arguments as Python values, with defaults filled in.
        self.values = values
        self._to_json = to_json

    @cached_property
    def json(self) -> dict[str, Any]:
        """The arguments as exact JSON values.

        It is made when it is first read: read it before the function is called, which may change
        the values. Raises ToolParameterError for values that JSON cannot express.
        """
        return self._to_json()


class TypedArguments(ParameterModel):
    """Checks the arguments of one tool by the type hints of its parameters.

    ParameterModel compiles them when the tool is defined, as a pydantic model; a call costs one
    pass of its validator.

    Its fields have the names of the parameters, except for names that pydantic reserves, such as
    `json`. The field of such a parameter has a substitute name, and the parameter's name is the
    field's alias; `renamed` maps the one to the other. Models, records and the function use the
    names of the parameters only.
    """

    def __init__(self, tool_name: str, parameters: Sequence[ToolParameter]) -> None:
        """Compile the type hints. Raises ToolValidationError for one that no JSON can fill."""
        super().__init__(tool_name, parameters)
        self._validate: Callable[[Any], BaseModel] = self.validator.validate_python

    def check(self, params: Mapping[str, Any]) -> ValidatedArguments:
        """Return the arguments as Python values, with defaults filled in, and as JSON.

        Raises ToolParameterError.
        """
        validated = self._validated(params)
        return ValidatedArguments(self._values(validated), lambda: self._as_json(validated))

    def values(self, params: Mapping[str, Any]) -> dict[str, Any]:
        """Return the values of `check` alone. Raises ToolParameterError."""
        return self._values(self._validated(params))

    def read_record(self, params: Mapping[str, Any]) -> dict[str, Any]:
        """Return the arguments as JSON values that read as the same Python values later.

        Raises ToolParameterError for values that JSON does not preserve, and for a validator that
        changes a value each time it reads it.
        """
        validated = self._validated(params)
        recorded = self._as_json(validated)
        before = self._values(validated)
        try:
            after = self._values(self._validated(recorded))
        except ToolParameterError as exc:
            # A validator has changed a value to one that it refuses, such as one outside the enum.
            raise self._unrecordable([exc.param_name]) from exc
        changed = [name for name in recorded if not _are_equal(before[name], after[name])]
        if changed:
            raise self._unrecordable(changed)
        return recorded

    def _unrecordable(self, names: Sequence[str]) -> ToolParameterError:
        return ToolParameterError(
            tool_name=self._tool_name,
            param_name=", ".join(names),
            issue=f"{names!r} cannot be recorded: "
            "what is written down of it reads as something else",
            suggestion="give it a type that JSON can hold, or do without a review",
        )

    def _values(self, validated: BaseModel) -> dict[str, Any]:
        """Return the Python values of the fields, by the names of the parameters."""
        if not self.renamed:
            return validated.__dict__
        return {self.renamed.get(name, name): value for name, value in validated.__dict__.items()}

    def _as_json(self, validated: BaseModel) -> dict[str, Any]:
        """Return the JSON values of the fields, by the names of the parameters.

        Raises ToolParameterError.
        """
        # A default that JSON cannot express is left out: it is filled in again later. Both sets
        # hold names of fields.
        omitted = self.internal_defaults - validated.model_fields_set
        try:
            return validated.model_dump(
                mode="json", by_alias=True, exclude=set(omitted), warnings=False
            )
        except Exception as exc:
            # A value that JSON lacks, or a serializer written by the tool's author.
            raise self._unusable(f"cannot be written down: {error_text(exc)}") from exc

    def _validated(self, params: Mapping[str, Any]) -> BaseModel:
        """Return the validated arguments, repaired if they must be. Raises ToolParameterError."""
        try:
            try:
                return self._validate(params)
            except ValidationError as exc:
                return self._repaired(params, exc)
        except ToolError:
            raise
        except Exception as exc:
            # A validator written by the tool's author, or nesting deeper than Python's limit.
            raise self._unusable(
                f"cannot be checked: {type(exc).__name__}: {error_text(exc)}"
            ) from exc

    def _repaired(self, params: Mapping[str, Any], error: ValidationError) -> BaseModel:
        """Repair what models often write, such as a list as JSON text, and validate again.

        `error` is the one of the first time. Raises ToolParameterError.
        """
        if not isinstance(params, Mapping):
            raise self._refusal(error)
        repairer = Repairer(self.schema, StepBudget())
        try:
            return self._validate(repairer.repaired(dict(params)))
        except ValidationError as exc:
            raise self._refusal(exc) from exc

    def _refusal(self, error: ValidationError) -> ToolParameterError:
        """Return the error with pydantic's issues in words for the model."""
        mistakes = []
        for issue in error.errors(include_url=False):
            value = issue["input"]
            is_top_level = len(issue["loc"]) == 1
            if issue["type"] == "extra_forbidden" and is_top_level:
                problem = ""
            elif issue["type"] == "missing":
                problem = MISSING
            elif issue["type"] == "string_unicode":
                problem = f"is {quoted(value)}: {LONE_SURROGATE}"
            else:
                problem = f"is {quoted(value)}: {issue['msg']}"
            path = ".".join(map(str, issue["loc"])) or "parameters"

            # Only at the top level: below it a path may contain the name of a union's member, which
            # is no place in the arguments.
            cure = ""
            wanted_type = _WANTED_TYPES.get(issue["type"])
            if is_top_level and wanted_type:
                cure = cure_of_type(path, value, wanted_type)
            mistakes.append(Mistake(path, problem, cure))
        expected = {name: bool(each.required) for name, each in self.parameters.items()}
        return refusal(self._tool_name, mistakes, expected)

    def _unusable(self, why: str) -> ToolParameterError:
        return ToolParameterError(tool_name=self._tool_name, issue=f"its arguments {why}")


def _are_equal(one: Any, other: Any) -> bool:
    """Return whether two values are equal by `==`, or are objects of one class without an `__eq__`.

    Python compares such objects by their identity, so a value that was read again would never be
    equal. Inside a list or another value they stay unequal.
    """
    if one == other:
        return True
    if type(one) is not type(other):
        return False
    classes = [each for each in type(one).__mro__ if each is not object]
    return not any("__eq__" in vars(each) for each in classes)


class SchemaArguments:
    """Checks the arguments of one tool by its JSON Schema. Values that fit stay unchanged."""

    def __init__(self, tool_name: str, schema: Mapping[str, Any]) -> None:
        """Take a schema of an object. `_strict_schema` says which names it allows.

        Raises ToolValidationError for the schema of anything but an object, and for one that is no
        JSON Schema. A reference that leads nowhere, or outside the schema, is found at the first
        call.
        """
        self._tool_name = tool_name
        if schema.get("type", "object") != "object":
            raise ToolValidationError(
                f"the parameters of {tool_name!r} are {quoted(dict(schema))}: give an object schema"
            )
        try:
            #: The schema by which arguments are validated.
            self._raw = _strict_schema(schema)
            #: The simpler form of it that models read. Immutable, since all calls share it.
            self.schema: dict[str, Any] = frozen(schema_for_models(self._raw))
            json.dumps(self.schema, allow_nan=False)  # raises for what JSON lacks, such as NaN
            self.parameters = tuple(self._parameter(name) for name in self.schema["properties"])
        except (AttributeError, TypeError, KeyError, ValueError, RecursionError) as exc:
            raise ToolValidationError(
                f"the parameters of {tool_name!r} are no JSON Schema: {exc}"
            ) from exc

    def check(self, params: Mapping[str, Any]) -> ValidatedArguments:
        """Return the arguments; text becomes the number or boolean it stands for.

        Raises ToolParameterError.
        """
        values = self.values(params)
        return ValidatedArguments(values, partial(self._copy_of, values))

    def read_record(self, params: Mapping[str, Any]) -> dict[str, Any]:
        """Return a copy of the arguments: JSON values read as themselves again.

        Raises ToolParameterError.
        """
        return self.check(params).json

    def values(self, params: Mapping[str, Any]) -> dict[str, Any]:
        """Return the values of `check` alone. Raises ToolParameterError."""
        # jsonschema takes a dict only for an object. Anything but a mapping stays, and is refused:
        # the schema is one of an object.
        arguments: Any = params
        if isinstance(params, Mapping):
            arguments = dict(params)

        # A hostile schema could take longer than any call lasts: then the check raises an error.
        budget = StepBudget()
        validator = with_budget(self._validator, budget)
        try:
            # A model may write 3.0 for an integer. It is valid, but many servers refuse it, so it
            # is repaired like a mistake.
            needs_no_repair = not has_whole_float(arguments) and validator.is_valid(arguments)
            if needs_no_repair and not _why_unwritable(arguments):
                return dict(arguments)
            arguments = Repairer(self.schema, budget).repaired(arguments)
            errors = list(itertools.islice(validator.iter_errors(arguments), MAX_MISTAKES))
            errors.sort(key=lambda error: list(map(str, error.absolute_path)))
            mistakes: list[Mistake] = []
            for error in errors:
                mistakes += self._mistakes(error)
        except RecursionError as exc:
            raise ToolParameterError(
                tool_name=self._tool_name, issue="its arguments are nested too deep"
            ) from exc
        except Exception as exc:  # a dangling reference, an invalid pattern, or too many steps
            issue = f"its schema cannot be used ({type(exc).__name__}: {quoted(str(exc))})"
            raise ToolParameterError(tool_name=self._tool_name, issue=issue) from exc

        if mistakes:
            # Several errors may be the same mistake: see `_mistakes`.
            raise self._refusal(list(dict.fromkeys(mistakes)))

        problem = _why_unwritable(arguments)
        if problem:
            raise self._refusal([Mistake("parameters", f"is {quoted(arguments)}: {problem}")])
        return dict(arguments)

    def _copy_of(self, values: Mapping[str, Any]) -> dict[str, Any]:
        """Return a copy, which the function cannot change. Raises ToolParameterError."""
        try:
            copy: dict[str, Any] = json.loads(json.dumps(values, allow_nan=False))
        except (TypeError, ValueError) as exc:
            raise ToolParameterError(
                tool_name=self._tool_name, issue=f"its arguments are not JSON: {exc}"
            ) from exc
        return copy

    @cached_property
    def _validator(self) -> Validator:
        return bounded_validator(self._raw)

    def _refusal(self, mistakes: list[Mistake]) -> ToolParameterError:
        required = self.schema["required"]
        expected = {name: name in required for name in self.schema["properties"]}
        return refusal(self._tool_name, mistakes, expected)

    def _mistakes(self, error: Any) -> list[Mistake]:
        """Return an error of jsonschema as mistakes: one for each missing or unknown name.

        jsonschema gives one error for each missing name of an object, but only its text says which
        name. So each of these errors becomes all the missing names, and the caller drops repeated
        mistakes. The unknown names of an object have one error together.
        """
        path = ".".join(map(str, error.absolute_path))
        keyword = error.validator
        expected = error.validator_value
        value = error.instance
        if keyword == "required":
            missing = [name for name in expected if name not in value]
            return [Mistake(f"{path}.{name}" if path else name, MISSING) for name in missing]

        # Only at the top level an unknown name is a parameter that does not exist.
        if not path:
            unknown = self._unknown_names(error)
            if unknown:
                return [Mistake(name, "") for name in unknown]

        if keyword in ("type", "enum", "const", "format", "pattern"):
            problem = f"must be of {keyword} {quoted(expected)}"
        else:
            problem = f"breaks {keyword}: {quoted(expected)}"
        wanted_type = None
        is_parameter = len(error.absolute_path) == 1
        if keyword == "type" and is_parameter and isinstance(expected, str):
            wanted_type = JSON_TYPES.get(expected)
        cure = ""
        if wanted_type:
            cure = cure_of_type(path, value, wanted_type)
        return [Mistake(path or "parameters", f"is {quoted(value)}: {problem}", cure)]

    def _unknown_names(self, error: Any) -> list[str]:
        """Return the names for which jsonschema refused an object; [] for any other error.

        Raises re.error for a pattern that is no regular expression.
        """
        if error.validator_value is not False:
            return []
        if error.validator == "additionalProperties":
            known = error.schema.get("properties", {})
            patterns = error.schema.get("patternProperties", {})
        elif error.validator == "unevaluatedProperties":
            # It also refuses names that a part of the schema gives, if the object breaks another
            # rule of that part. These are not unknown, wherever the part is.
            known = _keys_under("properties", self._raw)
            patterns = _keys_under("patternProperties", self._raw)
        else:
            return []

        unknown = []
        for name in error.instance:
            fits_pattern = any(pattern_search(pattern)(name) for pattern in patterns)
            if name not in known and not fits_pattern:
                unknown.append(name)
        return unknown

    def _parameter(self, name: str) -> ToolParameter:
        """Return a property of the schema as a parameter, for descriptions of the tool."""
        schema = self.schema["properties"][name]
        json_type = schema.get("type")
        param_type = Any
        if isinstance(json_type, str):  # it may be a list of types
            param_type = JSON_TYPES.get(json_type, Any)
        return ToolParameter(
            name=name,
            param_type=param_type,
            description=str(schema.get("description", "")),
            required=name in self.schema["required"],
            enum=schema.get("enum"),
            default=schema.get("default"),
            json_schema=schema,
        )


def _strict_schema(schema: Mapping[str, Any]) -> dict[str, Any]:
    """Return the schema of an object so that it refuses names that neither it nor a part gives.

    A part gives a name if it lists the name, has a pattern for it or allows any name. A schema with
    `additionalProperties` or `unevaluatedProperties` of its own decides itself which names it
    accepts.
    """
    strict = {"type": "object", "properties": {}, **schema}
    # Pydantic writes a model that contains itself as a reference at the top. As a part of `allOf`
    # it has the same meaning, and models are shown the properties of such parts.
    if "$ref" in strict:
        reference = {"$ref": strict.pop("$ref")}
        strict["allOf"] = [reference, *strict.get("allOf", ())]

    if strict.keys() & _KEYWORDS_FOR_OTHER_NAMES:
        return strict
    # `additionalProperties` would refuse names that only a part gives, such as one of `allOf`.
    # `unevaluatedProperties` counts in each draft (`bounded_validator`).
    if _has_properties_in_parts(strict):
        strict["unevaluatedProperties"] = False
    else:
        strict["additionalProperties"] = False
    return strict


def _has_properties_in_parts(schema: Mapping[str, Any]) -> bool:
    """Return whether a part of the schema, such as one of its `allOf`, gives names of properties.

    An `if` does not count: it only tests the properties that something else gives.
    """
    for keyword in _KEYWORDS_WITH_PARTS:
        parts = schema.get(keyword)
        if keyword == "dependentSchemas" and isinstance(parts, dict):
            parts = list(parts.values())
        elif not isinstance(parts, list):
            parts = [parts]
        for part in parts:
            if isinstance(part, dict) and part.keys() & _KEYWORDS_WITH_PROPERTIES:
                return True
    return False


def _keys_under(keyword: str, schema: Any) -> set[str]:
    """Return the keys of the objects that a schema has under a keyword, at any depth."""
    keys: set[str] = set()
    parts: Iterable[Any] = ()
    if isinstance(schema, dict):
        parts = schema.values()
        if isinstance(schema.get(keyword), dict):
            keys.update(schema[keyword])
    elif isinstance(schema, list):
        parts = schema
    for part in parts:
        keys |= _keys_under(keyword, part)
    return keys


def is_json_schema(parameters: Any) -> bool:
    """Return whether parameters are given as one JSON Schema: it has a type, properties or $defs.

    Otherwise they are ToolParameters by their names.
    """
    if not isinstance(parameters, Mapping):
        return False
    if any(isinstance(each, ToolParameter) for each in parameters.values()):
        return False
    # `{}` is the schema of a tool without parameters.
    return not parameters or any(key in parameters for key in ("type", "properties", *DEFINITIONS))


def _why_unwritable(value: Any) -> str:
    """Return why the value cannot be written as JSON in UTF-8; "" if it can.

    A value of another type than JSON has gives "" too: a program may pass one to a tool, and it is
    refused only where the call is recorded.
    """
    try:
        json.dumps(value, allow_nan=False, ensure_ascii=False).encode()
    except UnicodeEncodeError:
        return LONE_SURROGATE
    except ValueError:
        return "JSON holds neither NaN nor infinities"
    except TypeError:
        return ""
    return ""


class Mistake(NamedTuple):
    """One mistake in the arguments of a call."""

    #: The parameter, and where the mistake is inside of it, such as "order.items.0".
    path: str
    #: What is wrong; "" for a parameter that does not exist.
    problem: str
    #: What to try instead; "" if the problem says it.
    cure: str = ""


def refusal(
    tool_name: str, mistakes: Sequence[Mistake], expected: Mapping[str, bool]
) -> ToolParameterError:
    """Return the error of a call: its mistakes, their cures, and the parameters of the tool.

    `expected` says for each parameter of the tool whether it is required.
    """
    listed_mistakes = mistakes[:MAX_LISTED_MISTAKES]
    problems = list[str]()
    cures = list[str]()
    for each in listed_mistakes:
        name = quoted(each.path)
        if each.problem == MISSING:
            problems.append(f"{MISSING}: {name}")
            cures.append(each.cure)
            continue
        if each.problem:
            problems.append(f"{name} {each.problem}")
            cures.append(each.cure)
            continue

        problems.append(f"Unexpected parameter(s): {name}")
        similar = nearest(each.path, expected)
        if similar:
            cures.append(f"{name} -> Did you mean {similar!r}?")
        else:
            cures.append(f"{name} is not a valid parameter")
    if len(mistakes) > MAX_LISTED_MISTAKES:
        problems.append(f"and {len(mistakes) - MAX_LISTED_MISTAKES} more")

    suggestions = ["; ".join(filter(None, cures))]
    if any(each.problem == MISSING and each.path in expected for each in mistakes):
        required = [name for name, is_required in expected.items() if is_required]
        suggestions.append(_listed("Required", required))
    suggestions.append(_listed("Expected", expected))

    return ToolParameterError(
        tool_name=tool_name,
        param_name=", ".join(each.path for each in listed_mistakes),
        issue="; ".join(problems),
        suggestion="\n".join(filter(None, suggestions)),
    )


def _listed(kind: str, names: Iterable[str]) -> str:
    return f"{kind} parameters: {', '.join(map(repr, names)) or 'none'}"


def cure_of_type(path: str, value: Any, wanted: type) -> str:
    """Return what to try for a value of the wrong type.

    A number or boolean that should be text can be sent as text. The other way round never gets
    here: text that reads as a number is accepted.
    """
    if wanted is str and isinstance(value, int | float):
        return f"Try: {path}=str({quoted(value)})"
    return f"Expected type: {wanted.__name__}"


def quoted(value: Any) -> str:
    """Return a value as an error shows it, cut after MAX_QUOTED_CHARS."""
    beginning = value
    if isinstance(value, str):  # it may be very long, and only the beginning is shown
        beginning = value[: MAX_QUOTED_CHARS + 1]
    try:
        text = repr(beginning)
    except Exception:  # nested too deep, or a number of too many digits
        return f"a {type(value).__name__} that cannot be shown"
    if len(text) <= MAX_QUOTED_CHARS:
        return text
    return text[:MAX_QUOTED_CHARS] + "..."


#: Returns the arguments to inject into a call: a mapping by name, or None for none. It may return
#: a context manager that yields the mapping, which is closed after the call. A ToolContext
#: parameter of it is filled.
Injector = Callable[..., Any]


class InjectedArguments(Mapping[str, Any]):
    """The `injected_kwargs` of a tool's definition, by name. No name can be set or removed.

    Neither repr nor pickle shows the values: they may be secret.
    """

    __slots__ = ("_values",)

    def __init__(self, values: Mapping[str, Any]) -> None:
        self._values = dict(values)

    def __getitem__(self, name: str) -> Any:
        return self._values[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._values)

    def __len__(self) -> int:
        return len(self._values)

    def __repr__(self) -> str:
        return f"<injected: {', '.join(self._values) or 'nothing'}>"

    def __copy__(self) -> InjectedArguments:
        return self

    def __deepcopy__(self, _: Any) -> InjectedArguments:
        return self

    def __reduce__(self) -> NoReturn:
        raise TypeError("injected arguments of a tool cannot be pickled: they may be secret")


class HiddenArguments:
    """The arguments of one tool that no model fills. Lives as long as its tool.

    A name that was injected once stays hidden from models for the life of the process: if the
    injector leaves it out at another call, a model must not fill it instead.
    """

    def __init__(
        self,
        tool_name: str,
        fixed: Mapping[str, Any],
        injector: Injector | None,
        unfillable: Collection[str] = (),
    ) -> None:
        """Take the `fixed` values, and the `injector` that returns more at each call.

        `unfillable` are names that no model can fill, so that the injector must.
        """
        self._tool_name = tool_name
        self._fixed = dict(fixed)
        self._injector = injector
        self._hidden = {*fixed, *unfillable}
        #: Whether the injector has been called, so that its names are known.
        self.is_complete = injector is None

    @property
    def known_names(self) -> frozenset[str]:
        """The names that no model fills, as far as they are known without calling the injector."""
        return frozenset(self._hidden)

    def names(self) -> frozenset[str]:
        """Return the names that no model fills.

        Calls the injector the first time. Raises ToolExecutionError.
        """
        if not self.is_complete:
            with self.opened():  # adds the names of the injector
                pass
        return self.known_names

    @contextmanager
    def opened(self) -> Iterator[dict[str, Any]]:
        """Yield the values of one call by name; what the injector opened is closed afterwards.

        Raises ToolExecutionError if the injector fails, returns anything but what Injector says, or
        cannot be closed. If the caller fails inside of the `with`, `_close` says which error is
        raised.
        """
        if self._injector is None:
            yield dict(self._fixed)
            return

        failure: BaseException | None = None
        stack = ExitStack()
        try:
            injected = self._call(self._injector, stack)
            self._hidden.update(injected)
            self.is_complete = True
            yield {**self._fixed, **injected}
        except BaseException as exc:
            failure = exc
        self._close(stack, failure)
        # The context manager may have swallowed the error. It is raised all the same: a call that
        # failed must not count as done.
        if failure is not None:
            raise failure

    def _call(self, injector: Injector, stack: ExitStack) -> Mapping[str, Any]:
        """Return the mapping that the injector returns or yields; `stack` closes it.

        Raises ToolExecutionError.
        """
        injected: dict[Any, Any] | None = None
        try:
            returned = injector(**context_arguments(injector, current_context))
            if isinstance(returned, AbstractContextManager):
                returned = stack.enter_context(returned)
            if returned is None:
                injected = {}
            elif isinstance(returned, Mapping):
                injected = dict(returned)
        except (Exception, *FATAL_ERRORS) as exc:
            raise self._failed(exc) from exc

        if injected is None or not all(isinstance(name, str) for name in injected):
            if inspect.iscoroutine(returned):
                returned.close()  # avoids the warning that it was never awaited
            raise ToolExecutionError(
                f"the config_injector of {self._tool_name!r} returned a {type(returned).__name__}: "
                "return a dict of names and values, or None",
                tool_name=self._tool_name,
            )
        return injected

    def _close(self, stack: ExitStack, failure: BaseException | None) -> None:
        """Close what the injector opened, after the tool has run.

        `failure` is the error of the call, None for none. The injector's context manager gets it,
        and may roll back.

        Raises a ToolError of the injector unchanged, such as an EffectUnknownError of a commit, and
        ToolExecutionError for any other error of the injector. But an EffectUnknownError of the
        call, or its cancellation, must not become a mere failure: then nothing is raised, and the
        caller raises `failure`.
        """
        try:
            if failure is None:
                stack.close()
            else:
                stack.__exit__(type(failure), failure, failure.__traceback__)
        except (Exception, *FATAL_ERRORS) as exc:
            if exc is failure or isinstance(failure, (EffectUnknownError, *FATAL_ERRORS)):
                return
            if isinstance(exc, ToolError):
                raise
            raise self._failed(exc) from exc

    def _failed(self, error: BaseException) -> ToolExecutionError:
        """Return the error of a call whose injector raised `error`."""
        return ToolExecutionError(
            f"the config_injector of {self._tool_name!r} failed: "
            f"{type(error).__name__}: {error_text(error)}",
            tool_name=self._tool_name,
            error=error,
        )
