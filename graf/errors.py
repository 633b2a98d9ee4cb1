"""Errors meant for users: the message names what was found, where, and what to do."""


class GrafError(Exception):
    """Something the user can fix. Scripts print the message and exit with `exit_status`, without a traceback."""

    exit_status = 2


class ConfigError(GrafError):
    """A config file, or an override of it, that is invalid."""


class RunFolderError(GrafError):
    """A run's folder that cannot be written: the command is right, the disk is the problem."""

    exit_status = 1


class DataError(GrafError):
    """A data set that cannot be trained on as it is."""


class CheckpointError(GrafError):
    """A checkpoint that cannot be read, or that does not belong to this config."""


class DamagedCheckpointError(CheckpointError):
    """A checkpoint file whose content is not, or no longer, a checkpoint."""


class CheckpointWriteError(CheckpointError):
    """A checkpoint that cannot be written: the command is right, the disk is the problem."""

    exit_status = 1
