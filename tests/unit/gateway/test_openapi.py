from __future__ import annotations

import re

from supervisor.gateway.openapi import _REQUIRED
from tests.fakes.gateway import running_gateway
from tests.fakes.played_engine import PlayedEngine, whole


async def test_the_document_says_what_is_mounted() -> None:
    """Every route and method stands there and nothing else, each with its parameters and a sentence."""
    async with running_gateway(PlayedEngine(whole(b"{}"))) as gateway:
        async with gateway.client.get("/openapi.json") as answer:
            document = await answer.json()
        mounted = {
            (route.resource.canonical, method)
            for route in gateway.app.router.routes()
            if route.resource is not None and route.method != "HEAD"
            for method in (
                ("get", "post", "put", "patch", "delete") if route.method == "*" else (route.method.lower(),)
            )
        }
    told = {(path, method) for path, methods in document["paths"].items() for method in methods}
    assert told == mounted
    assert document["openapi"] == "3.1.0"
    operations = [(path, operation) for path, methods in document["paths"].items() for operation in methods.values()]
    assert len({operation["operationId"] for _, operation in operations}) == len(operations)
    for path, operation in operations:
        assert operation["summary"], path
        assert [given["name"] for given in operation.get("parameters", [])] == re.findall(r"\{(\w+)\}", path)
        reference = operation["responses"]["default"]["content"]["application/json"]["schema"]["$ref"]
        assert reference.rpartition("/")[2] in document["components"]["schemas"]


async def test_the_required_fields_are_required() -> None:
    """A body without one of the fields that the document requires is refused, and nothing starts."""
    async with running_gateway(PlayedEngine(whole(b"{}"))) as gateway:
        for path, required in _REQUIRED.items():
            for missing in required:
                body = {key: "demo" if key == "model" else ["x"] for key in required if key != missing}
                async with gateway.client.post(path, json=body) as answer:
                    assert answer.status == 400, (path, missing)
        assert not gateway.broker.leases
