"""Posts the summary of an experiment to a URL, in the format that Slack reads."""

import http.client
import json
import re
import urllib.error
import urllib.parse
import urllib.request
from typing import Any

from iotwin.common.errors import UsageError

_TIMEOUT_S = 10.0
_PRINTED = re.compile(r"[!-~]+")  # ASCII without spaces and control characters
_FAILED_COLOUR = "#fa0000"


def check_url(url: str) -> str:
    """Return `url`. Raises UsageError unless it is an address of http or https."""
    try:
        parts = urllib.parse.urlsplit(url)
        valid = parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0 and _PRINTED.fullmatch(url)
    except ValueError:  # a bad port or IPv6 address
        valid = False
    if not valid:
        raise UsageError(f"--webhook {url!r}: it must be an address such as https://hooks.example.org/x")
    return url


def message(title: str, text: str, duration: str, failed: bool, notify: tuple[str, ...]) -> dict[str, Any]:
    """Return the message for an experiment that succeeded or failed. `notify`: users whom the message mentions if it failed."""
    value = f"_Duration: {duration}_\n\n{text}"
    if failed and notify:
        value += f"\nATTN: {', '.join(f'<@{name}>' for name in notify)}"
    kind = {"title": "Failed benchmarks", "color": _FAILED_COLOUR} if failed else {"title": "Successful benchmarks"}
    return {
        "text": "*Dashboard Results*",
        "attachments": [{**kind, "fields": [{"title": title, "value": value, "short": False}]}],
    }


def post(url: str, body: dict[str, Any]) -> str | None:
    """Post `body` as JSON to `url`. Return None, or the reason why the message was not delivered."""
    request = urllib.request.Request(url, json.dumps(body).encode(), {"Content-Type": "application/json"})  # noqa: S310 - checked
    try:
        with urllib.request.urlopen(request, timeout=_TIMEOUT_S) as response:  # noqa: S310 - checked by check_url
            response.read(1 << 16)
    except urllib.error.HTTPError as error:
        return f"it answered {error.code} {error.reason}"
    except http.client.HTTPException as error:
        return f"it does not answer as a web server does: {type(error).__name__}"
    except (OSError, ValueError) as error:
        return str(getattr(error, "reason", error))
    return None
