"""The responses that were given, so that a later one can go on from them: in SQLite, in a thread of its own.

What ``put`` returned from survives a kill of the process. A database that can't be read is set aside and a new one
begun: no file stops the daemon.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

import anyio

from supervisor.errors import AdmissionError, CallerError

if TYPE_CHECKING:
    import sqlite3

T = TypeVar("T")
KEPT_SECONDS = 7 * 86_400.0
# A request that names a response which is still being written waits so long for it.
PATIENCE_SECONDS = 2.0
_SWEEP_EVERY = 200
_TABLE = """
CREATE TABLE IF NOT EXISTS responses (
    id TEXT PRIMARY KEY, owner TEXT NOT NULL, expires_at REAL NOT NULL, previous_id TEXT,
    input BLOB NOT NULL, output BLOB NOT NULL, response BLOB NOT NULL
) WITHOUT ROWID
"""
_CHAIN = """
WITH RECURSIVE chain(id, depth) AS (
    SELECT ?, 0 UNION ALL
    SELECT responses.previous_id, depth + 1 FROM responses JOIN chain ON responses.id = chain.id
    WHERE responses.previous_id IS NOT NULL AND depth < 10000
)
SELECT chain.id, owner, expires_at, input, output FROM chain LEFT JOIN responses ON responses.id = chain.id
ORDER BY depth DESC
"""


@dataclass(frozen=True, slots=True)
class StoredResponse:
    """One response with what it answered.

    Attributes:
        owner: who may name it.
        created: seconds since 1970.
        previous_id: the response that it goes on from.
        input: its own input items, as JSON; output: its items; response: the whole of it.
    """

    id: str
    owner: str
    created: float
    previous_id: str | None
    input: bytes
    output: bytes
    response: bytes


class ResponseStore:
    """Keeps responses for a week.

    Args:
        path: the database; None: in memory.
        now: seconds since 1970.
    """

    def __init__(self, path: Path | None, now: Callable[[], float]) -> None:
        self._path = path
        self._now = now
        self._pending: dict[str, anyio.Event] = {}
        self._thread: ThreadPoolExecutor | None = None
        self._database: sqlite3.Connection | None = None
        self._puts = 0

    @contextlib.contextmanager
    def writing(self, response_id: str) -> Iterator[None]:
        """While the block runs the response is being written: who names it waits."""
        event = self._pending[response_id] = anyio.Event()
        try:
            yield
        finally:
            del self._pending[response_id]
            event.set()

    async def put(self, record: StoredResponse) -> str | None:
        """Keep it; returns when it is kept, or why it can't be: an answer is worth more than its record."""
        import sqlite3  # noqa: PLC0415  as below

        try:
            await self._in_thread(lambda database: self._insert(database, record))
        except (sqlite3.Error, OSError) as error:
            return str(error)
        return None

    async def chain(self, response_id: str, owner: str) -> list[tuple[bytes, bytes]]:
        """Input and output items of the response and of all that it goes on from, oldest first.

        Raises:
            CallerError: ``response_not_found``, of it or of one before it.
            AdmissionError: ``storage_timeout``: it is still being written; ``storage_unusable``: it can't be read.
        """
        await self._written(response_id)
        rows = await self._asked(lambda database: database.execute(_CHAIN, (response_id,)).fetchall())
        for known, holder, expires, _, _ in reversed(rows):
            if holder != owner or expires is None or expires < self._now():
                raise _not_found(known)
        return [(given, output) for _, _, _, given, output in rows]

    async def get(self, response_id: str, owner: str) -> tuple[bytes, bytes]:
        """The response and its own input items, as JSON.

        Raises:
            CallerError, AdmissionError: as above.
        """
        await self._written(response_id)
        query = "SELECT response, input FROM responses WHERE id = ? AND owner = ? AND expires_at >= ?"
        asked = (response_id, owner, self._now())
        row = await self._asked(lambda database: database.execute(query, asked).fetchone())
        if row is None:
            raise _not_found(response_id)
        return row[0], row[1]

    async def delete(self, response_id: str, owner: str) -> None:
        """Forget it; what goes on from it can't be gone on from any more.

        Raises:
            CallerError, AdmissionError: as above.
        """
        await self._written(response_id)
        query = "DELETE FROM responses WHERE id = ? AND owner = ? AND expires_at >= ?"
        asked = (response_id, owner, self._now())
        if not await self._asked(lambda database: database.execute(query, asked).rowcount):
            raise _not_found(response_id)

    async def close(self) -> None:
        """End the thread; safe to call twice."""
        thread, self._thread = self._thread, None
        if thread is not None:
            await asyncio.get_running_loop().run_in_executor(thread, self._close)
            thread.shutdown(wait=False)

    async def _written(self, response_id: str) -> None:
        event = self._pending.get(response_id)
        if event is None:
            return
        with anyio.move_on_after(PATIENCE_SECONDS):
            await event.wait()
            return
        raise AdmissionError(
            "storage_timeout",
            f"The response {response_id} is still being written. Ask again when it is complete.",
            retry_after=PATIENCE_SECONDS,
        )

    async def _asked(self, work: Callable[[sqlite3.Connection], T]) -> T:
        """What ``work`` finds.

        Raises:
            AdmissionError: ``storage_unusable``.
        """
        import sqlite3  # noqa: PLC0415  as below

        try:
            return await self._in_thread(work)
        except (sqlite3.Error, OSError) as error:
            said = f"The responses that were given can't be read now: {error}. Look at the disk of state_dir."
            raise AdmissionError("storage_unusable", said) from error

    async def _in_thread(self, work: Callable[[sqlite3.Connection], T]) -> T:
        if self._thread is None:
            self._thread = ThreadPoolExecutor(1, "responses")
        return await asyncio.get_running_loop().run_in_executor(self._thread, lambda: work(self._opened()))

    def _opened(self) -> sqlite3.Connection:
        if self._database is None:
            self._database = _open(self._path)
        return self._database

    def _insert(self, database: sqlite3.Connection, record: StoredResponse) -> None:
        if self._puts % _SWEEP_EVERY == 0:
            database.execute("DELETE FROM responses WHERE expires_at < ?", (self._now(),))
        self._puts += 1
        expires = record.created + KEPT_SECONDS
        row = (record.id, record.owner, expires, record.previous_id, record.input, record.output, record.response)
        database.execute("INSERT OR REPLACE INTO responses VALUES (?, ?, ?, ?, ?, ?, ?)", row)

    def _close(self) -> None:
        if self._database is not None:
            self._database.close()
            self._database = None


