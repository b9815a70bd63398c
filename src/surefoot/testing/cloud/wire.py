"""What AWS's APIs look like on the wire, as far as the fake answers by itself: XML and JSON."""

from __future__ import annotations

import json
import re
import uuid
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from urllib.parse import parse_qsl
from xml.sax.saxutils import escape

XML = "text/xml;charset=UTF-8"
JSON = "application/x-amz-json-1.1"
NAMESPACE = "http://ec2.amazonaws.com/doc/2016-11-15/"
_REGION = re.compile(r"Credential=[^/]+/\d+/([a-z0-9-]+)/([a-z0-9-]+)/")


@dataclass(frozen=True, slots=True)
class Asked:
    """One request: the API action, its parameters, where it was addressed to."""

    action: str
    region: str
    fields: Mapping[str, str]
    text: str

    def values(self, prefix: str) -> list[str]:
        """Return the values of a numbered list, e.g. `InstanceId.1`, `InstanceId.2`."""
        found: list[str] = []
        while f"{prefix}.{len(found) + 1}" in self.fields:
            found.append(self.fields[f"{prefix}.{len(found) + 1}"])
        return found

    def filters(self) -> dict[str, list[str]]:
        """Return the request's filters by name."""
        found: dict[str, list[str]] = {}
        number = 1
        while f"Filter.{number}.Name" in self.fields:
            name = self.fields[f"Filter.{number}.Name"]
            found[name] = self.values(f"Filter.{number}.Value")
            number += 1
        return found


@dataclass(frozen=True, slots=True)
class Reply:
    """One answer. `torn`: the connection ends in the middle of it."""

    status: int
    body: bytes
    kind: str = XML
    torn: bool = False


def read(environ: Mapping[str, object], body: bytes) -> Asked:
    """Return the request in a WSGI environment and its body."""
    text = body.decode("utf-8", "replace")
    target = str(environ.get("HTTP_X_AMZ_TARGET", ""))
    where = _REGION.search(str(environ.get("HTTP_AUTHORIZATION", "")))
    region = where[1] if where else ""
    if target:
        return Asked(target.rpartition(".")[2], region, {}, text)
    fields = dict(parse_qsl(text, keep_blank_values=True))
    return Asked(fields.get("Action", ""), region, fields, text)


def refusal(code: str, message: str, status: int) -> Reply:
    """Return an error as EC2 words it."""
    text = (
        f"<Response><Errors><Error><Code>{code}</Code><Message>{escape(message)}</Message>"
        f"</Error></Errors><RequestID>{uuid.uuid4()}</RequestID></Response>"
    )
    return Reply(status, text.encode())


def answer(action: str, inner: str) -> Reply:
    """Return a success of EC2."""
    text = (
        f'<{action}Response xmlns="{NAMESPACE}"><requestId>{uuid.uuid4()}</requestId>'
        f"{inner}</{action}Response>"
    )
    return Reply(200, text.encode())


def items(name: str, rows: Iterable[Mapping[str, object]]) -> str:
    """Return a list of records as EC2 writes it."""
    parts = ["<item>" + "".join(_tag(k, v) for k, v in row.items()) + "</item>" for row in rows]
    return f"<{name}>{''.join(parts)}</{name}>"


def json_answer(value: object) -> Reply:
    """Return a success of one of the JSON APIs."""
    return Reply(200, json.dumps(value).encode(), JSON)


def price_list(prices: Mapping[str, int]) -> Reply:
    """Return an answer of the Pricing API's GetProducts; micro-dollars per hour by type."""
    products = [
        json.dumps(
            {
                "product": {"attributes": {"instanceType": name}},
                "terms": {
                    "OnDemand": {
                        "offer": {
                            "priceDimensions": {
                                "rate": {
                                    "unit": "Hrs",
                                    "pricePerUnit": {"USD": f"{price / 1e6:.10f}"},
                                }
                            }
                        }
                    }
                },
            }
        )
        for name, price in prices.items()
    ]
    return json_answer({"FormatVersion": "aws_v1", "PriceList": products})


def _tag(name: str, value: object) -> str:
    inner = value if isinstance(value, Markup) else escape(str(value))
    return f"<{name}>{inner}</{name}>"


class Markup(str):
    """Text that is XML already."""

    __slots__ = ()
