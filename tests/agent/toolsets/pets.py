"""A document about pets, and helpers for the OpenAPI tests."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest

from sayso.agent import Tool, ToolExecutionError
from sayso.agent.toolsets.base import runnable_tools
from sayso.agent.toolsets.openapi import OpenApiToolProvider

#: A cyclic document with a path-level parameter, parameters in every place, and the dialect of 3.0.
PETS: dict[str, Any] = {
    "openapi": "3.0.3",
    "info": {"title": "Pets", "version": "1"},
    "paths": {
        "/pets/{id}": {
            "parameters": [
                {"name": "id", "in": "path", "required": True, "schema": {"type": "string"}}
            ],
            "get": {"operationId": "getPet", "summary": "Find one pet."},
            "delete": {"operationId": "deletePet", "summary": "Delete a pet."},
            "put": {
                "summary": "Change a pet.",
                "requestBody": {
                    "required": True,
                    "content": {
                        "application/json": {"schema": {"$ref": "#/components/schemas/Pet"}}
                    },
                },
            },
        },
        "/pets": {
            "get": {
                "operationId": "findPets",
                "parameters": [
                    {
                        "name": "tags",
                        "in": "query",
                        "schema": {"type": "array", "items": {"type": "string"}},
                    },
                    {
                        "name": "ids",
                        "in": "query",
                        "explode": False,
                        "schema": {"type": "array", "items": {}},
                    },
                    {
                        "name": "filter",
                        "in": "query",
                        "style": "deepObject",
                        "schema": {"type": "object"},
                    },
                    {
                        "name": "page[size]",
                        "in": "query",
                        "schema": {"type": "integer", "nullable": True},
                    },
                    {"name": "X-Trace", "in": "header", "schema": {"type": "string"}},
                    {"name": "Authorization", "in": "header", "schema": {"type": "string"}},
                    {"name": "theme", "in": "cookie", "schema": {"type": "string"}},
                ],
            },
            "post": {
                "operationId": "add pet",
                "requestBody": {
                    "content": {
                        "application/x-www-form-urlencoded": {
                            "schema": {"$ref": "#/components/schemas/New"}
                        }
                    }
                },
            },
        },
    },
    "components": {
        "schemas": {
            "Pet": {
                "type": "object",
                "required": ["name", "id"],
                "properties": {
                    "id": {"type": "integer", "readOnly": True},
                    "name": {"type": "string", "example": "Rex"},
                    "age": {
                        "type": "integer",
                        "minimum": 0,
                        "exclusiveMinimum": True,
                        "nullable": True,
                    },
                    "parent": {"$ref": "#/components/schemas/Pet"},
                    "friends": {"type": "array", "items": {"$ref": "#/components/schemas/Pet"}},
                },
            },
            "New": {
                "type": "object",
                "properties": {"name": {"type": "string"}, "tame": {"type": "boolean"}},
            },
        }
    },
}


def provider(
    tmp_path: Path, api: Any = None, document: Any = None, **options: Any
) -> OpenApiToolProvider:
    """Return a provider of a document in a file, whose calls go to the test's server."""
    file = tmp_path / "pets.json"
    file.write_text(json.dumps(document or PETS))
    return OpenApiToolProvider(
        file, **{"base_url": api.url if api else "https://pets.example.com", **options}
    )


def tools_of(pets: OpenApiToolProvider, **options: Any) -> dict[str, Tool]:
    """Return the tools that an agent can run by name."""
    return {
        tool.name: tool for tool in runnable_tools(pets, asyncio.run(pets.list_tools()), **options)
    }


def call(pets: OpenApiToolProvider, tool: str, /, **parameters: Any) -> Any:
    """Return the result of a call."""
    return asyncio.run(tools_of(pets)[tool].ainvoke(parameters))


def refusal(pets: OpenApiToolProvider, tool: str, /, **parameters: Any) -> str:
    """Return the error of a failing call."""
    with pytest.raises(ToolExecutionError) as caught:
        call(pets, tool, **parameters)
    return str(caught.value)


def with_operation(path: str, method: str, **changes: Any) -> dict[str, Any]:
    """Return the document with one operation changed."""
    document: dict[str, Any] = json.loads(json.dumps(PETS))
    document["paths"][path][method].update(changes)
    return document
