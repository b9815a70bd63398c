"""Every way in which AWS says no, by what should be done next."""

from __future__ import annotations

import pytest

from surefoot.errors import (
    AuthError,
    CapacityError,
    ConfigError,
    QuotaError,
    RetryLaterError,
    SurefootError,
    ThrottledError,
)
from surefoot.providers.aws.errors import DOCTOR, Meaning, error_for, meaning_of, translate

TABLE = {
    "InsufficientInstanceCapacity": (Meaning.SHORTAGE, CapacityError),
    "UnfulfillableCapacity": (Meaning.SHORTAGE, CapacityError),
    "InsufficientHostCapacity": (Meaning.SHORTAGE, CapacityError),
    "SpotMaxPriceTooLow": (Meaning.PRICE, CapacityError),
    "MaxSpotInstanceCountExceeded": (Meaning.QUOTA, QuotaError),
    "VcpuLimitExceeded": (Meaning.QUOTA, QuotaError),
    "InstanceLimitExceeded": (Meaning.QUOTA, QuotaError),
    "Unsupported": (Meaning.NEVER_HERE, CapacityError),
    "RequestLimitExceeded": (Meaning.THROTTLED, ThrottledError),
    "AuthFailure": (Meaning.AUTH, AuthError),
    "UnauthorizedOperation": (Meaning.AUTH, AuthError),
    "ExpiredToken": (Meaning.AUTH, AuthError),
    "InvalidAMIID.NotFound": (Meaning.CONFIG, ConfigError),
    "InvalidKeyPair.NotFound": (Meaning.CONFIG, ConfigError),
    "InternalError": (Meaning.LATER, RetryLaterError),
    "ZonesAreOutToLunch": (Meaning.UNKNOWN, CapacityError),
}


@pytest.mark.parametrize("code", TABLE)
def test_each_code_has_its_meaning_and_its_error(code: str) -> None:
    meaning, kind = TABLE[code]
    error = error_for(code, "said AWS", what="launch")
    assert meaning_of(code) is meaning
    assert type(error) is kind
    assert code in str(error) and "said AWS" in str(error) and str(error).startswith("launch: ")


def test_what_only_the_user_can_mend_names_the_command_that_looks_into_it() -> None:
    for code, (_, kind) in TABLE.items():
        if kind in (QuotaError, AuthError, ConfigError):
            assert DOCTOR in error_for(code, "", what="launch").hint


def test_an_unknown_code_of_a_broken_server_may_have_launched_all_the_same() -> None:
    assert isinstance(error_for("Oops", "", what="launch", status=503), RetryLaterError)


def test_shortage_is_shortage_though_aws_sends_it_as_a_server_error() -> None:
    error = error_for("InsufficientInstanceCapacity", "", what="launch", status=500)
    assert type(error) is CapacityError


def test_boto_errors_without_a_code_are_translated_too() -> None:
    exceptions = pytest.importorskip("botocore.exceptions")
    found: dict[type[SurefootError], list[Exception]] = {
        AuthError: [
            exceptions.NoCredentialsError(),
            exceptions.ProfileNotFound(profile="p"),
            exceptions.CredentialRetrievalError(provider="p", error_msg="m"),
        ],
        RetryLaterError: [
            exceptions.EndpointConnectionError(endpoint_url="u"),
            exceptions.ReadTimeoutError(endpoint_url="u"),
            exceptions.ConnectionClosedError(endpoint_url="u"),
        ],
        ConfigError: [exceptions.ParamValidationError(report="r")],
    }
    for kind, errors in found.items():
        for error in errors:
            assert type(translate(error, "launch")) is kind, error


def test_a_bug_of_our_own_is_not_dressed_up() -> None:
    pytest.importorskip("botocore")
    error = KeyError("x")
    assert translate(error, "launch") is error
