"""Which of our errors each of AWS's error codes is, by what should be done next."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from enum import Enum
from typing import Any

from surefoot.errors import (
    AuthError,
    CapacityError,
    ConfigError,
    QuotaError,
    RetryLaterError,
    SurefootError,
    ThrottledError,
)

DOCTOR = "surefoot doctor aws JOB.yaml"


class Meaning(Enum):
    """What an error code says."""

    SHORTAGE = "no capacity there now"
    PRICE = "the market is above the maximum price"
    NEVER_HERE = "not sold there"
    QUOTA = "the account's quota does not allow it"
    THROTTLED = "too many requests"
    AUTH = "credentials or permissions are not enough"
    CONFIG = "a setting is wrong"
    LATER = "AWS could not answer"
    UNKNOWN = "an error that is not known here"


CODES: dict[str, Meaning] = {
    **dict.fromkeys(
        (
            "InsufficientInstanceCapacity",
            "InsufficientHostCapacity",
            "InsufficientReservedInstanceCapacity",
            "InsufficientCapacity",
            "InsufficientCapacityOnHost",
            "UnfulfillableCapacity",
            "InsufficientFreeAddressesInSubnet",
            "Server.InsufficientInstanceCapacity",
        ),
        Meaning.SHORTAGE,
    ),
    "SpotMaxPriceTooLow": Meaning.PRICE,
    **dict.fromkeys(
        ("Unsupported", "UnsupportedOperation", "UnsupportedHostConfiguration"),
        Meaning.NEVER_HERE,
    ),
    **dict.fromkeys(
        (
            "MaxSpotInstanceCountExceeded",
            "MaxSpotFleetRequestCountExceeded",
            "SpotInstanceCountLimitExceeded",
            "VcpuLimitExceeded",
            "InstanceLimitExceeded",
            "VolumeLimitExceeded",
            "MaxIOPSLimitExceeded",
            "SecurityGroupLimitExceeded",
            "NetworkInterfaceLimitExceeded",
        ),
        Meaning.QUOTA,
    ),
    **dict.fromkeys(
        (
            "RequestLimitExceeded",
            "RequestThrottled",
            "RequestThrottledException",
            "Throttling",
            "ThrottlingException",
            "ThrottledException",
            "TooManyRequestsException",
            "EC2ThrottledException",
            "SlowDown",
            "ResourceCountExceeded",
        ),
        Meaning.THROTTLED,
    ),
    **dict.fromkeys(
        (
            "AuthFailure",
            "AuthFailure.ServiceLinkedRoleCreationNotPermitted",
            "UnauthorizedOperation",
            "AccessDenied",
            "AccessDeniedException",
            "InvalidClientTokenId",
            "UnrecognizedClientException",
            "SignatureDoesNotMatch",
            "IncompleteSignature",
            "MissingAuthenticationToken",
            "ExpiredToken",
            "ExpiredTokenException",
            "RequestExpired",
            "OptInRequired",
            "PendingVerification",
            "Blocked",
        ),
        Meaning.AUTH,
    ),
    **dict.fromkeys(
        (
            "InternalError",
            "InternalFailure",
            "InternalServerError",
            "ServerInternal",
            "ServiceUnavailable",
            "ServiceUnavailableException",
            "Unavailable",
            "RequestTimeout",
            "RequestTimeoutException",
        ),
        Meaning.LATER,
    ),
    **dict.fromkeys(
        (
            "MissingParameter",
            "UnknownParameter",
            "ValidationError",
            "ParameterNotFound",
            "OperationNotPermitted",
            "InvalidBlockDeviceMapping",
            "InvalidUserData.Malformed",
            "MissingInput",
        ),
        Meaning.CONFIG,
    ),
}
"""Codes of the EC2, Pricing, SSM and STS APIs; `Invalid...` codes are CONFIG beside these."""


def meaning_of(code: str, *, status: int = 400) -> Meaning:
    """Return what an error code means; `status` is the HTTP status it came with."""
    if code in CODES:
        return CODES[code]
    if code.startswith("Invalid"):
        return Meaning.CONFIG
    return Meaning.LATER if status >= 500 else Meaning.UNKNOWN


def error_for(code: str, message: str, *, what: str, status: int = 400) -> SurefootError:
    """Return the error to raise for an error code that AWS gave when `what` was asked."""
    meaning = meaning_of(code, status=status)
    text = f"{what}: {meaning.value} ({code}: {message})"
    match meaning:
        case Meaning.SHORTAGE | Meaning.PRICE | Meaning.NEVER_HERE | Meaning.UNKNOWN:
            return CapacityError(text)
        case Meaning.QUOTA:
            return QuotaError(text, hint=f"ask AWS for a higher quota; see yours: {DOCTOR}")
        case Meaning.THROTTLED:
            return ThrottledError(text)
        case Meaning.AUTH:
            return AuthError(text, hint=f"see what is missing: {DOCTOR}")
        case Meaning.CONFIG:
            return ConfigError(text, hint=f"check the section `aws:` of the job file: {DOCTOR}")
        case Meaning.LATER:
            return RetryLaterError(text)


def code_of(error: BaseException) -> str:
    """Return the code of an error answer of AWS; "" for any other exception."""
    answer = getattr(error, "response", None)
    return str(answer.get("Error", {}).get("Code", "")) if isinstance(answer, dict) else ""


def translate(error: Exception, what: str) -> Exception:
    """Return our error for one of botocore's; any other exception comes back as it is."""
    from botocore import exceptions

    if isinstance(error, exceptions.ClientError):
        answer: dict[str, Any] = error.response
        status = int(answer.get("ResponseMetadata", {}).get("HTTPStatusCode", 400))
        message = str(answer.get("Error", {}).get("Message", ""))
        return error_for(code_of(error), message, what=what, status=status)
    refused = (
        exceptions.NoCredentialsError,
        exceptions.PartialCredentialsError,
        exceptions.CredentialRetrievalError,
        exceptions.NoAuthTokenError,
        exceptions.TokenRetrievalError,
        exceptions.SSOError,
        exceptions.ProfileNotFound,
    )
    if isinstance(error, refused):
        return AuthError(f"{what}: {error}", hint="log in (aws configure, or aws sso login)")
    if isinstance(error, exceptions.ParamValidationError | exceptions.NoRegionError):
        return ConfigError(f"{what}: {error}")
    if isinstance(error, exceptions.BotoCoreError):
        return RetryLaterError(f"{what}: {error}")
    return error


@contextmanager
def asking(what: str) -> Iterator[None]:
    """Raise our errors instead of botocore's within a block that asks AWS for `what`."""
    try:
        yield
    except Exception as error:
        found = translate(error, what)
        if found is error:
            raise
        raise found from error
