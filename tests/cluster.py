"""A real cluster on loopback whose replicas can be held back: three `nats-server`s, their routes through our proxy.

    with Cluster() as cluster:
        js = connect(cluster.urls).jetstream()          # a client may know all three, or one: cluster.url("n2")
        ...create a stream "S" with num_replicas=3 and allow_direct...
        cluster.wait_for_direct("S", 3)                 # followers join the Direct Gets on a tick of two seconds
        with cluster.stale("S", followers=1):           # replication to one follower stands still, nothing else does
            ...

Holds should stay below four seconds, or leadership moves (which `depose` waits for). The nodes solicit each other in a
ring and advertise a port where nobody listens, so that none of them finds a way around the proxy.
"""

from __future__ import annotations

import contextlib
import json
import shutil
import signal
import socket
import subprocess
import tempfile
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any, Self

from slipstream import StreamConfig, connect_blocking
from slipstream.errors import ApiError, RequestTimeoutError
from slipstream.jetstream._sync.jetstream import JetStream
from tests.ports import free_port
from tests.routes import RouteProxy
from tests.servers import START_TIMEOUT, real_binary

NODES = ("n1", "n2", "n3")
PAIRS = (("n1", "n2"), ("n2", "n3"), ("n3", "n1"))  # who dials whom
POOL = 3
_LOOK = 0.02

_CONFIG = """
server_name: {name}
listen: "127.0.0.1:{port}"
http: "127.0.0.1:-1"
server_tags: ["{name}"]
jetstream {{ store_dir: "{folder}/store", max_mem: 256MB, max_file: 2GB }}
cluster {{
  name: ring
  listen: "127.0.0.1:-1"
  routes: ["nats://127.0.0.1:{route}"]
  advertise: "127.0.0.1:{dead}"
  no_advertise: true
  pool_size: {pool}
}}
{extra}
"""


class Node:
    """One server of the cluster: where it listens, and its process."""

    def __init__(self, name: str, folder: Path) -> None:
        self.name = name
        self.folder = folder
        self.port = free_port()
        self.url = ""
        self.monitor = ""
        self.process: subprocess.Popen[bytes] | None = None

    def start(self, config: str) -> int:
        """Start it; gives the port where it listens for routes."""
        self.folder.mkdir(exist_ok=True)
        for old in self.folder.glob("*.ports"):
            old.unlink()
        path = self.folder / "server.conf"
        path.write_text(config)
        with (self.folder / "log").open("ab") as log:
            self.process = subprocess.Popen(
                [real_binary(), "-c", str(path), "--ports_file_dir", str(self.folder)], stdout=log, stderr=log
            )
        ports = self._ports(self.process)
        self.url, self.monitor = ports["nats"][0], ports["monitoring"][0]
        return int(ports["cluster"][0].rpartition(":")[2])

    def _ports(self, process: subprocess.Popen[bytes]) -> dict[str, list[str]]:
        deadline = time.monotonic() + START_TIMEOUT
        while time.monotonic() < deadline and process.poll() is None:
            for path in self.folder.glob("*.ports"):
                with contextlib.suppress(ValueError):  # it is still being written
                    found: dict[str, list[str]] = json.loads(path.read_text())
                    return found
            time.sleep(_LOOK)
        raise RuntimeError(f"nats-server {self.name} did not start: {(self.folder / 'log').read_text()[-2000:]}")

    def kill(self) -> None:
        """`kill -9`, if it runs."""
        if self.process is not None:
            self.process.kill()
            self.process.wait(timeout=START_TIMEOUT)
            self.process = None

    def stop(self) -> None:
        """End it in good order, if it runs."""
        if self.process is not None:
            self.process.terminate()
            self.process.wait(timeout=START_TIMEOUT)
            self.process = None

    def ask(self, path: str) -> dict[str, Any]:
        """What the monitoring endpoint says."""
        try:
            with urllib.request.urlopen(f"{self.monitor}/{path}", timeout=5) as answer:
                found: dict[str, Any] = json.load(answer)
        except urllib.error.HTTPError as error:  # a server that is not healthy says so with 503 and a reason
            with error:
                found = json.load(error)
        return found


def wait_until_replicable(js: JetStream) -> None:
    """Until the cluster places streams with three replicas.

    A server that has just started, or was cut off, is no place for replicas until the leader has heard of it, which no
    statistic shows.
    """
    wait_for(partial(_can_replicate, js), "a stream with three replicas", timeout=30)


def _can_replicate(js: JetStream) -> bool:
    try:
        js.create_stream(StreamConfig(name="_whole", subjects=("_whole",), num_replicas=3)).delete()
    except (ApiError, RequestTimeoutError):
        return False
    return True


