"""Options of the process around a server: its log, and the files that name its pid and ports."""

from __future__ import annotations

from dataclasses import dataclass

from slipstream.server.options import COMMAND_DEFAULTS, ServerOptions, option


@dataclass(frozen=True, kw_only=True)
class ProcessOptions:
    """A server as a process."""

    server: ServerOptions = COMMAND_DEFAULTS
    debug: bool = option("log more detail", False, group="Logging", keys="debug", flags="D debug")
    log_time: bool = option("write times into the log", True, keys="logtime", flags="T logtime")
    log_utc: bool = option("write these times in UTC", False, keys="logtime_utc")
    log_file: str = option(
        "write the log to a file instead of stderr", "", keys="log_file logfile", flags="l log", value="FILE"
    )
    log_size_limit: int = option(
        "bytes at which the log file is rotated; 0 for never", 0, keys="logfile_size_limit log_size_limit", low=0
    )
    log_max_num: int = option("rotated log files to keep; 0 for one", 0, keys="logfile_max_num log_max_num", low=0)
    pid_file: str = option(
        "write the process id to a file", "", group="Process", keys="pid_file pidfile", flags="P pid", value="FILE"
    )
    ports_file_dir: str = option(
        "write the ports to slipstream_<pid>.ports in a directory", "",
        keys="ports_file_dir", flags="ports_file_dir", value="DIR",
    )  # fmt: skip
