"""Trials of damage: a store with several kinds of streams, one damage to its file, and all that readers can ask for.

Each trial runs in a forked child on a copy of the file, since damage may end a process. The child compares what it
reads with what was stored, and the parent gets a verdict:

    UNHARMED   every answer is right
    SAID       what is missing is an error for its readers and a problem in the health report; the rest is right
    REFUSED    the store is not opened, with an error in words
    WRONG      a reader got something that is not, or no longer, in the stream
    SILENT     something is missing, and nothing says so
    ABORT      the process ended by a signal
    TRACEBACK  it ended with another exception
"""

from __future__ import annotations

import json
import os
import random
import shutil
import signal
import struct
import traceback
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

from slipstream.errors import CorruptRecordError, StoreError
from slipstream.server.engine.auth.users import User
from slipstream.server.engine.ports import StreamLog
from slipstream.server.store.groups import commit_open_group
from slipstream.server.store.lmdb.pages import PageFile
from slipstream.server.store.lmdb.records import MESSAGE_KEY, is_sound
from slipstream.server.store.lmdb.salvage import salvage
from slipstream.server.store.lmdb.segments import Tuning
from slipstream.server.store.lmdb.store import LmdbStore
from slipstream.wire import Headers, Msg, pub
from tests.server.support import HELLO, Client, Rig, status

PAGE = 4096
PAGE_HEADER = struct.Struct("<QHHHH")  # number, padding, flags, lower, upper
BRANCH, LEAF = 1, 2
TUNING = Tuning(segment=1024, slice=200, dirty=128, journal=512, cache=64, probe=16, page=64)
KINDS = ("bit", "bits", "zero", "junk", "swap", "stale", "moved", "cut", "meta")
USERS = (User(name="one", password="pw"), User(name="two", password="pw", account="TWO"))
STREAMS = ("LOG", "KV_B", "WQ", "TTL", "TWO/LOG")
Truth = dict[str, dict[int, tuple[str, bytes]]]


class Base(NamedTuple):
    """A store that was closed, an older copy of its file, and what is in it."""

    path: Path
    older: bytes
    history: tuple[bytes, ...]  # the file at some earlier times
    newer: bytes
    truth: Truth
    ids: dict[int, str]  # stream id -> name


class Verdict(NamedTuple):
    """How a trial went."""

    kind: str
    verdict: str
    detail: str
    share: float  # of the undamaged messages that are in the salvaged store


def login(rig: Rig, user: str) -> Client:
    return rig.client(HELLO[:-3] + b',"user":"%b","pass":"pw"}\r\n' % user.encode())


def build(path: Path, *, scale: int = 1) -> Base:
    """Make a store in many small groups, so that pages have a history."""
    rng = random.Random(7)
    store = LmdbStore(path, map_size=1 << 28, tuning=TUNING)
    rig = Rig(store=store, users=USERS)
    one, two = login(rig, "one"), login(rig, "two")
    one.create("LOG", storage="file", subjects=["log.*"])
    one.create("KV_B", storage="file", subjects=["$KV.B.>"], max_msgs_per_subject=1, allow_rollup_hdrs=True)
    one.create("WQ", storage="file", subjects=["job.>"], retention="workqueue")
    one.create("TTL", storage="file", subjects=["ttl.>"], allow_msg_ttl=True, max_age=3_600_000_000_000)
    two.create("LOG", storage="file", subjects=["log.*"])
    worker = {"durable_name": "w", "ack_policy": "explicit", "max_ack_pending": -1}
    one.api("CONSUMER.DURABLE.CREATE.WQ.w", {"stream_name": "WQ", "config": worker})
    older = b""
    history: list[bytes] = []
    rounds = 120 * scale
    for turn in range(rounds):
        data = [pub(f"log.{rng.randrange(100)}", b"log %d %b" % (turn, bytes(rng.randrange(80)))) for _ in range(20)]
        data += [pub(f"$KV.B.k{rng.randrange(150)}", b"kv %d %d" % (turn, n)) for n in range(10)]
        data += [pub(f"job.{n % 3}", b"job %d %d" % (turn, n), f"x.{n}") for n in range(4)]
        lived = Headers({"Nats-TTL": "1h"}).encode()
        data += [pub(f"ttl.{n}", b"ttl %d" % turn, "", lived if n else b"") for n in range(2)]
        one.send(b"".join(data))
        two.send(b"".join(pub(f"log.{rng.randrange(20)}", b"two %d %d" % (turn, n)) for n in range(6)))
        if turn % 5 == 4:
            one.take()
            one.send(pub("$JS.API.CONSUMER.MSG.NEXT.WQ.w", b'{"batch":15,"no_wait":true}', f"{one.inbox}p"))
            for message in one.messages():
                if not status(message)[0] and rng.random() < 0.9:
                    one.send(pub(message.reply, b"+ACK"), settle=False)
            rig.settle()
        if turn % 17 == 16:
            one.api("STREAM.MSG.DELETE.LOG", {"seq": rng.randrange(1, 20 * turn)})
        if turn % 10 == 9:
            history.append(image(path))
        if turn == rounds * 2 // 3:
            two.api("STREAM.PURGE.LOG", {"seq": 100})
            older = image(path)
        one.take()
        two.take()
    rig.settle()
    truth: Truth = {}
    for name in STREAMS:
        log = store.log(name)
        truth[name] = {r.seq: (r.subject, r.payload) for r in log.scan("", 0, limit=1_000_000)}
    ids = {store._streams[name].base.sid: name for name in STREAMS}
    store.close()
    newer = image(path)
    (path / "data.mdb").write_bytes(newer)
    return Base(path, older, tuple(history), newer, truth, ids)


