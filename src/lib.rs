//! Placeholder.
mod clock;
mod error;
mod key;
mod reply;
mod store;
pub use self::{
    clock::Clock,
    error::{Error, ErrorKind},
    key::Key,
    reply::{Fields, Reply},
    store::{JobId, JobState, Store},
};