class Cluster:
    """Three nodes; use it as a context manager."""

    def __init__(self, *, extra: str = "") -> None:
        self.proxy = RouteProxy()
        self._extra = extra
        self._folder = Path(tempfile.mkdtemp(prefix="nats-cluster-"))
        self._dead = socket.socket()  # bound and never listening: its port is refused, and nobody else gets it
        self._dead.bind(("127.0.0.1", 0))
        self._route_ports = {source: self.proxy.listen(source, target) for source, target in PAIRS}
        self.nodes = {name: Node(name, self._folder / name) for name in NODES}

    def __enter__(self) -> Self:
        try:
            for name in NODES:
                self.start(name)
            self.wait_until_whole()
            self._check_routes()
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Kill all nodes and forget their data."""
        for node in self.nodes.values():
            node.kill()
        self.proxy.close()
        self._dead.close()
        shutil.rmtree(self._folder, ignore_errors=True)

    # Nodes

    @property
    def urls(self) -> list[str]:
        """Where clients connect, in the order n1, n2, n3."""
        return [self.nodes[name].url for name in NODES]

    def url(self, name: str) -> str:
        """Where clients of one node connect."""
        return self.nodes[name].url

    def start(self, name: str) -> None:
        """Start a node, for the first time or again: it keeps its data and the port of its clients."""
        node = self.nodes[name]
        config = _CONFIG.format(
            name=name,
            port=node.port,
            folder=node.folder,
            route=self._route_ports[name],
            dead=self._dead.getsockname()[1],
            pool=POOL,
            extra=self._extra,
        )
        self.proxy.reach(name, node.start(config))

    def kill(self, name: str) -> None:
        """`kill -9`."""
        self.nodes[name].kill()

    def stop(self, name: str) -> None:
        """End a node in good order: it writes what it has not yet written."""
        self.nodes[name].stop()

    def freeze(self, name: str) -> None:
        """The process stands still: its connections stay open, and what is sent to it waits."""
        self._signal(name, signal.SIGSTOP)

    def thaw(self, name: str) -> None:
        """It goes on where it was, knowing nothing of the time that passed."""
        self._signal(name, signal.SIGCONT)

    def _signal(self, name: str, number: signal.Signals) -> None:
        process = self.nodes[name].process
        assert process is not None
        process.send_signal(number)

    def others(self, name: str) -> list[str]:
        """The two other nodes."""
        return [each for each in NODES if each != name]

    def expendable(self, leader: str) -> str:
        """A node without which a stream's leader goes on at once: the one that places streams takes seconds to replace,
        and until then nobody answers for any stream."""
        meta = self.meta_leader()
        return next(name for name in self.others(leader) if name != meta)

    def wait_until_whole(self) -> None:
        """Until all nodes have routes to each other and the cluster counts all of them as there."""
        wait_for(self._is_whole, "the cluster to be whole", timeout=60)
        with connect_blocking(self.urls) as nc:
            wait_until_replicable(nc.jetstream())

    def _is_whole(self) -> bool:
        for node in self.nodes.values():
            meta = node.ask("jsz").get("meta_cluster") or {}
            if not meta.get("leader") or meta.get("cluster_size") != len(NODES):
                return False
            peers = meta.get("replicas") or () if meta["leader"] == node.name else ()  # others do not know
            if any(peer.get("offline") or not peer.get("current") for peer in peers):
                return False
            if len(node.ask("routez")["routes"]) < 2 * (POOL + 1) or node.ask("healthz").get("status") != "ok":
                return False
        return True

    def _check_routes(self) -> None:
        """Nobody may have found a way around the proxy."""
        allowed = set(self._route_ports.values())
        for node in self.nodes.values():
            for route in node.ask("routez")["routes"]:
                assert not route["did_solicit"] or route["port"] in allowed, (
                    f"{node.name} has a route of its own: {route}"
                )

    # Streams

    def leader(self, stream: str) -> str:
        """The node that leads the stream, as most nodes see it."""
        seen: list[str] = []

        def look() -> bool:
            seen[:] = [name for name in NODES if self.nodes[name].process and self._leads(name, stream)]
            return len(seen) == 1

        wait_for(look, f"one leader of {stream}")
        return seen[0]

    def meta_leader(self) -> str:
        """The node that places streams."""
        return str(self.nodes[NODES[0]].ask("jsz")["meta_cluster"]["leader"])

    def _leads(self, name: str, stream: str) -> bool:
        detail = self.detail(name, stream)
        return bool(detail) and detail.get("cluster", {}).get("leader") == name

    def last_seq(self, name: str, stream: str) -> int:
        """The last sequence of one node's own copy; -1 if it has none."""
        detail = self.detail(name, stream)
        return int(detail["state"]["last_seq"]) if detail else -1

    def state(self, name: str, stream: str) -> dict[str, Any]:
        """The state of one node's own copy; empty if it has none."""
        found: dict[str, Any] = self.detail(name, stream).get("state", {})
        return found

    def detail(self, name: str, stream: str) -> dict[str, Any]:
        """All that one node tells of its own copy; empty if it has none."""
        answer = self.nodes[name].ask("jsz?streams=1")
        for account in answer.get("account_details") or ():
            for detail in account.get("stream_detail") or ():
                if detail["name"] == stream:
                    found: dict[str, Any] = detail
                    return found
        return {}

    def wait_for_direct(self, stream: str, members: int = len(NODES)) -> None:
        """Until that many nodes answer Direct Gets of the stream, as every node sees it."""
        subject = f"$JS.API.DIRECT.GET.{stream}"

        def is_there() -> bool:
            return all(self._members(name, subject) >= members for name in NODES)

        wait_for(is_there, f"{members} members for Direct Gets of {stream}")

    def _members(self, name: str, subject: str) -> int:
        """How many nodes listen on `subject`: this one, and those it has routes to."""
        found: set[str] = set()
        for route in self.nodes[name].ask("routez?subs=detail")["routes"]:
            if any(sub["subject"] == subject for sub in route.get("subscriptions_list_detail") or ()):
                found.add(route["remote_name"])
        mine = self.nodes[name].ask(f"subsz?subs=1&limit=4096&test={subject}").get("subscriptions_list") or ()
        return len(found) + any(sub["subject"] == subject and sub.get("qgroup") == "_sys_" for sub in mine)

    # Orders

    @contextlib.contextmanager
    def stale(self, stream: str, *, followers: int = 1) -> Iterator[list[str]]:
        """Replication from the leader to some followers stands still; gives their names. All else goes on.

        With two of them no write finds a quorum.
        """
        leader = self.leader(stream)
        behind = self.others(leader)[:followers]
        for name in behind:
            self.hold_replica(leader, name)
        try:
            yield behind
        finally:
            for name in behind:
                self.release_replica(leader, name)

    def hold_replica(self, leader: str, follower: str) -> None:
        """What the leader replicates does not reach the follower."""
        self.proxy.hold(leader, follower)

    def release_replica(self, leader: str, follower: str) -> None:
        """It does again, in order."""
        self.proxy.release(leader, follower)

    @contextlib.contextmanager
    def unreplicated(self, name: str) -> Iterator[None]:
        """A node neither gets nor gives anything of replication and the JetStream API; users' messages pass."""
        ways = [(name, other) for other in self.others(name)] + [(other, name) for other in self.others(name)]
        for way in ways:
            self.proxy.hold(*way)
        try:
            yield
        finally:
            for way in ways:
                self.proxy.release(*way)

    @contextlib.contextmanager
    def isolated(self, name: str) -> Iterator[None]:
        """Nothing passes between a node and the others; its clients stay connected to it."""
        ways = [(name, other) for other in self.others(name)] + [(other, name) for other in self.others(name)]
        for way in ways:
            self.proxy.hold(*way, system_only=False)
        try:
            yield
        finally:
            for way in ways:
                self.proxy.release(*way)

    @contextlib.contextmanager
    def deposed(self, stream: str) -> Iterator[tuple[str, str]]:
        """The leader loses its followers and does not know it: gives it and the leader that follows it."""
        old = self.leader(stream)
        with self.isolated(old):
            yield old, self.wait_for_other_leader(stream, old)

    def wait_for_other_leader(self, stream: str, old: str) -> str:
        """Until one of the other nodes leads the stream."""
        found: list[str] = []

        def look() -> bool:
            found[:] = [name for name in self.others(old) if self._leads(name, stream)]
            return len(found) == 1

        wait_for(look, f"a leader of {stream} beside {old}", timeout=40)
        return found[0]

    def wait_until_level(self, stream: str, seq: int) -> None:
        """Until every node's copy has that sequence."""
        wait_for(lambda: all(self.last_seq(name, stream) >= seq for name in NODES), f"all of {stream} to have {seq}")


def wait_for(ready: Callable[[], bool], what: str, *, timeout: float = 30.0) -> None:
    """Look until it is so; nothing hangs."""
    deadline = time.monotonic() + timeout
    while not ready():
        if time.monotonic() > deadline:
            raise TimeoutError(f"{what}: not within {timeout:g} s")
        time.sleep(_LOOK)
