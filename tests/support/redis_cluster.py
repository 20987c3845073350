"""A Redis Cluster on loopback: three masters with a replica each, whose servers a test may kill or stop.

Clients and replicas log in with a password, so that other users of the machine read no rows. The bus between the
servers has no login: whoever joins by it gets no rows without the password. With TLS its servers also show each other
their certificates.
"""

import secrets
import signal
import subprocess
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple, Self

import redis

from stream.local.server import LOOPBACK, end_process, find_redis, free_port, spawn
from tests.support.environment import write_secret

MASTERS = 3
_NODE_TIMEOUT_MS = 700
_SLOTS = 16_384


class Certificates(NamedTuple):
    """Files of servers that speak TLS only, also among themselves."""

    authority: Path
    certificate: Path
    key: Path


class Node:
    """One server of the cluster."""

    def __init__(self, folder: Path, binary: str, password: str, files: Certificates | None = None) -> None:
        self.folder, self._binary, self._password, self._files = folder, binary, password, files
        folder.mkdir(mode=0o700, parents=True)
        self.begin()

    def begin(self) -> None:
        """Start the server on ports that are free now."""
        self.port, self._bus = free_port(), free_port()
        encrypted = {} if self._files is None else {"ssl": True, "ssl_ca_certs": str(self._files.authority)}
        self.client = redis.Redis(LOOPBACK, self.port, password=self._password, **encrypted)
        settings = {
            "bind": LOOPBACK,
            "requirepass": self._password,
            "masterauth": self._password,
            **self._ports(),
            "cluster-port": self._bus,
            "dir": self.folder,
            "cluster-enabled": "yes",
            "cluster-node-timeout": _NODE_TIMEOUT_MS,
            "cluster-replica-validity-factor": 0,
            "repl-diskless-sync-delay": 0,
            "appendonly": "yes",
            "appendfsync": "always",
            "maxmemory-policy": "noeviction",
            "save": "",
        }
        lines = "".join(f'{name} "{value}"\n' for name, value in settings.items())
        file = write_secret(self.folder / "redis.conf", lines)  # a command line is for everybody to read
        self.process: subprocess.Popen[bytes] = spawn([self._binary, str(file)], self.folder / "log")

    def _ports(self) -> dict[str, object]:
        if self._files is None:
            return {"port": self.port}
        both = {"tls-cluster": "yes", "tls-replication": "yes", "tls-auth-clients": "no"}
        files = {
            "tls-ca-cert-file": self._files.authority,
            "tls-cert-file": self._files.certificate,
            "tls-key-file": self._files.key,
        }
        return {"port": 0, "tls-port": self.port, **both, **files}

    def answers(self) -> bool:
        """Whether the server answers."""
        with suppress(redis.RedisError):
            return bool(self.client.ping())
        return False


