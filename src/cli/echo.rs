//! What is typed while an answer comes: it waits for the next prompt, and is not shown among the answer's words.

#[cfg(unix)]
mod terminal {
    use std::io::{IsTerminal, stdin};
    use std::sync::{Mutex, PoisonError};

    use nix::sys::termios::{LocalFlags, SetArg, Termios, tcgetattr, tcsetattr};

    /// How the terminal was, while it is quiet.
    static BEFORE: Mutex<Option<Termios>> = Mutex::new(None);

    /// While it lives, the terminal shows nothing of what is typed.
    pub(in super::super) struct Quiet(());

    impl Quiet {
        /// None where stdin is no terminal.
        pub(in super::super) fn new() -> Option<Self> {
            if !stdin().is_terminal() {
                return None;
            }
            let before = tcgetattr(stdin()).ok()?;
            let mut quiet = before.clone();
            // Lines are not put together, either: the line editor reads what was typed, key by key. Ctrl-C stays a signal.
            quiet.local_flags.remove(LocalFlags::ECHO | LocalFlags::ECHONL | LocalFlags::ICANON);
            *BEFORE.lock().unwrap_or_else(PoisonError::into_inner) = Some(before);
            tcsetattr(stdin(), SetArg::TCSANOW, &quiet).ok()?;
            Some(Self(()))
        }
    }

    impl Drop for Quiet {
        fn drop(&mut self) {
            restore();
        }
    }

    /// Makes the terminal what it was: also where the process ends at once.
    pub(in super::super) fn restore() {
        if let Some(before) = BEFORE.lock().unwrap_or_else(PoisonError::into_inner).take() {
            let _ = tcsetattr(stdin(), SetArg::TCSANOW, &before);
        }
    }
}

#[cfg(not(unix))]
mod terminal {
    /// Elsewhere the terminal decides.
    pub(in super::super) struct Quiet(());

    impl Quiet {
        pub(in super::super) fn new() -> Option<Self> {
            None
        }
    }

    pub(in super::super) fn restore() {}
}

pub(super) use terminal::{Quiet, restore};
