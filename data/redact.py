"""URLs without their secrets: what may be kept in a recipe, a tracker or a message."""

from __future__ import annotations

import re
from collections.abc import Mapping

_USER = re.compile(r"(?<=://)[^/@\s'\"]*:[^/@\s'\"]*@|(?<=http://)[^/@\s'\"]+@|(?<=https://)[^/@\s'\"]+@")
_SECRET = re.compile(
    r"([?&](?:x-(?:amz|goog|oss|cos)-[\w-]+|[\w.-]*(?:sig|token|secret|passw|credential|auth|key)[\w.-]*"
    r"|googleaccessid|policy|expires|se|sp|sv|sr|st|spr|sdd|sip)=)(?:(?!::)[^&#\s'\"])+",
    re.IGNORECASE,
)
"""Names that the signed URLs of S3, Google, Azure, Alibaba and Tencent give to what signs them, and names of secrets."""
HIDDEN = "***"


def redacted(text: str) -> str:
    """A text, or a URL, in which ``user:password@`` of every URL and the values that sign a query are ``***``."""
    return _SECRET.sub(rf"\1{HIDDEN}", _USER.sub(f"{HIDDEN}@", text)) if "://" in text else text


def public(values: Mapping[str, object]) -> dict[str, str]:
    """The same names with redacted texts."""
    return {name: redacted(str(value)) for name, value in values.items()}
