//! The Python interpreter that acts as other users and other processes.

use crate::needs;

/// The name of an interpreter.
#[derive(Clone, Copy)]
pub(crate) struct Python(pub(crate) &'static str);

/// `None` where there is none.
pub(crate) fn find() -> Option<Python> {
    needs::program("python3").then_some(Python("python3"))
}
