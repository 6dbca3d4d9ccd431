"""Duration: the type of a duration in the YAML, a number of seconds or text such as `30m`."""

from __future__ import annotations

from typing import Annotated

from pydantic import BeforeValidator, Field

from sayso.infra.durations import WITH_UNIT, seconds_of

#: A duration in seconds.
Duration = Annotated[
    float,
    BeforeValidator(
        seconds_of, json_schema_input_type=float | Annotated[str, Field(pattern=WITH_UNIT)]
    ),
]
