"""The user key is secret and single; pseudonyms depend on it and on nothing else."""

import multiprocessing
import sys

import pytest

from stream.ingestion.pseudonyms import Pseudonyms, UserKeyError, key_fingerprint, load_user_key


def test_the_key_file_is_made_once_and_readable_by_its_owner_only(tmp_path):
    path = tmp_path / "var" / "user.key"
    key = load_user_key(path)
    assert len(key) == 32
    assert path.stat().st_mode & 0o777 == 0o600
    assert load_user_key(path) == key
    assert [entry.name for entry in path.parent.iterdir()] == ["user.key"]


@pytest.mark.parametrize("size", [0, 31, 33])
def test_a_key_of_the_wrong_length_is_refused(tmp_path, size):
    path = tmp_path / "user.key"
    path.write_bytes(bytes(size))
    path.chmod(0o600)
    with pytest.raises(UserKeyError, match="instead of 32"):
        load_user_key(path)


def test_processes_that_start_together_share_one_key(tmp_path):
    context = multiprocessing.get_context("fork")
    with context.Pool(8) as pool:
        keys = pool.map(load_user_key, [tmp_path / "user.key"] * 32, chunksize=1)
    assert len(set(keys)) == 1


def test_pseudonyms_depend_on_the_key_and_outlive_the_cache():
    key, other = b"a" * 32, b"b" * 32
    small, large = Pseudonyms(key, capacity=150), Pseudonyms(key)
    users = [f"bus-{i % 7}" for i in range(50)]
    assert [small[user] for user in users] == [large[user] for user in users]
    assert len(small) <= 2
    assert Pseudonyms(other)["bus-1"] != large["bus-1"]
    assert key_fingerprint(key) != key_fingerprint(other)


@pytest.mark.parametrize("user", ["bus-{:04}", "{:04}" + "😀" * 63], ids=["short", "long"])
def test_memory_of_pseudonyms_is_bounded_however_long_identifiers_are(user):
    """Python takes four bytes for each character of an identifier with one emoji."""
    pseudonyms, capacity = Pseudonyms(bytes(32), capacity=64_000), 64_000
    sizes = []
    for number in range(3_000):
        _ = pseudonyms[user.format(number)]
        sizes.append(sum(map(sys.getsizeof, pseudonyms)) if number % 97 == 0 else 0)
    assert capacity / 2 < max(sizes) <= capacity


@pytest.mark.parametrize("user", ["", "x" * 257, "é" * 129, "\ud800"])
def test_identifiers_without_a_pseudonym_raise(user):
    with pytest.raises(KeyError):
        Pseudonyms(bytes(32))[user]
