"""Names of arguments, for annotations alone; a call of one gives a dictionary."""


def __getattr__(name):
    if name.startswith("__"):
        raise AttributeError(name)
    return dict
