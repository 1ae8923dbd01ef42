"""Stands where the database client of LiteLLM's proxy is.

LiteLLM keeps the models that it is told of in PostgreSQL, reached through Prisma's engine, a program that no package registry carries. All else of
LiteLLM runs as it is: its HTTP API, its keys, its encryption of what it stores, its router. Tables here are lists of rows in a file, so that a
restart finds them again.
"""

import datetime
import json
import os
import pathlib
import uuid

from . import errors, fields, models, types  # noqa: F401  LiteLLM imports them from here.


class Json:
    """What is to be stored as JSON."""

    def __init__(self, data=None, **more):
        self.data = data if data is not None else more


class Base64(str):
    """Bytes as text."""


class Row:
    """Columns as attributes; one that was never set is None, as a nullable column is."""

    def __init__(self, values):
        self.__dict__.update(values)

    def __getattr__(self, name):
        if name.startswith("__"):
            raise AttributeError(name)
        return None

    def model_dump(self, **_):
        return dict(self.__dict__)

    dict = model_dump

    def json(self, **_):
        return json.dumps(self.__dict__, default=str)

    model_dump_json = json


def _plain(value):
    if isinstance(value, Json):
        value = value.data
    # A JSON column gives back what was put in, parsed.
    if isinstance(value, str) and value[:1] in "{[":
        try:
            return json.loads(value)
        except ValueError:
            return value
    return value


def _matches(row, where):
    for key, wanted in (where or {}).items():
        if key in ("AND", "OR", "NOT"):
            wanted = wanted if isinstance(wanted, list) else [wanted]
            found = [_matches(row, one) for one in wanted]
            if not {"AND": all(found), "OR": any(found), "NOT": not any(found)}[key]:
                return False
            continue
        value = row.get(key)
        if not isinstance(wanted, dict):
            if value != wanted:
                return False
        elif "in" in wanted:
            if value not in wanted["in"]:
                return False
        elif "equals" in wanted:
            if value != wanted["equals"]:
                return False
    return True


class Table:
    """One table, with the calls that LiteLLM makes."""

    def __init__(self, store, name):
        self.store, self.name = store, name

    def _rows(self):
        return self.store.tables.setdefault(self.name, [])

    def _key(self):
        return {"litellm_proxymodeltable": "model_id"}.get(self.name, "id")

    async def find_many(self, where=None, take=None, skip=None, **_):
        rows = [Row(row) for row in self._rows() if _matches(row, where)]
        return rows[skip or 0 :][: take if take is not None else len(rows)]

    async def find_first(self, where=None, **_):
        rows = await self.find_many(where)
        return rows[0] if rows else None

    find_unique = find_first

    async def count(self, where=None, **_):
        return len(await self.find_many(where))

    async def group_by(self, *_, **__):
        return []

    async def create(self, data, **_):
        row = {key: _plain(value) for key, value in data.items()}
        row.setdefault(self._key(), str(uuid.uuid4()))
        key = row[self._key()]
        if any(other.get(self._key()) == key for other in self._rows()):
            raise errors.UniqueViolationError(f"Unique constraint failed on {self._key()}")
        now = datetime.datetime.now(datetime.timezone.utc).isoformat()
        row.setdefault("created_at", now)
        row.setdefault("updated_at", now)
        self._rows().append(row)
        self.store.save()
        return Row(row)

    async def create_many(self, data, **_):
        for row in data:
            await self.create(row)
        return len(data)

    async def update(self, data, where, **_):
        for row in self._rows():
            if _matches(row, where):
                row.update({key: _plain(value) for key, value in data.items()})
                self.store.save()
                return Row(row)
        return None

    async def update_many(self, data, where=None, **_):
        for row in self._rows():
            if _matches(row, where):
                row.update({key: _plain(value) for key, value in data.items()})
        self.store.save()

    async def upsert(self, where, data, **_):
        return await self.update(data["update"], where) or await self.create({**where, **data["create"]})

    async def delete(self, where, **_):
        for row in self._rows():
            if _matches(row, where):
                self._rows().remove(row)
                self.store.save()
                return Row(row)
        return None

    async def delete_many(self, where=None, **_):
        gone = [row for row in self._rows() if _matches(row, where)]
        for row in gone:
            self._rows().remove(row)
        self.store.save()
        return len(gone)


class Store:
    """All tables, in the file that PRISMA_STAND_IN names."""

    def __init__(self):
        self.file = pathlib.Path(os.environ["PRISMA_STAND_IN"])
        self.tables = json.loads(self.file.read_text()) if self.file.exists() else {}

    def save(self):
        beside = self.file.with_suffix(".next")
        beside.write_text(json.dumps(self.tables, default=str))
        beside.replace(self.file)


class Transaction:
    """Changes at once; nothing fails half-way here."""

    def __init__(self, client):
        self.client = client

    async def __aenter__(self):
        return self.client

    async def __aexit__(self, *_):
        return False


class Prisma:
    """The client."""

    def __init__(self, *_, **__):
        self._store, self._connected = Store(), False

    async def connect(self, *_, **__):
        self._connected = True

    async def disconnect(self, *_, **__):
        self._connected = False

    def is_connected(self):
        return self._connected

    def tx(self, *_, **__):
        return Transaction(self)

    async def query_raw(self, *_, **__):
        return []

    async def query_first(self, *_, **__):
        return None

    async def execute_raw(self, *_, **__):
        return 0

    def __getattr__(self, name):
        if name.startswith("_"):
            raise AttributeError(name)
        return Table(self._store, name)
