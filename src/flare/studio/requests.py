"""What the service is asked, as pydantic reads it: the same columns as the table of `flare schedule`, a device each."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Literal, NotRequired, TypeVar

from pydantic import ConfigDict, Field, TypeAdapter, ValidationError
from pydantic_core import ErrorDetails
from typing_extensions import TypedDict

from flare.scheduling.problem import ABSURD, WIDEST_HZ
from flare.studio.answers import FieldError, path_of
from flare.text import did_you_mean
from flare.units import parse, quantity_of

T = TypeVar("T")
_STRICT = ConfigDict(extra="forbid", strict=True, allow_inf_nan=False)
Positive = Annotated[float, Field(gt=0.0, le=ABSURD)]


class Device(TypedDict):
    """A device: `tau`; `compute_s`, or `cpu_hz` with `cycles_per_sample`; `snr_hz`, or `power_dbm` with `gain_db` or
    `distance_m`. Every device of a round has the same fields."""

    __pydantic_config__ = _STRICT  # type: ignore[misc]
    name: NotRequired[Annotated[str, Field(max_length=200, description="what it is called; names differ")]]
    tau: Annotated[float, Field(description="local steps that it can do, at least 1")]
    compute_s: NotRequired[Annotated[float, Field(description="seconds that those take")]]
    cpu_hz: NotRequired[Annotated[float, Field(description="speed of its processor")]]
    cycles_per_sample: NotRequired[Annotated[float, Field(description="processor cycles for one training sample")]]
    snr_hz: NotRequired[Annotated[float, Field(description="p h^2 / N_0: received power over noise density")]]
    power_dbm: NotRequired[Annotated[float, Field(description="power that it sends with")]]
    gain_db: NotRequired[Annotated[float, Field(description="power gain of its channel")]]
    distance_m: NotRequired[Annotated[float, Field(description="distance from the base station")]]
    weight: NotRequired[Annotated[float, Field(description="how much the objective counts it; default 1")]]
    payload_bits: NotRequired[Annotated[float, Field(description="size of its update, instead of the round's")]]
    deadline_s: NotRequired[Annotated[float, Field(description="when it must be done itself")]]


class Round(TypedDict):
    """A round to schedule."""

    __pydantic_config__ = _STRICT  # type: ignore[misc]
    devices: Annotated[list[Device], Field(min_length=1, description="the devices of the cell")]
    bandwidth_hz: Annotated[float, Field(gt=0.0, le=WIDEST_HZ, description="the band to divide")]
    deadline_s: NotRequired[Annotated[Positive, Field(description="when the round must be over")]]
    guard: NotRequired[
        Annotated[
            float | str,
            Field(description='what to leave free of every deadline: a share of it, or a time such as "300ms"'),
        ]
    ]
    payload_bits: NotRequired[Annotated[Positive, Field(description="size of an update")]]
    gamma: NotRequired[Annotated[float, Field(ge=0.0, le=ABSURD, description="weight of participation; default 10")]]
    policy: NotRequired[Annotated[str, Field(max_length=64, description="who chooses; default exact")]]
    options: NotRequired[Annotated[dict[str, Any], Field(description="options of the policy by name")]]
    must: NotRequired[
        Annotated[list[int | str], Field(description="devices that have to send: names, or numbers from 0")]
    ]
    never: NotRequired[Annotated[list[int | str], Field(description="devices that must not send, likewise")]]
    max_devices: NotRequired[Annotated[int, Field(ge=1, description="how many may send at most")]]
    block_hz: NotRequired[
        Annotated[Positive, Field(description="width of a resource block, of which all get whole ones")]
    ]
    batch_size: NotRequired[
        Annotated[int, Field(ge=1, le=10**9, description="samples a step, for cycles_per_sample; default 40")]
    ]
    noise_dbm_per_mhz: NotRequired[
        Annotated[float, Field(ge=-300.0, le=200.0, description="noise density; default -114")]
    ]
    path_loss: NotRequired[Annotated[Literal["exponent", "3gpp-uma"], Field(description="how distances become gains")]]
    path_loss_exponent: NotRequired[Annotated[float, Field(gt=0.0, le=20.0, description="of that law; default 3.76")]]
    seed: NotRequired[Annotated[int, Field(ge=0, le=2**63 - 1, description="seed of policies that draw; default 0")]]
    round: NotRequired[
        Annotated[int, Field(ge=0, le=2**31 - 1, description="number of the round, for those; default 0")]
    ]


class Batch(TypedDict):
    """Rounds that do not depend on one another."""

    __pydantic_config__ = _STRICT  # type: ignore[misc]
    rounds: Annotated[list[Round], Field(min_length=1, description="the rounds, each as POST /api/schedule takes it")]


def parsed(adapter: TypeAdapter[T], body: bytes) -> T:
    """What the body of a request says; FieldError that names the field where it cannot be used."""
    try:
        return adapter.validate_json(body)
    except ValidationError as error:
        first = error.errors(include_url=False, include_context=True)[0]
    is_kind = first["loc"][-1:] in (("int",), ("float",), ("str",))  # of a value that may have several
    location = first["loc"][:-1] if is_kind else first["loc"]
    field = path_of(location)
    if first["type"] == "json_invalid":
        raise FieldError("", f"the body is not JSON: {first['msg']}", 400)
    if first["type"] == "extra_forbidden":
        name = str(location[-1])
        known = _fields_beside(adapter, location)
        raise FieldError(field, f"there is no field {name!r:.80}{did_you_mean(name, known)} Fields: {', '.join(known)}")
    raise FieldError(field, f"{field or 'the body'} {_in_words(first, field)}")


_RULES = {
    "missing": "is missing; give it",
    "too_short": "is empty; give at least 1",
    "float_type": "must be a number",
    "int_type": "must be a whole number",
    "int_from_float": "must be a whole number",
    "string_type": "must be text in quotes",
    "bool_type": "must be true or false",
    "list_type": "must be a list, [...]",
    "dict_type": "must be an object, {{...}}",
    "finite_number": "must be a finite number",
    "greater_than": "must be greater than {gt:g}",
    "greater_than_equal": "must be at least {ge:g}",
    "less_than_equal": "must be at most {le:g}",
    "literal_error": "must be {expected}",
    "string_too_long": "must have at most {max_length} characters",
    "string_too_short": "must have at least {min_length} characters",
}
"""What pydantic calls a mistake, and what it is called here."""
_UNITS = {"_hz": "Hz", "_s": "s", "_bits": "bit", "_m": "m", "_dbm": "dBm", "_db": "dB", "_dbm_per_mhz": "dBm/MHz"}


def _in_words(mistake: ErrorDetails, field: str) -> str:
    """What is wrong with a field, to be read behind its name."""
    kind, given = mistake["type"], mistake.get("input")
    rule = _RULES.get(kind)
    words = f"cannot be used: {mistake['msg']}" if rule is None else rule.format(**mistake.get("ctx", {}))
    if kind == "int_type" and mistake["loc"][-1] == "int":
        words = "must be the name of a device, or its number"
    if kind == "float_type" and mistake["loc"][-1] == "float":
        words = 'must be a share such as 0.05, or a time such as "300ms"'
    if kind in ("missing", "too_short"):
        return words
    return f"{words}; it is {_short(given)}{_without_unit(field, given) if kind == 'float_type' else ''}"


def _without_unit(field: str, given: Any) -> str:
    """What to write for a text with a unit, such as "10MHz", where a number is wanted."""
    unit, quantity = next((unit for end, unit in _UNITS.items() if field.endswith(end)), ""), quantity_of(field)
    if quantity is None or not isinstance(given, str):
        return ""
    try:
        return f", so write {parse(given, quantity):.12g}, a number in {unit}"
    except ValueError:
        return f"; write a number in {unit}, without the unit"


def _short(value: Any) -> str:
    return f"{value!r:.60}" if isinstance(value, str | int | float | bool | None) else type(value).__name__


def _fields_beside(adapter: TypeAdapter[Any], location: tuple[int | str, ...]) -> list[str]:
    """The fields that there are where an unknown one was given."""
    schema: Mapping[str, Any] = schema_of(adapter)
    for step in location[:-1]:
        schema = schema["items"] if isinstance(step, int) else schema["properties"][step]
    return list(schema["properties"])


def schema_of(adapter: TypeAdapter[Any]) -> dict[str, Any]:
    """The JSON schema of what an adapter reads, without references."""
    whole = adapter.json_schema()
    definitions = whole.pop("$defs", {})

    def inlined(part: Any) -> Any:
        if isinstance(part, dict):
            if "$ref" in part:
                return inlined(definitions[part["$ref"].rpartition("/")[2]])
            return {key: inlined(value) for key, value in part.items()}
        return [inlined(each) for each in part] if isinstance(part, list) else part

    found: dict[str, Any] = inlined(whole)
    return found
