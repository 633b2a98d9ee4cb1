"""The errors that are meant for users: a message that names what was found, where, and what to do."""


class GrafError(Exception):
    """Something the user can mend. Scripts print the message and leave with exit status 2, without a traceback."""


class ConfigError(GrafError):
    """A config file, or an override of it, that cannot be taken as it is."""


class DataError(GrafError):
    """A data set that cannot be trained on as it is."""


class CheckpointError(GrafError):
    """A checkpoint that cannot be read, or that does not belong to this config."""