class LocalCluster:
    """Three masters, each with a third of the hash slots and a replica. With ``files``, all of them speak TLS only."""

    def __init__(self, folder: Path, binary: str | None = None, files: Certificates | None = None) -> None:
        self._scheme, self._password = "redis" if files is None else "rediss", secrets.token_hex(16)
        server = binary or find_redis()
        self.nodes = [Node(folder / str(number), server, self._password, files) for number in range(2 * MASTERS)]
        self._password_file = write_secret(folder / "password", self._password)

    def __enter__(self) -> Self:
        try:
            self._join()
        except BaseException:
            self.stop()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    @property
    def one_node(self) -> dict[str, Any]:
        """Settings of a client that knows one node and no cluster."""
        url = f"{self._scheme}://{LOOPBACK}:{self.nodes[0].port}/0"
        return {"redis.url": url, "redis.password_file": str(self._password_file)}

    @property
    def settings(self) -> dict[str, Any]:
        """Settings of a client that may do everything."""
        return self.one_node | {"redis.cluster": [f"{LOOPBACK}:{node.port}" for node in self.nodes[1:]]}

    def stop(self) -> None:
        """End every server."""
        for node in self.nodes:
            node.process.send_signal(signal.SIGCONT)
            node.process.kill()
        for node in self.nodes:
            end_process(node.process, 10)
            node.client.close()

    def grant(self, user: str, password: str, *rights: str) -> None:
        """Let ``user`` log in to every node that answers, with ``rights``."""
        for node in self.nodes:
            if node.answers():
                node.client.execute_command("ACL SETUSER", user, "reset", "on", f">{password}", *rights)

    def master_of(self, key: str) -> Node:
        """The server that holds ``key`` now."""
        slot = next(node for node in self.nodes if node.answers()).client.execute_command("CLUSTER KEYSLOT", key)
        for node in self.nodes:
            if not node.answers() or node.client.execute_command("ROLE")[0] != b"master":
                continue
            mine = node.client.execute_command("CLUSTER MYID").decode()
            for first, last, master, *_ in node.client.execute_command("CLUSTER SLOTS"):
                if first <= slot <= last and master[2].decode() == mine:
                    return node
        raise AssertionError(f"no master holds {key}")

    def move(self, key: str, pause: float) -> None:
        """Move the hash slot of ``key`` to another master, key by key, with ``pause`` seconds after each: as operators
        rebalance."""
        source = self.master_of(key)
        masters = [node for node in self.nodes if node.client.execute_command("ROLE")[0] == b"master"]
        target = next(node for node in masters if node is not source)
        slot = source.client.execute_command("CLUSTER KEYSLOT", key)
        of_source, of_target = (node.client.execute_command("CLUSTER MYID") for node in (source, target))
        target.client.execute_command("CLUSTER SETSLOT", slot, "IMPORTING", of_source)
        source.client.execute_command("CLUSTER SETSLOT", slot, "MIGRATING", of_target)
        login = "AUTH", self._password
        while keys := source.client.execute_command("CLUSTER GETKEYSINSLOT", slot, 1):
            source.client.execute_command("MIGRATE", LOOPBACK, target.port, "", 0, 5_000, *login, "KEYS", *keys)
            time.sleep(pause)
        for node in (target, source):
            node.client.execute_command("CLUSTER SETSLOT", slot, "NODE", of_target)
        until(lambda: self.master_of(key) is target, "every server knows who has the slot")

    def replicated(self, master: Node) -> None:
        """Wait until the replica of ``master`` has stored all that it was sent."""
        until(lambda: master.client.execute_command("WAIT", 1, 1000) == 1, "a replica has what its master has")

    def _join(self) -> None:
        masters, replicas = self.nodes[:MASTERS], self.nodes[MASTERS:]
        until(lambda: all(list(map(_began, self.nodes))), "the servers start")
        for number, node in enumerate(masters):
            first, last = _SLOTS * number // MASTERS, _SLOTS * (number + 1) // MASTERS - 1
            node.client.execute_command("CLUSTER ADDSLOTSRANGE", first, last)
            node.client.execute_command("CLUSTER SET-CONFIG-EPOCH", number + 1)
        for node in self.nodes[1:]:
            node.client.execute_command("CLUSTER MEET", LOOPBACK, self.nodes[0].port, self.nodes[0]._bus)
        known = ("CLUSTER NODES",)
        until(lambda: all(len(node.client.execute_command(*known)) == 2 * MASTERS for node in self.nodes), "they meet")
        for master, replica in zip(masters, replicas, strict=True):
            replica.client.execute_command("CLUSTER REPLICATE", master.client.execute_command("CLUSTER MYID"))
        self.wait()

    def wait(self) -> None:
        """Wait until all slots are served and every replica has what its master has."""
        until(lambda: all(map(_sound, self.nodes)), "the cluster is sound")


def _began(node: Node) -> bool:
    """Whether the server answers; one that ended, because another one took its port meanwhile, begins again."""
    if node.process.poll() is not None:
        node.client.close()
        node.begin()
    return node.answers()


def _sound(node: Node) -> bool:
    if not node.answers():
        return False
    state = node.client.execute_command("CLUSTER INFO")
    replication = node.client.info("replication")
    linked = replication["role"] == "master" or replication["master_link_status"] == "up"
    copied = replication["role"] == "slave" or replication["connected_slaves"] == 1
    return state["cluster_state"] == "ok" and linked and copied


def until(holds: Callable[[], bool], what: str, seconds: float = 60.0) -> None:
    """Wait until ``holds``."""
    deadline = time.monotonic() + seconds
    while not holds():
        assert time.monotonic() < deadline, f"not within {seconds:.0f} s: {what}"
        time.sleep(0.05)
