//! Log lines on stderr, for processes that installed no logger of their own.

use std::io::Write;
use std::str::FromStr;

use foldcast::{Error, Result};
use log::{Level, LevelFilter, Log, Metadata, Record};

/// The variable that says from which level on lines are written.
const VARIABLE: &str = "FOLDCAST_LOG";

struct Stderr;

impl Log for Stderr {
    fn enabled(&self, metadata: &Metadata<'_>) -> bool {
        metadata.level() <= log::max_level()
    }

    fn log(&self, record: &Record<'_>) {
        if !self.enabled(record.metadata()) {
            return;
        }
        let level = match record.level() {
            Level::Error => "error",
            Level::Warn => "warning",
            Level::Info => "info",
            Level::Debug => "debug",
            Level::Trace => "trace",
        };
        // One write for the whole line, so that lines of several processes do not mix. A closed stderr is no
        // reason to fail what is being logged.
        let line = format!("foldcast: {level}: {}\n", record.args());
        let _ = std::io::stderr().write_all(line.as_bytes());
    }

    fn flush(&self) {}
}

static STDERR: Stderr = Stderr;

/// Installs the logger if the process has none. The level is that of `FOLDCAST_LOG`, else warnings.
///
/// # Errors
/// [`Error::InvalidArgument`] if the variable holds something else than a level.
pub(crate) fn install() -> Result<()> {
    let level = match std::env::var_os(VARIABLE) {
        None => LevelFilter::Warn,
        Some(value) => value.to_str().and_then(|text| LevelFilter::from_str(text).ok()).ok_or_else(|| {
            Error::invalid(VARIABLE, "one of off, error, warn, info, debug, trace", format!("{value:?}"))
        })?,
    };
    if log::set_logger(&STDERR).is_ok() {
        log::set_max_level(level);
    }
    Ok(())
}
