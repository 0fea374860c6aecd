//! How a command ends when it does not succeed: a line on stderr and a code.

use std::io;
use std::process::ExitCode;

use super::term;
use crate::Error;

/// For the end of `--help`.
pub(super) const TABLE: &str = "\
Exit codes:
  0 done   1 failed   2 wrong usage   3 model not found   4 network, or access refused
  5 damaged model file   6 no device that works   7 too little memory or disk space
  8 device lost, or a step on it   130 interrupted";

/// The exit code of a program that was given a damaged model.
pub(super) const DAMAGED: u8 = 5;
/// The exit code of a program that has too little memory.
pub(super) const TOO_LITTLE_MEMORY: u8 = 7;

/// Why a command ends early.
#[derive(Debug)]
pub(super) enum Exit {
    /// The reader of stdout has gone: nobody is left to report.
    Quiet,
    /// Ctrl-C.
    Interrupted,
    /// Something failed.
    Failed { code: u8, message: String },
}

impl Exit {
    /// A mistake on the command line.
    pub(super) fn usage(message: impl Into<String>) -> Self {
        Self::Failed { code: 2, message: message.into() }
    }

    /// There is no model where it should be.
    pub(super) fn not_found(message: impl Into<String>) -> Self {
        Self::Failed { code: 3, message: message.into() }
    }

    /// A failure that has no code of its own.
    pub(super) fn failure(message: impl Into<String>) -> Self {
        Self::Failed { code: 1, message: message.into() }
    }

    /// Prints the failure, and gives the exit code.
    pub(super) fn report(self) -> ExitCode {
        match self {
            Self::Quiet => ExitCode::SUCCESS,
            Self::Interrupted => ExitCode::from(130),
            Self::Failed { code, message } => {
                term::error(&message);
                ExitCode::from(code)
            }
        }
    }
}

impl From<Error> for Exit {
    fn from(error: Error) -> Self {
        Self::from(&error)
    }
}

impl From<&Error> for Exit {
    fn from(error: &Error) -> Self {
        let code = match error {
            Error::Argument { .. } => 2,
            // A file that the command line names; where it is a model, its opener says so.
            Error::Io { source, .. } if source.kind() == io::ErrorKind::NotFound => 2,
            Error::NotFound { .. } => 3,
            Error::Network { .. } | Error::Denied { .. } => 4,
            Error::Malformed { .. } => DAMAGED,
            Error::Device(_) | Error::Miscomputed { .. } => 6,
            Error::Limit { .. } => TOO_LITTLE_MEMORY,
            Error::DeviceLost(_) | Error::LostStep { .. } => 8,
            _ => 1,
        };
        Self::Failed { code, message: error.to_string() }
    }
}

/// What writing to stdout ran into.
impl From<io::Error> for Exit {
    fn from(error: io::Error) -> Self {
        match error.kind() {
            io::ErrorKind::BrokenPipe => Self::Quiet,
            _ => Self::failure(format!("stdout: {error}")),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn faults_of_a_device_have_its_codes() {
        let text = String::new;
        let wrong = Error::Miscomputed { device: text(), kernel: text(), problem: text(), instead: text() };
        let errors = [Error::Device(text()), wrong, Error::DeviceLost(text()), Error::LostStep { step: 3 }];
        let codes = errors.map(|error| match Exit::from(error) {
            Exit::Failed { code, .. } => code,
            other => panic!("{other:?}"),
        });
        assert_eq!(codes, [6, 6, 8, 8]);
    }

    #[test]
    fn faults_of_the_network_have_theirs() {
        let text = String::new;
        let errors = [
            Error::NotFound { what: text(), instead: text() },
            Error::Network { address: text(), problem: text() },
            Error::Denied { what: text(), instead: text() },
            Error::malformed("", None, ""),
        ];
        let codes = errors.map(|error| match Exit::from(error) {
            Exit::Failed { code, .. } => code,
            other => panic!("{other:?}"),
        });
        assert_eq!(codes, [3, 4, 4, 5]);
    }
}
