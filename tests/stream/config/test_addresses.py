"""Every address is shown without its credentials, in messages, logs and tables."""

from __future__ import annotations

import pytest

from stream.config.servers import redacted


@pytest.mark.parametrize(
    ("address", "shown"),
    [
        ("redis://127.0.0.1:6379/0", "redis://127.0.0.1:6379/0"),
        ("redis://me:s3cret@127.0.0.1:9/0", "redis://***@127.0.0.1:9/0"),
        ("redis://:s3/cr?et@host/0", "redis://***@host/0"),
        ("unix:///run/redis.sock?db=0&password=s3cret", "unix:///run/redis.sock?db=***&password=***"),
        ("https://me:s3cret@example.org/feed?key=s3cret&agency=7", "https://***@example.org/feed?key=***&agency=***"),
        ("https://example.org/feed?s3cret", "https://example.org/feed?***"),
        ("https://example.org/feed?s3cret&agency=7", "https://example.org/feed?***&agency=***"),
        ("rediss://me:s3cret@host:port/0", "rediss://***@host:port/0"),
        ("cannot read http://me:s3cret@host/x?key=s3cret now", "cannot read http://***@host/x?key=*** now"),
    ],
)
def test_neither_user_nor_password_nor_the_value_of_a_key_is_shown(address: str, shown: str) -> None:
    assert redacted(address) == shown
    assert "s3cret" not in redacted(address)