def image(path: Path) -> bytes:
    """The file of a store without what LMDB leaves in the unused space of pages: the same in each run.

    LMDB links pages that it may reuse in the same transaction by pointers, which it writes into them (at byte 32). They
    are addresses of this process, and remain in what is written to the file.
    """
    data = bytearray((path / "data.mdb").read_bytes())
    for at in range(2 * PAGE, len(data), PAGE):
        number, _, flags, lower, upper = PAGE_HEADER.unpack_from(data, at)
        # The rest of an overflow page has no header; of a free one, the header says what it was.
        if number == at // PAGE and flags & (BRANCH | LEAF) and PAGE_HEADER.size <= lower <= upper <= PAGE:
            data[at + lower : at + upper] = bytes(upper - lower)
    return bytes(data)


# Damage.


def damage(base: Base, kind: str, rng: random.Random) -> tuple[bytes, str]:
    """The damaged file, and what was done to it."""
    data = bytearray(base.newer)
    pages = len(data) // PAGE
    page = rng.randrange(2, pages)
    at = page * PAGE
    if kind == "bit":
        where = rng.randrange(2 * PAGE, len(data))
        data[where] ^= 1 << rng.randrange(8)
        return bytes(data), f"bit in {where} (page {where // PAGE})"
    if kind == "bits":
        for _ in range(8):
            data[at + rng.randrange(PAGE)] ^= 1 << rng.randrange(8)
    elif kind == "zero":
        data[at : at + PAGE] = bytes(PAGE)
    elif kind == "junk":
        data[at : at + PAGE] = rng.randbytes(PAGE)
    elif kind == "swap":
        other = rng.randrange(2, pages) * PAGE
        data[at : at + PAGE], data[other : other + PAGE] = data[other : other + PAGE], data[at : at + PAGE]
        return bytes(data), f"pages {page} and {other // PAGE}"
    elif kind == "stale":  # a write that never reached the disk
        differing = [
            n for n in range(2, min(pages, len(base.older) // PAGE))
            if base.older[n * PAGE : (n + 1) * PAGE] != base.newer[n * PAGE : (n + 1) * PAGE]
        ]  # fmt: skip
        page = rng.choice(differing)
        data[page * PAGE : (page + 1) * PAGE] = base.older[page * PAGE : (page + 1) * PAGE]
    elif kind == "torn":  # many writes that never reached the disk
        for n in range(2, min(pages, len(base.older) // PAGE)):
            older = base.older[n * PAGE : (n + 1) * PAGE]
            is_lost = rng.random() < 0.15  # drawn for each page: what pages contain must not move the others
            if is_lost and older != base.newer[n * PAGE : (n + 1) * PAGE]:
                data[n * PAGE : (n + 1) * PAGE] = older
    elif kind == "lost":  # the same of messages and their index alone: all records fit the last commit
        share = rng.choice((0.02, 0.1, 0.3))
        with PageFile(base.path / "data.mdb") as file:
            trees = file.trees()
            leaves = [leaf for name in ("messages", "index") for leaf, *_ in file._leaves(trees[name], name)]
            for n in leaves:
                each = slice(n * PAGE, (n + 1) * PAGE)
                before = [older[each] for older in base.history if _is_like(file, older[each], base.newer[each])]
                if before and rng.random() < share:
                    data[each] = rng.choice(before)
    elif kind == "moved":  # an older page, written to the wrong place
        other = rng.randrange(2, len(base.older) // PAGE)
        data[at : at + PAGE] = base.older[other * PAGE : (other + 1) * PAGE]
        return bytes(data), f"page {page} <- older {other}"
    elif kind == "cut":
        del data[rng.randrange(PAGE, len(data)) :]
        return bytes(data), f"cut to {len(data)}"
    else:  # meta
        which = rng.randrange(2) * PAGE
        how = rng.randrange(3)
        if how == 0:
            data[which + rng.randrange(160)] ^= 1 << rng.randrange(8)
        elif how == 1:
            data[which : which + PAGE] = bytes(PAGE)
        else:
            data[which : which + PAGE] = rng.randbytes(PAGE)
        return bytes(data), f"meta {which // PAGE}, {('bit', 'zero', 'junk')[how]}"
    return bytes(data), f"page {page}"


def _is_like(file: PageFile, older: bytes, newer: bytes) -> bool:
    """Whether a leaf is an earlier one of the same table."""
    if len(older) != PAGE or older == newer or older[:8] != newer[:8] or older[10:12] != newer[10:12]:
        return False
    kinds = [
        {(len(key) == MESSAGE_KEY.size, flags) for key, flags, _, _ in file._leaf(page)} for page in (older, newer)
    ]
    return kinds[0] == kinds[1]


def trial(base: Base, kind: str, seed: int, folder: Path) -> Verdict:
    """Damage a copy, and read it in a child."""
    rng = random.Random(seed)
    data, what = damage(base, kind, rng)
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    (folder / "data.mdb").write_bytes(data)
    target = folder.with_name("salvaged")
    shutil.rmtree(target, ignore_errors=True)
    recovered, kept = in_child(recover, folder, target, base)
    verdict, detail = in_child(read_everything, folder, base.truth, seed)
    if recovered not in ("COPIED", "REFUSED"):
        verdict, detail = recovered, f"salvage: {kept}"
    share = float(kept.split()[1]) if recovered == "COPIED" else 0.0
    return Verdict(kind, verdict, f"{kind} {seed}: {what}: {detail}", share)


def undamaged(folder: Path, base: Base) -> dict[str, set[int]]:
    """The messages of the truth that are in some leaf of the file as they were stored."""
    found: dict[str, set[int]] = {name: set() for name in base.truth}
    with PageFile(folder / "data.mdb", lenient=True) as file:
        for key, value in file.strays(is_any=True):
            if len(key) == MESSAGE_KEY.size and is_sound(key, value):
                sid, seq = MESSAGE_KEY.unpack(key)
                if sid in base.ids and seq in base.truth[base.ids[sid]]:
                    found[base.ids[sid]].add(seq)
    return found


def in_child(work: Any, *args: Any) -> tuple[str, str]:
    """The verdict of a function that may end its process."""
    read, write = os.pipe()
    pid = os.fork()
    if not pid:
        os.close(read)
        try:
            signal.alarm(60)
            quiet = os.open(os.devnull, os.O_WRONLY)
            os.dup2(quiet, 2)
            try:
                answer = work(*args)
            except BaseException:
                answer = ("TRACEBACK", traceback.format_exc()[-1500:])
            os.write(write, json.dumps(answer).encode()[:60_000])
        finally:
            os._exit(0)
    os.close(write)
    with os.fdopen(read, "rb") as pipe:
        text = pipe.read()
    _, code = os.waitpid(pid, 0)
    if os.WIFSIGNALED(code):
        return "ABORT", signal.Signals(os.WTERMSIG(code)).name
    verdict, detail = json.loads(text)
    return verdict, detail


# Reading.


class Finding(Exception):  # noqa: N818 - a verdict, not an error
    """WRONG or SILENT."""


def read_everything(folder: Path, truth: Truth, seed: int = 0) -> tuple[str, str]:
    try:
        store = LmdbStore(folder, map_size=1 << 28, tuning=TUNING)
    except StoreError as exc:
        return "REFUSED", str(exc)
    try:
        rig = Rig(store=store, users=USERS, now=1_700_000_100_000_000_000)
        clients = {"": login(rig, "one"), "TWO": login(rig, "two")}
        said: set[str] = set()
        names = [name for name, _ in store.streams()]
        for name, messages in truth.items():
            if name not in names:
                said.add(f"no stream {name}")
                continue
            log = store.log(name)
            if seed % 2:  # before and after the walks, which note what is damaged
                said.update(f"{name} {what}" for what in read_jumbled(log, messages, random.Random(seed)))
            said.update(f"{name} {what}" for what in read_log(log, messages))
            said.update(f"{name} {what}" for what in read_jumbled(log, messages, random.Random(seed)))
            counted = read_counts(log, messages, random.Random(seed), is_said=bool(said))
            said.update(f"{name} {what}" for what in counted)
            account, _, stream = name.rpartition("/")
            said.update(f"{name} {what}" for what in consume(clients[account], stream, messages))
        if set(names) - set(truth):
            raise Finding(f"WRONG: streams {set(names) - set(truth)}")
        health = rig.engine.health()
        if said and health.ok:
            raise Finding(f"SILENT: nothing in the health report: {sorted(said)[:5]}")
        written = still_takes_messages(clients)
        if written:
            said.add(written)
        else:
            for name in set(names) & set(truth):
                said.update(f"{name} {what}" for what in read_without_damaged(store, name, truth[name]))
        store.close()
    except Finding as exc:
        verdict, _, detail = str(exc).partition(": ")
        return verdict, detail
    except StoreError as exc:
        if isinstance(exc, CorruptRecordError):
            raise
        return "REFUSED", str(exc)
    if said:
        return "SAID", f"{health.problems} {sorted(said)[:3]}"
    return "UNHARMED", "; ".join(health.problems)


def read_log(log: StreamLog, truth: dict[int, tuple[str, bytes]]) -> Iterator[str]:
    """Everything that a reader of the store can ask for; yields what was said to be damaged."""
    state = log.committed
    last = max(truth, default=0)
    bad: set[int] = set()
    for seq in range(1, max(last, state.last_seq) + 2):
        try:
            record = log.get(seq)
        except CorruptRecordError:
            bad.add(seq)
            if seq in truth:
                yield f"{seq} is damaged"
            continue
        _compare(seq, record, truth, "get")
    for pattern in (">", "*.*", "log.1*", "$KV.>", "log.7", "job.*"):
        yield from _scan(log, pattern, truth, bad)
    newest: dict[str, int] = {}
    counts: dict[str, int] = {}
    for seq, (subject, _) in truth.items():
        newest[subject] = seq
        counts[subject] = counts.get(subject, 0) + 1
    for subject, seq in newest.items():
        try:
            record = log.last(subject)
        except CorruptRecordError:
            yield f"last of {subject}"
            continue
        if record is None:
            raise Finding(f"SILENT: last of {subject} is {seq}, got nothing")
        if record.seq != seq:
            raise Finding(f"WRONG: last of {subject} is {seq}, got {record.seq}")
        _compare(seq, record, truth, "last")
    try:
        many = log.multi_last([">"], limit=1 << 30)
    except CorruptRecordError:
        yield "multi_last"
    else:
        if many != sorted(newest.values()):
            raise Finding(f"WRONG: multi_last {len(many or ())} of {len(newest)}")
    try:
        listed = dict(log.subjects(">"))
    except CorruptRecordError:
        yield "subjects"
    else:
        if listed != counts:
            raise Finding("WRONG: counts of subjects")
    try:
        total = log.count("", 0)
    except CorruptRecordError:
        yield "count"
    else:
        if total != len(truth):
            raise Finding(f"WRONG: {total} messages of {len(truth)}")


def read_jumbled(log: StreamLog, truth: dict[int, tuple[str, bytes]], rng: random.Random) -> Iterator[str]:
    """Single reads in any order: what one of them looks at must not decide what the next one finds."""
    seqs: dict[str, list[int]] = {}
    for seq, (subject, _) in sorted(truth.items()):
        seqs.setdefault(subject, []).append(seq)
    subjects, last = sorted(seqs), max(truth, default=0)
    for _ in range(400):
        subject, at, kind = rng.choice(subjects), rng.randint(1, last), rng.randrange(5)
        mine = seqs[subject]
        try:
            if kind == 0:
                _compare(at, log.get(at), truth, "get")
                continue
            if kind == 1:
                wanted, found = mine[-1:], [record.seq] if (record := log.last(subject)) is not None else []
            elif kind == 2:
                wanted, found = [s for s in mine if s <= at][-1:], log.multi_last([subject], up_to=at) or []
                for each in found:  # of a lost message it may have the sequence
                    log.get(each)
            elif kind == 3:
                wanted = [s for s in mine if s >= at][:3]
                found = [record.seq for record in log.scan(subject, at, limit=3)]
                if len(found) < len(wanted):  # it may end before damage: then the next one begins with it
                    found += [record.seq for record in log.scan(subject, found[-1] + 1 if found else at, limit=3)]
                    found = found[:3]
            else:
                wanted, found = [s for s in sorted(truth) if s >= at][:5], []
                while len(found) < len(wanted):
                    records = log.scan("", found[-1] + 1 if found else at, limit=5 - len(found))
                    found += [record.seq for record in records]
                    if not records:
                        break
        except CorruptRecordError as exc:
            yield f"{('get', 'last', 'last before', 'scan of', 'scan')[kind]} {subject} {at}: {exc}"
            continue
        if found != wanted:
            verdict = "SILENT" if set(found) < set(wanted) else "WRONG"
            raise Finding(
                f"{verdict}: {('', 'last of', 'last before', 'scan of', 'scan from')[kind]} {subject} {at}:"
                f" {found}, not {wanted}"
            )


def read_counts(
    log: StreamLog, truth: dict[int, tuple[str, bytes]], rng: random.Random, *, is_said: bool
) -> Iterator[str]:
    """Counts of what is left from a sequence on: none is lower than the truth, or a reader ends before it. They may be
    higher if there is damage, which is said."""
    subjects, last = sorted({subject for subject, _ in truth.values()}), max(truth, default=0)
    for _ in range(60):
        pattern = rng.choice(("", "log.1*", "*.*", "$KV.>", "job.*", *rng.sample(subjects, min(3, len(subjects)))))
        at = rng.randint(1, last)
        wanted = sum(1 for seq, (subject, _) in truth.items() if seq >= at and _matches(pattern or ">", subject))
        snapshot = log.snapshot()
        try:
            walk = snapshot.count((pattern,), at)
            counts = [log.count(pattern, at)]
            try:
                while True:
                    next(walk)
            except StopIteration as end:
                counts.append(end.value)
        except CorruptRecordError as exc:
            yield f"count of {pattern} from {at}: {exc}"
            continue
        finally:
            snapshot.close()
        if min(counts) < wanted:
            raise Finding(f"SILENT: count of {pattern} from {at}: {counts}, not {wanted}")
        if max(counts) > wanted:
            if not is_said:
                raise Finding(f"WRONG: count of {pattern} from {at}: {counts}, not {wanted}")
            yield f"count of {pattern} from {at}"


def read_without_damaged(store: LmdbStore, name: str, truth: dict[int, tuple[str, bytes]]) -> Iterator[str]:
    """What is left, and nothing else, is found when all that cannot be read is removed."""
    log, left = store.log(name), dict(truth)
    for seq in range(1, log.committed.last_seq + 1):
        try:
            if log.get(seq) is None:
                left.pop(seq, None)  # by a limit, since
        except CorruptRecordError:
            left.pop(seq, None)
            log.remove(seq)
    if name == "WQ":
        return  # some were acknowledged meanwhile
    try:
        commit_open_group(store)
    except StoreError as exc:
        yield f"removal failed: {exc}"
        return
    newest = {subject: seq for seq, (subject, _) in sorted(left.items())}
    for subject, seq in newest.items():
        for up_to in (0, seq):
            try:
                found = log.multi_last([subject], up_to=up_to) or [0]
                record = log.get(found[0])
            except CorruptRecordError as exc:
                yield f"last of {subject} without what was damaged: {exc}"
                continue
            if record is None or record.seq < seq:
                raise Finding(f"SILENT: last of {subject} is {seq}, got {found[0]} when others are removed")
    for seq in left:
        try:
            _compare(seq, log.get(seq), left, "get without what was damaged")
        except CorruptRecordError:
            yield f"{seq} is still damaged"


def _compare(seq: int, record: Any, truth: dict[int, tuple[str, bytes]], how: str) -> None:
    wanted = truth.get(seq)
    if record is None:
        if wanted is not None:
            raise Finding(f"SILENT: {how} of {seq} found nothing")
    elif wanted is None:
        raise Finding(f"WRONG: {how} of {seq}, which is not in the stream")
    elif (record.seq, record.subject, record.payload) != (seq, *wanted):
        raise Finding(f"WRONG: {how} of {seq}: {record}")


def _matches(pattern: str, subject: str) -> bool:
    if pattern == ">":
        return True
    if pattern.endswith(".>"):
        return subject.startswith(pattern[:-1])
    tokens, parts = pattern.split("."), subject.split(".")
    fits = [t == "*" or t == p or (t.endswith("*") and False) for t, p in zip(tokens, parts, strict=False)]
    return len(tokens) == len(parts) and all(fits)


def _scan(log: StreamLog, pattern: str, truth: dict[int, tuple[str, bytes]], bad: set[int]) -> Iterator[str]:
    wanted = [seq for seq, (subject, _) in sorted(truth.items()) if _matches(pattern, subject)]
    at, found, skipped = 0, list[int](), list[int]()
    for _ in range(20_000):
        try:
            records = log.scan(pattern, at, limit=700)
        except CorruptRecordError as exc:
            yield f"scan {pattern} at {exc.seq}"
            skipped.append(exc.seq)
            last = max(truth, default=0)
            at = max(exc.seq, at) + 1
            while at in bad:
                at += 1
            if at > last:
                break
            continue
        if not records:
            break
        for record in records:
            if record.seq < at:
                raise Finding(f"WRONG: scan {pattern} goes back to {record.seq}")
            _compare(record.seq, record, truth, f"scan {pattern}")
            if pattern != ">" and not _matches(pattern, record.subject):
                raise Finding(f"WRONG: scan {pattern} found {record.subject}")
            found.append(record.seq)
            at = record.seq + 1
    missing = set(wanted) - set(found) - bad
    if missing and not skipped:
        raise Finding(f"SILENT: scan {pattern} lacks {sorted(missing)[:5]} ({len(missing)})")


def consume(client: Client, stream: str, truth: dict[int, tuple[str, bytes]]) -> Iterator[str]:
    """A new consumer must get a beginning of the truth, in order, and all of it if nothing is damaged."""
    name, prefix = ("w", "WQ") if stream == "WQ" else ("c", stream)
    if stream != "WQ":
        config = {"durable_name": name, "ack_policy": "none"}
        answer = client.api(f"CONSUMER.DURABLE.CREATE.{prefix}.{name}", {"stream_name": prefix, "config": config})
        if "error" in answer:
            yield f"consumer: {answer['error']['description']}"
            return
    got: list[int] = []
    for _ in range(40):
        client.take()
        body = b'{"batch":500,"no_wait":true}'
        client.send(pub(f"$JS.API.CONSUMER.MSG.NEXT.{prefix}.{name}", body, f"{client.inbox}p"))
        messages = [message for message in client.messages() if isinstance(message, Msg)]
        fresh = [message for message in messages if not status(message)[0] and message.reply.startswith("$JS.ACK")]
        if not fresh:
            break
        for message in fresh:
            seq = int(message.reply.split(".")[5])
            if seq not in truth:
                raise Finding(f"WRONG: consumer of {stream} got {seq}, which is not in the stream")
            if (message.subject, message.payload) != truth[seq]:
                raise Finding(f"WRONG: consumer of {stream} got {seq} with other content")
            got.append(seq)
    wanted = sorted(truth)
    if stream == "WQ":  # some were delivered before, and wait for their acks
        if got != sorted(got):
            raise Finding("WRONG: the consumer's order")
        return
    if got != wanted[: len(got)]:
        raise Finding(f"SILENT: a consumer of {stream} passed over messages: {sorted(set(wanted) - set(got))[:5]}")
    if len(got) < len(wanted):
        yield f"consumer stopped before {wanted[len(got)]}"


def still_takes_messages(clients: dict[str, Client]) -> str:
    """Whether an opened store takes messages, or says why not."""
    for account, stream, subject in (("", "LOG", "log.1"), ("", "KV_B", "$KV.B.k1"), ("TWO", "LOG", "log.1")):
        client = clients[account]
        client._asked += 1
        reply = f"{client.inbox}{client._asked}"
        client.take()
        client.send(pub(subject, b"after", reply))
        answers = [message for message in client.messages() if message.subject == reply]
        if not answers or b'"seq"' not in answers[0].payload:
            return f"publish to {stream} failed: {answers[0].payload if answers else b''!r}"
    return ""


def recover(folder: Path, target: Path, base: Base) -> tuple[str, str]:
    """Salvage a damaged store and compare; the detail is how many messages were lost, and the share of the
    undamaged part that was copied."""
    truth, whole = base.truth, undamaged(folder, base)
    told: list[str] = []
    try:
        survey = salvage(folder, target, told.append)
    except StoreError as exc:
        return "REFUSED", str(exc)
    store = LmdbStore(target, map_size=1 << 28, tuning=TUNING)
    # Without the newest meta page the last commit is lost, and what it removed is there: that is said.
    # Without the sums of a segment it is not known what was removed: that is said, too.
    is_rolled_back = any("meta page" in problem for problem in survey.problems)
    unproved = [problem for problem in survey.problems if "without proof" in problem]
    lost = kept = 0
    for name, messages in truth.items():
        if name not in dict(store.streams()):
            lost += len(messages)
            continue
        found = {record.seq: record for record in store.log(name).scan("", 0, limit=1_000_000)}
        for seq, record in found.items():
            is_told = is_rolled_back or any("stream " not in one or f"{name!r}" in one for one in unproved)
            if messages.get(seq) != (record.subject, record.payload) and not is_told:
                return "WRONG", f"{seq} of {name} is not in the stream"
        lost += len(messages.keys() - found.keys())
        kept += len(whole[name] & found.keys())
    extra = set(dict(store.streams())) - set(truth)
    store.close()
    if extra:
        return "WRONG", f"streams {extra}"
    if lost and survey.is_sound:
        return "SILENT", f"{lost} messages are lost"
    return "COPIED", f"{lost} {kept / max(1, sum(map(len, whole.values())))}"


def run(folder: Path, trials: int, *, seed: int = 1, scale: int = 1) -> list[Verdict]:
    base = build(folder / "base", scale=scale)
    return [trial(base, KINDS[n % len(KINDS)], seed * 100_000 + n, folder / "copy") for n in range(trials)]


def table(verdicts: list[Verdict]) -> str:
    """The verdicts by kind of damage."""
    names = sorted({each.verdict for each in verdicts})
    lines = [f"{'':8}" + "".join(f"{name:>11}" for name in names)]
    for kind in KINDS:
        counts = (sum(1 for each in verdicts if each.kind == kind and each.verdict == name) for name in names)
        lines.append(f"{kind:8}" + "".join(f"{count:11}" for count in counts))
    totals = (sum(1 for each in verdicts if each.verdict == name) for name in names)
    return "\n".join([*lines, f"{'all':8}" + "".join(f"{count:11}" for count in totals)])
