"""Kinds of columns."""


class Base64(str):
    pass


class Json(dict):
    pass