def _open(path: Path | None) -> sqlite3.Connection:
    import sqlite3  # noqa: PLC0415  not before somebody asks for a response

    try:
        return _connect(path)
    except sqlite3.OperationalError:
        raise  # a full disk, or one that fails: what it holds is as good as before
    except sqlite3.DatabaseError:
        if path is None:
            raise
        path.replace(path.with_suffix(".unreadable"))
        for more in ("-wal", "-shm"):
            path.with_name(path.name + more).unlink(missing_ok=True)
        return _connect(path)


def _connect(path: Path | None) -> sqlite3.Connection:
    import sqlite3  # noqa: PLC0415  as above

    database = sqlite3.connect(":memory:" if path is None else path, isolation_level=None)
    try:
        # Committed pages are with the system as soon as a write returns: a killed process loses none of them.
        database.execute("PRAGMA journal_mode = WAL")
        database.execute("PRAGMA synchronous = NORMAL")
        database.execute(_TABLE)
    except sqlite3.DatabaseError:
        database.close()
        raise
    if path is not None:
        path.chmod(0o600)
    return database


def _not_found(response_id: str) -> CallerError:
    return CallerError(
        "response_not_found",
        f"There is no response {response_id[:100]!r}: it is unknown, older than {KEPT_SECONDS / 86_400:.0f} days, "
        "deleted, or was asked for with `store: false`.",
        param="previous_response_id",
    )
